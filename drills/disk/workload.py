"""What clients ask of a server whose disk goes bad, what they were told, and whether that is still true afterwards.

Who was told yes finds it; who was told no was told in the right way, and when to come back.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from msgspec import Struct

from drills.harness import conversations
from drills.harness.client import GONE, Answer, Client
from drills.harness.oracle import whole
from drills.harness.runs import Kind, Run, ask, look, settle

SETTLE_SECONDS = 20.0
_MIX: tuple[tuple[Kind, int], ...] = (
    ("background", 3),
    ("background stream", 3),
    ("foreground stream", 4),
    ("foreground JSON", 4),
)
_QUIET: tuple[tuple[Kind, int], ...] = (("foreground JSON", 8),)
_TALKING = 4  # of them, whichever, in one conversation
_WORDS = "a disk is a thing that is there until it is full and then somebody has to say so in good time " * 2
_REASONS = ("service_unavailable", "server_restarted")
_PAUSE = 0.02


Question = Callable[[], bool | Awaitable[bool]]


class Refusal(Exception):
    """The server says no where it must not."""


class Deletion(Struct, kw_only=True):
    id: str
    told: bool = False  # that it is done


class Addition(Struct, kw_only=True):
    """Of an item to the conversation."""

    text: str
    told: bool = False


class Work:
    """`quiet`: nothing of it is left to be seen to when all have been answered."""

    def __init__(self, client: Client, quiet: bool) -> None:
        mix = _QUIET if quiet else _MIX
        self._client = client
        self._crowd = [Run(kind=kind, said=_some_words()) for kind, count in mix for _ in range(count)]
        random.shuffle(self._crowd)
        self.runs = [*self._crowd]
        self._kept: list[Run] = []
        self._conversation = ""
        self._deletions: list[Deletion] = []
        self._additions: list[Addition] = []
        self._refusals: list[Answer] = []

    async def prepare(self) -> None:
        """While all is well. Raises Refusal."""
        self._conversation = await conversations.begin(self._client)
        kept = [Run(kind="foreground JSON", said="it is well") for _ in range(4)]
        await asyncio.gather(*(ask(self._client, run) for run in kept))
        if not self._conversation or not all(run.id for run in kept):
            raise Refusal(f"a server that is well refuses: {[run.refused for run in kept]}")
        self._kept, doomed = kept[:2], kept[2:]
        self._deletions = [Deletion(id=run.id) for run in doomed]
        self._additions = [Addition(text=f"{run.nonce} added") for run in kept[:3]]

    async def carry_out(self) -> None:
        """Until all have been answered, in whichever way."""
        async with asyncio.TaskGroup() as clients:
            for number, run in enumerate(self._crowd):
                talks = {"conversation": self._conversation} if number < _TALKING else {}
                clients.create_task(ask(self._client, run, **talks))
            changes: list[Deletion | Addition] = [*self._deletions, *self._additions]
            for change in changes:
                await asyncio.sleep(_PAUSE)
                clients.create_task(self._change(change))

    async def create(self, instructions: str = "") -> bool:
        """One response more. Was it taken?"""
        run = Run(kind="foreground JSON", said="hm")
        self.runs.append(run)
        await ask(self._client, run, instructions=instructions)
        return run.refused is None

    async def read(self) -> Answer:
        """Something that has long been there."""
        return await self._client.get(f"/v1/responses/{self._kept[0].id}")

    async def _change(self, change: Deletion | Addition) -> None:
        try:
            if isinstance(change, Deletion):
                answer = await self._client.send("DELETE", f"/v1/responses/{change.id}")
            else:
                item = {"type": "message", "role": "user", "content": change.text}
                answer = await self._client.post({"items": [item]}, f"/v1/conversations/{self._conversation}/items")
        except GONE:
            return
        change.told = answer.status == 200
        if not change.told:
            self._refusals.append(answer)

    # ---- afterwards

    async def judge(self, client: Client, killed: bool) -> list[str]:
        """On a server that is well again, or came after one that was killed."""
        runs = [*self._kept, *self.runs]
        wrong = [*self._wrong_refusals(), *await settle(client, runs, SETTLE_SECONDS)]
        for run in runs:
            if run.ended is not None:
                wrong += [*_ending(run), *([] if killed and _told_of_store(run) else await look(client, run))]
        talking = [run for run in self._crowd[:_TALKING] if run.ended is not None]
        wrong += await conversations.look(client, self._conversation, talking)
        return [*wrong, *await self._changed(client)]

    def _wrong_refusals(self) -> Iterable[str]:
        answers = [*self._refusals, *(run.refused for run in self.runs if run.refused is not None)]
        return [sentence for answer in answers if (sentence := wrong_refusal(answer))]

    async def _changed(self, client: Client) -> list[str]:
        wrong = []
        for deletion in self._deletions:
            answer = await client.get(f"/v1/responses/{deletion.id}")
            if deletion.told and answer.status != 404:
                wrong.append(f"{deletion.id} was deleted and is there again: {answer.status}")
            elif answer.status not in (200, 404):
                wrong.append(f"{deletion.id} cannot be asked for: {answer.status} {answer.body[:200]!r}")
        page = await client.get(f"/v1/conversations/{self._conversation}/items?limit=100")
        for addition in self._additions:
            times = page.body.count(addition.text.encode())
            if times > 1 or (addition.told and not times):
                wrong.append(f"what was added to the conversation (told: {addition.told}) is in it {times} times")
        return wrong


def wrong_refusal(answer: Answer) -> str:
    """What is wrong with this way of saying no, if anything is."""
    error: dict[str, Any] = answer.error() if answer.body.startswith(b"{") else {}
    if answer.status == 503 and answer.waits and error.get("code") == "service_unavailable":
        return ""
    return f"it was refused with {answer.status} {answer.body[:200]!r} (Retry-After: {answer.waits})"


def _ending(run: Run) -> list[str]:
    """How it may have ended: completed, or failed because of the store."""
    assert run.ended is not None
    status, code = run.ended["status"], (run.ended["error"] or {}).get("code")
    if status == "completed" or (status == "failed" and code in _REASONS):
        return []
    return [f"{run.kind} {run.id} ended {status} {code}"]


def _told_of_store(run: Run) -> bool:
    """Its client was told that it failed, since its end could not be kept. A server that was killed had no time to
    write that when it could: the next one ends it, for a reason of its own. Or what could not be forced onto the disk
    was there all the same, and it is found as it ended before its client was told otherwise: nobody could know."""
    assert run.ended is not None
    told = whole(run.frames) if run.whole else {}
    return bool(told) and told["status"] == "failed" and told["error"]["code"] == _REASONS[0]


async def until(question: Question, seconds: float) -> float | None:
    """Seconds until it was answered with yes; None: it was not in time."""
    began = time.monotonic()
    while not (await answer if isinstance(answer := question(), Awaitable) else answer):
        if time.monotonic() - began > seconds:
            return None
        await asyncio.sleep(_PAUSE)
    return time.monotonic() - began


def _some_words() -> str:
    return _WORDS[: random.randrange(20, 150)]
