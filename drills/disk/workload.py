"""Requests of clients to a server whose disk fails, the answers, and whether they still hold afterwards.

Confirmed data must be present; rejections must have the right status and a `Retry-After`.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from msgspec import Struct

from drills.harness import conversations
from drills.harness.client import DISCONNECT_ERRORS, Answer, Client
from drills.harness.oracle import terminal_response
from drills.harness.runs import Run, RunKind, execute, verify_run, wait_for_ends

SETTLE_SECONDS = 20.0
_RUN_COUNTS: tuple[tuple[RunKind, int], ...] = (
    ("background", 3),
    ("background stream", 3),
    ("foreground stream", 4),
    ("foreground JSON", 4),
)
_QUIET_RUN_COUNTS: tuple[tuple[RunKind, int], ...] = (("foreground JSON", 8),)
_CONVERSATION_RUNS = 4  # runs that share one conversation
_SAMPLE_TEXT = "a disk is a thing that is there until it is full and then somebody has to say so in good time " * 2
_STORE_ERROR_CODES = ("service_unavailable", "server_restarted")
_PAUSE_SECONDS = 0.02


Condition = Callable[[], bool | Awaitable[bool]]


class UnexpectedRejection(Exception):
    """The server rejected a request that it must accept."""


class Deletion(Struct, kw_only=True):
    id: str
    confirmed: bool = False  # the server answered that it is done


class Addition(Struct, kw_only=True):
    """An item that is added to the conversation."""

    text: str
    confirmed: bool = False


class DiskWorkload:
    """The requests during one fault. `quiet`: no work remains once all requests are answered."""

    def __init__(self, client: Client, quiet: bool) -> None:
        mix = _QUIET_RUN_COUNTS if quiet else _RUN_COUNTS
        self._client = client
        self._load_runs = [Run(kind=kind, prompt=_random_text()) for kind, count in mix for _ in range(count)]
        random.shuffle(self._load_runs)
        self.runs = [*self._load_runs]
        self._existing: list[Run] = []
        self._conversation = ""
        self._deletions: list[Deletion] = []
        self._additions: list[Addition] = []
        self._refusals: list[Answer] = []

    async def prepare(self) -> None:
        """Create data while the disk is healthy. Raises UnexpectedRejection."""
        self._conversation = await conversations.create_conversation(self._client)
        existing = [Run(kind="foreground JSON", prompt="it is well") for _ in range(4)]
        await asyncio.gather(*(execute(self._client, run) for run in existing))
        if not self._conversation or not all(run.id for run in existing):
            raise UnexpectedRejection(f"a healthy server rejected requests: {[run.rejection for run in existing]}")
        self._existing, to_delete = existing[:2], existing[2:]
        self._deletions = [Deletion(id=run.id) for run in to_delete]
        self._additions = [Addition(text=f"{run.nonce} added") for run in existing[:3]]

    async def run(self) -> None:
        """Send all requests and wait until each is answered, successfully or not."""
        async with asyncio.TaskGroup() as clients:
            for number, run in enumerate(self._load_runs):
                fields = {"conversation": self._conversation} if number < _CONVERSATION_RUNS else {}
                clients.create_task(execute(self._client, run, **fields))
            changes: list[Deletion | Addition] = [*self._deletions, *self._additions]
            for change in changes:
                await asyncio.sleep(_PAUSE_SECONDS)
                clients.create_task(self._apply_change(change))

    async def create(self, instructions: str = "") -> bool:
        """Create one more response; return whether it was accepted."""
        run = Run(kind="foreground JSON", prompt="hm")
        self.runs.append(run)
        await execute(self._client, run, instructions=instructions)
        return run.rejection is None

    async def read_existing(self) -> Answer:
        """Retrieve a response from before the fault."""
        return await self._client.get(f"/v1/responses/{self._existing[0].id}")

    async def _apply_change(self, change: Deletion | Addition) -> None:
        try:
            if isinstance(change, Deletion):
                answer = await self._client.send("DELETE", f"/v1/responses/{change.id}")
            else:
                item = {"type": "message", "role": "user", "content": change.text}
                answer = await self._client.post({"items": [item]}, f"/v1/conversations/{self._conversation}/items")
        except DISCONNECT_ERRORS:
            return
        change.confirmed = answer.status == 200
        if not change.confirmed:
            self._refusals.append(answer)

    # ---- afterwards

    async def verify(self, client: Client, killed: bool) -> list[str]:
        """Return violations, as seen on the recovered server or on the successor of a killed one."""
        runs = [*self._existing, *self.runs]
        violations = [*self._check_rejections(), *await wait_for_ends(client, runs, SETTLE_SECONDS)]
        for run in runs:
            if run.ended is not None:
                violations += [
                    *_check_end(run),
                    *([] if killed and _failed_by_store(run) else await verify_run(client, run)),
                ]
        conversation_runs = [run for run in self._load_runs[:_CONVERSATION_RUNS] if run.ended is not None]
        violations += await conversations.verify_conversation(client, self._conversation, conversation_runs)
        return [*violations, *await self._verify_changes(client)]

    def _check_rejections(self) -> Iterable[str]:
        answers = [*self._refusals, *(run.rejection for run in self.runs if run.rejection is not None)]
        return [sentence for answer in answers if (sentence := check_rejection(answer))]

    async def _verify_changes(self, client: Client) -> list[str]:
        violations = []
        for deletion in self._deletions:
            answer = await client.get(f"/v1/responses/{deletion.id}")
            if deletion.confirmed and answer.status != 404:
                violations.append(f"{deletion.id} was deleted, but is present again: {answer.status}")
            elif answer.status not in (200, 404):
                violations.append(f"{deletion.id} cannot be retrieved: {answer.status} {answer.body[:200]!r}")
        page = await client.get(f"/v1/conversations/{self._conversation}/items?limit=100")
        for addition in self._additions:
            count = page.body.count(addition.text.encode())
            if count > 1 or (addition.confirmed and not count):
                violations.append(
                    f"an added item (confirmed: {addition.confirmed}) is in the conversation {count} times"
                )
        return violations


def check_rejection(answer: Answer) -> str:
    """Return what is wrong with a rejection, or an empty string."""
    error: dict[str, Any] = answer.error() if answer.body.startswith(b"{") else {}
    if answer.status == 503 and answer.has_retry_after and error.get("code") == "service_unavailable":
        return ""
    return f"a request was rejected with {answer.status} {answer.body[:200]!r} (Retry-After: {answer.has_retry_after})"


def _check_end(run: Run) -> list[str]:
    """Check that a run completed, or failed because of the store."""
    assert run.ended is not None
    status, code = run.ended["status"], (run.ended["error"] or {}).get("code")
    if status == "completed" or (status == "failed" and code in _STORE_ERROR_CODES):
        return []
    return [f"{run.kind} {run.id} ended as {status} {code}"]


def _failed_by_store(run: Run) -> bool:
    """Return whether the client received a failure because the end of its response could not be stored.

    If the server is killed before it can write this failure, the next server ends the response with a different reason.
    Or data that could not be synced had reached the disk nevertheless, and the response has its original end. Neither
    is a violation.
    """
    assert run.ended is not None
    received = terminal_response(run.frames) if run.stream_complete else {}
    return bool(received) and received["status"] == "failed" and received["error"]["code"] == _STORE_ERROR_CODES[0]


async def wait_until(condition: Condition, seconds: float) -> float | None:
    """Poll until the condition holds; return the seconds it took, or None after a timeout."""
    started = time.monotonic()
    while not (await answer if isinstance(answer := condition(), Awaitable) else answer):
        if time.monotonic() - started > seconds:
            return None
        await asyncio.sleep(_PAUSE_SECONDS)
    return time.monotonic() - started


def _random_text() -> str:
    return _SAMPLE_TEXT[: random.randrange(20, 150)]
