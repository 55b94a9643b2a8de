"""Responses under drill as their clients saw them, and the look at each of them afterwards.

Whatever happened to its server, a response that a client has heard of is there, ends once, never changes again, and its
replay is a stream whose beginning every client of a background stream has already got.
"""

import asyncio
import time
from typing import Any, Literal

from msgspec import Struct, field

from drills.harness.client import GONE, Answer, Client, Stream
from drills.harness.journal import new_nonce
from drills.harness.oracle import ENDED, Json, Wrong, event, text_of, whole

Kind = Literal["background", "background stream", "foreground stream", "foreground JSON", "socket turn"]
STUCK_SECONDS = 60.0
_POLL_SECONDS = 0.1


class Run(Struct, kw_only=True):
    """One response. `terminal` is the body of the first GET that showed its end, or the JSON it was answered with."""

    kind: Kind
    said: str
    nonce: str = field(default_factory=new_nonce)
    id: str = ""
    frames: list[bytes] = []
    whole: bool = False  # its stream came to [DONE]
    terminal: bytes | None = None
    terminal_at: float = 0.0
    cancelled: bool = False  # somebody asked for it
    orphaned: bool = False  # its server lost it: what that told its client of the end need not be the end's every word
    ended: Json | None = None  # as it is in the end
    hung: bool = False  # its client was left without a word
    refused: Answer | None = None  # instead of a response

    @property
    def input(self) -> str:
        return f"{self.nonce} {self.said}"

    def body(self, **more: Any) -> dict[str, Any]:
        wishes = {"background": "background" in self.kind, "stream": "stream" in self.kind}
        return {"model": "fake", "input": self.input, **wishes, **more}

    def seen(self, body: bytes, response: Json) -> None:
        if self.terminal is None and response["status"] in ENDED:
            self.terminal, self.terminal_at = body, time.monotonic()


async def ask(client: Client, run: Run, **more: Any) -> None:
    """Ask, and hear all there is, until the end or until the server is gone."""
    try:
        async with asyncio.timeout(STUCK_SECONDS):
            if "stream" in run.kind:
                await _listen(client, run, run.body(**more))
            else:
                _answered(run, await client.post(run.body(**more)))
                if run.kind == "background":
                    await _watch(client, run)
    except GONE:
        pass
    except TimeoutError:
        run.hung = True


async def _listen(client: Client, run: Run, body: Json) -> None:
    async with client.open("POST", "/v1/responses", body) as stream:
        if stream.streams:
            try:
                await stream.read(most=1)
                take(run, stream)
                await stream.read()
            finally:
                take(run, stream)
        else:
            run.refused = Answer(stream.status, await stream.body(), stream.retry_after)


def take(run: Run, stream: Stream) -> None:
    """What came of a stream, also of one that was cut off.

    A server that goes down says so in an `error` that belongs to nobody's log: the response may go on elsewhere.
    """
    run.frames, run.whole = list(stream.frames), stream.done
    if run.whole and run.frames and event(run.frames[-1])["type"] == "error":
        run.frames.pop()
        run.whole = False
    if run.frames and not run.id:
        run.id = event(run.frames[0])["response"]["id"]
    if run.whole:
        run.terminal_at = time.monotonic()


def _answered(run: Run, answer: Answer) -> None:
    if answer.status == 200:
        response = answer.json()
        run.id = response["id"]
        run.seen(answer.body, response)
    else:
        run.refused = answer


async def _watch(client: Client, run: Run) -> None:
    while run.id and run.terminal is None:
        await asyncio.sleep(_POLL_SECONDS)
        answer = await client.get(f"/v1/responses/{run.id}")
        if answer.status == 200:
            run.seen(answer.body, answer.json())


async def settle(client: Client, runs: list[Run], seconds: float = STUCK_SECONDS) -> list[str]:
    """Wait for the end of all that a client has heard of."""
    found = await asyncio.gather(*(_settled(client, run, seconds) for run in runs if run.id))
    hung = [f"the client of {run.kind} {run.id} was left without a word" for run in runs if run.hung]
    return [*hung, *(sentence for sentence in found if sentence)]


async def _settled(client: Client, run: Run, seconds: float) -> str:
    deadline = time.monotonic() + seconds
    while True:
        try:
            answer = await client.get(f"/v1/responses/{run.id}")
        except (TimeoutError, *GONE) as error:
            return f"{run.kind} {run.id} cannot be asked for: {error!r}"
        if answer.status != 200:
            return f"{run.kind} {run.id} was acknowledged and is lost: {answer.status} {answer.body[:200]!r}"
        response = answer.json()
        if response["status"] in ENDED:
            return _same_end(run, answer.body, response)
        if time.monotonic() > deadline:
            return f"{run.kind} {run.id} is stuck: {response['status']} {seconds:.0f} s after the restart"
        await asyncio.sleep(_POLL_SECONDS)


def _same_end(run: Run, body: bytes, response: Json) -> str:
    run.ended = response
    if run.terminal is not None and run.terminal != body:
        return f"{run.kind} {run.id} has changed after its end: {_difference(run.terminal, body)}"
    run.seen(body, response)
    return ""


async def look(client: Client, run: Run) -> list[str]:
    """A response that has ended, and all that must hold of it."""
    return await replayed(client, run) or _said(run)


async def replayed(client: Client, run: Run) -> list[str]:
    """What is wrong with the replay of a response that has ended."""
    assert run.ended is not None
    stream = await client.replay(run.id)
    try:
        if stream.status != 200 or whole(stream.frames) != run.ended:
            return [f"{run.kind} {run.id}: its replay is not what GET says"]
    except Wrong as wrong:
        return [f"{run.kind} {run.id}: its replay is wrong: {wrong}"]
    return _heard(run, stream.frames)


def _heard(run: Run, frames: list[bytes]) -> list[str]:
    """What a client has got is the beginning of the replay; all of it, if the client had got the end."""
    if run.orphaned and run.kind == "foreground stream":
        return _same_word(run)
    if run.kind == "background stream" or run.whole:
        expected = frames if run.whole else frames[: len(run.frames)]
        if run.frames != expected:
            return [f"{run.kind} {run.id}: the client got other events than the replay has: {_first(run, frames)}"]
    return []


def _same_word(run: Run) -> list[str]:
    """A stream that nobody but its lost server could follow: at least its end is called the same."""
    assert run.ended is not None
    told = whole(run.frames) if run.whole else run.ended
    one, other = ((end["status"], (end["error"] or {}).get("code")) for end in (told, run.ended))
    return [] if one == other else [f"{run.kind} {run.id}: its client was told {one}, and it is {other}"]


def _said(run: Run) -> list[str]:
    """What the model said in one go: the word that it begins with is the one that it ends with."""
    assert run.ended is not None
    status, text = run.ended["status"], text_of(run.ended)
    mark = text.partition(" ")[0]
    whole_text = f"{mark} You said: {run.input} {mark}"
    if text != whole_text and (status == "completed" or not whole_text.startswith(text)):
        return [f"{run.kind} {run.id} is {status} and says {text!r}"]
    return []


def _first(run: Run, frames: list[bytes]) -> str:
    for number, (got, replayed) in enumerate(zip(run.frames, frames, strict=False)):
        if got != replayed:
            return f"number {number}: {_difference(got, replayed)}"
    return f"{len(run.frames)} came, the replay has {len(frames)}"


def _difference(one: bytes, other: bytes) -> str:
    at = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    start = max(0, at - 60)
    return f"{one[start : at + 100]!r} became {other[start : at + 100]!r}"
