"""A scripted reply: chunks, and the actions between them.

Tests create replies with `engine.says`, operators with a script file; the engine plays both in the same way.
"""

import asyncio
from collections.abc import Iterator, Sequence

from msgspec import UNSET, Struct, UnsetType

from antiphon.core.deltas import CallDelta, CallDone, CallStarted, Delta, ReasoningDelta, Refusal, Text
from antiphon.core.prompt import CallPiece, Chunk, FinishKind, TokenCounts
from antiphon.engines.fake.tokens import WIDTH, Level, count_tokens


class Burst(Struct, frozen=True):
    """Chunks that are emitted together in one list, `repeat` times."""

    chunks: tuple[Chunk, ...]
    repeat: int = 1


class AutomaticAnswer(Struct, frozen=True):
    """Step that stands for the automatic answer to the request."""


class Pause(Struct, frozen=True):
    """Wait for some seconds."""

    seconds: float

    async def act(self) -> None:
        await asyncio.sleep(self.seconds)


class Silence(Struct, frozen=True):
    """Emit nothing more, until the request is cancelled."""

    async def act(self) -> None:
        """Wait forever."""
        await asyncio.get_running_loop().create_future()


class Fault(Struct, frozen=True):
    """Raise an error."""

    error: Exception

    async def act(self) -> None:
        raise self.error.with_traceback(None)


class Gate:
    """A point where the engine waits for a test: `await gate.reached.wait()`, inspect the state, `gate.open()`."""

    def __init__(self, event: asyncio.Event | None = None) -> None:
        self.reached = asyncio.Event()
        self._event = event or asyncio.Event()

    def open(self) -> None:
        self._event.set()

    async def act(self) -> None:
        self.reached.set()
        await self._event.wait()


Action = Pause | Silence | Fault | Gate
ReplyStep = Burst | AutomaticAnswer | Action


class ScriptedReply:
    """Steps of a reply, with actions that are inserted after a number of bursts.

    A `finish` of None ends the stream without a last chunk.
    """

    def __init__(
        self,
        steps: Sequence[ReplyStep],
        finish: FinishKind | UnsetType | None = UNSET,
        counts: TokenCounts | None = None,
    ) -> None:
        self.steps = tuple(steps)
        self.finish = finish
        self.counts = counts
        self.inserted: list[tuple[int, Action]] = []

    def copy(self) -> "ScriptedReply":
        """Copy the steps without the inserted actions: gates and faults apply to one playback only."""
        return ScriptedReply(self.steps, self.finish, self.counts)

    def expand(self, automatic_chunks: Sequence[Chunk]) -> "Iterator[list[Chunk] | Action]":
        """Yield everything in order, each list a burst."""
        pending = sorted(self.inserted, key=lambda insert: insert[0])
        bursts = 0
        for step in self._flatten(automatic_chunks):
            while isinstance(step, tuple) and pending and pending[0][0] <= bursts:
                yield pending.pop(0)[1]
            if isinstance(step, tuple):
                bursts += 1
                yield list(step)
            else:
                yield step
        yield from (action for _, action in pending)

    def _flatten(self, automatic_chunks: Sequence[Chunk]) -> Iterator[tuple[Chunk, ...] | Action]:
        for step in self.steps:
            match step:
                case Burst(chunks, repeat):
                    for _ in range(repeat):
                        yield chunks
                case AutomaticAnswer():
                    for chunk in automatic_chunks:
                        yield (chunk,)
                case _:
                    yield step


def make_burst(content: "Delta | Chunk | Sequence[Delta | Chunk]") -> Burst:
    """Make one burst of a delta, a chunk, or a sequence of them, which then arrive together."""
    parts = content if isinstance(content, Sequence) else (content,)
    return Burst(tuple(chunk for part in parts for chunk in _to_chunks(part)))


def _to_chunks(content: Delta | Chunk) -> list[Chunk]:
    match content:
        case Chunk():
            return [content]
        case Text(text, logprobs):
            return [Chunk(text=text, logprobs=logprobs)]
        case ReasoningDelta(text):
            return [Chunk(reasoning=text)]
        case Refusal(text):
            return [Chunk(refusal=text)]
        case CallStarted(key, name):
            return [Chunk(calls=(CallPiece(index=key, name=name),))]
        case CallDelta(key, text):
            return [Chunk(calls=(CallPiece(index=key, arguments=text),))]
        case CallDone():
            return []  # engines emit no such chunk
        case _:
            raise TypeError(f"engines do not emit {type(content).__name__}")


def count_chunk_tokens(chunk: Chunk, level: Level) -> int:
    """Count the tokens of a chunk; the name of a call is one token, as in the automatic answer."""
    width = 1 if level == "tokens" else WIDTH
    text_tokens = (
        count_tokens(len(chunk.text), width)
        + count_tokens(len(chunk.reasoning), width)
        + count_tokens(len(chunk.refusal), width)
    )
    return text_tokens + sum(bool(call.name) + count_tokens(len(call.arguments), width) for call in chunk.calls)
