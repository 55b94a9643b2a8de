"""A reply that was written beforehand: chunks, and what happens between them.

Tests write one with `engine.says`, people with a script file; the engine plays both in the same way.
"""

import asyncio
from collections.abc import Iterator, Sequence

from msgspec import UNSET, Struct, UnsetType

from antiphon.core.deltas import CallDelta, CallDone, CallStarted, Delta, Refusal, Text, Thought
from antiphon.core.prompt import CallPiece, Chunk, Counts, Finish
from antiphon.engines.fake.tokens import WIDTH, Level, tokens_in


class Burst(Struct, frozen=True):
    """Chunks that are handed on together, as often as `repeat` says."""

    chunks: tuple[Chunk, ...]
    repeat: int = 1


class Automatic(Struct, frozen=True):
    """What the engine would have answered by itself."""


class Pause(Struct, frozen=True):
    seconds: float

    async def act(self) -> None:
        await asyncio.sleep(self.seconds)


class Silence(Struct, frozen=True):
    async def act(self) -> None:
        """Nothing, until the work is cancelled."""
        await asyncio.get_running_loop().create_future()


class Fault(Struct, frozen=True):
    error: Exception

    async def act(self) -> None:
        raise self.error.with_traceback(None)


class Gate:
    """A place where the engine waits for a test: `await gate.reached.wait()`, look around, `gate.open()`."""

    def __init__(self, opened: asyncio.Event | None = None) -> None:
        self.reached = asyncio.Event()
        self._opened = opened or asyncio.Event()

    def open(self) -> None:
        self._opened.set()

    async def act(self) -> None:
        self.reached.set()
        await self._opened.wait()


Action = Pause | Silence | Fault | Gate
Step = Burst | Automatic | Action


class Reply:
    """Steps, with actions put in later after so many bursts; a `finish` of None ends without a last chunk."""

    def __init__(
        self, steps: Sequence[Step], finish: Finish | UnsetType | None = UNSET, counts: Counts | None = None
    ) -> None:
        self.steps = tuple(steps)
        self.finish = finish
        self.counts = counts
        self.inserted: list[tuple[int, Action]] = []

    def again(self) -> "Reply":
        """The same words; gates and faults were for the first time only."""
        return Reply(self.steps, self.finish, self.counts)

    def expanded(self, automatic: Sequence[Chunk]) -> "Iterator[list[Chunk] | Action]":
        """Everything in order, each list a burst."""
        waiting = sorted(self.inserted, key=lambda insert: insert[0])
        bursts = 0
        for step in self._flat(automatic):
            while isinstance(step, tuple) and waiting and waiting[0][0] <= bursts:
                yield waiting.pop(0)[1]
            if isinstance(step, tuple):
                bursts += 1
                yield list(step)
            else:
                yield step
        yield from (action for _, action in waiting)

    def _flat(self, automatic: Sequence[Chunk]) -> Iterator[tuple[Chunk, ...] | Action]:
        for step in self.steps:
            match step:
                case Burst(chunks, repeat):
                    for _ in range(repeat):
                        yield chunks
                case Automatic():
                    for chunk in automatic:
                        yield (chunk,)
                case _:
                    yield step


def burst(said: "Delta | Chunk | Sequence[Delta | Chunk]") -> Burst:
    """Several deltas in one list arrive together."""
    several = said if isinstance(said, Sequence) else (said,)
    return Burst(tuple(chunk for one in several for chunk in _chunks(one)))


def _chunks(said: Delta | Chunk) -> list[Chunk]:
    match said:
        case Chunk():
            return [said]
        case Text(text, logprobs):
            return [Chunk(text=text, logprobs=logprobs)]
        case Thought(text):
            return [Chunk(thought=text)]
        case Refusal(text):
            return [Chunk(refusal=text)]
        case CallStarted(key, name):
            return [Chunk(calls=(CallPiece(index=key, name=name),))]
        case CallDelta(key, text):
            return [Chunk(calls=(CallPiece(index=key, arguments=text),))]
        case CallDone():
            return []  # engines do not say so
        case _:
            raise TypeError(f"an engine does not say {type(said).__name__}")


def tokens_of(chunk: Chunk, level: Level) -> int:
    """A name of a call is one token, as in the automatic answer."""
    width = 1 if level == "tokens" else WIDTH
    said = (
        tokens_in(len(chunk.text), width) + tokens_in(len(chunk.thought), width) + tokens_in(len(chunk.refusal), width)
    )
    return said + sum(bool(call.name) + tokens_in(len(call.arguments), width) for call in chunk.calls)
