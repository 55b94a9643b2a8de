"""Playback of one answer: lists of chunks at a configured pace, and the last chunk with the token counts.

The automatic answer is split in advance, because server throughput is measured with it. A scripted reply consists of
chunks and the actions between them, and is counted while it is played; tests create replies with `engine.says`,
operators with a script file, and the engine plays both in the same way.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from operator import itemgetter

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from antiphon.core.deltas import CallDelta, CallDone, CallStarted, Delta, ReasoningDelta, Refusal, Text
from antiphon.core.prompt import CallPiece, Chunk, EngineExtras, FinishKind, TokenCounts
from antiphon.engines.fake.answer import AnswerChunks
from antiphon.engines.fake.tokens import WIDTH, Level, count_tokens, encode_text
from antiphon.errors import EngineFailed

Action = Callable[[], Awaitable[object]]  # what happens between two lists of chunks
Burst = tuple[Chunk, ...]  # chunks that are emitted together in one list

ReplyStep = Burst | Action | None  # None stands for the automatic answer to the request


def make_fault(error: Exception) -> Action:
    async def fail() -> None:
        raise error.with_traceback(None)

    return fail


class Gate:
    """A point where the engine waits for a test: `await gate.reached.wait()`, inspect the state, `gate.open()`."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self._event = asyncio.Event()

    def open(self) -> None:
        self._event.set()

    async def wait(self) -> None:
        self.reached.set()
        await self._event.wait()


class ScriptedReply(Struct, eq=False):
    """Steps of a reply, with actions that are inserted after a number of bursts.

    A `finish` of None ends the stream without a last chunk.
    """

    steps: Sequence[ReplyStep]
    finish: FinishKind | UnsetType | None = UNSET
    counts: TokenCounts | None = None
    inserted: list[tuple[int, Action]] = []

    def expand(self, automatic_chunks: Sequence[Chunk]) -> Iterator[Burst | Action]:
        pending = sorted(self.inserted, key=itemgetter(0))
        answer: list[Burst | Action] = [(chunk,) for chunk in automatic_chunks]
        bursts = 0
        for step in chain.from_iterable(answer if step is None else (step,) for step in self.steps):
            if not callable(step):
                while pending and pending[0][0] <= bursts:
                    yield pending.pop(0)[1]
                bursts += 1
            yield step
        yield from (action for _, action in pending)


def make_burst(content: Delta | Chunk | Sequence[Delta | Chunk]) -> Burst:
    """Return the chunks of a delta, or of a sequence of them, which then arrive together."""
    parts = content if isinstance(content, Sequence) else (content,)
    return tuple(chunk for part in parts for chunk in _to_chunks(part))


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


PlaybackStep = tuple[Action | None, Iterable[list[Chunk]]]  # the action to perform first, then the lists to emit
_YIELD = partial(asyncio.sleep, 0)  # lets other streams run


class AutomaticPlayback(Struct, frozen=True):
    answer: AnswerChunks
    input_counts: TokenCounts
    joined: int
    rate: float | None

    def steps(self, burst: int) -> Iterator[PlaybackStep]:
        """Yield bursts as C-level iterators: no Python code runs per list, since throughput is measured with it."""
        chunks, joined = self.answer.chunks, self.joined
        split_lists = (chunks[at : at + joined] for at in range(0, len(chunks), joined))
        lists = map(list, zip(chunks, strict=True)) if joined == 1 else split_lists
        if self.rate is not None:
            clock = asyncio.get_running_loop().time
            begin, interval = clock(), joined / self.rate
            for number, chunk_list in enumerate(lists, 1):
                # The time until it is due: a late list shortens the following waits, but never below zero.
                yield partial(asyncio.sleep, begin + number * interval - clock()), (chunk_list,)
            return
        yield None, islice(lists, burst - 1)
        for first in lists:
            yield _YIELD, (first,)
            if burst > 1:
                yield None, islice(lists, burst - 1)

    def last_chunk(self) -> Chunk:
        answer = self.answer
        counts = replace(self.input_counts, output_tokens=len(answer.chunks), reasoning_tokens=answer.reasoning_tokens)
        last = Chunk(finish=answer.finish, counts=counts)
        if answer.stop_reason is not None:
            last.extras = EngineExtras(stop_reason=answer.stop_reason)
        return last


class ReplyRenderer:
    """Renders scripted chunks in the form of a prompt level. `harmony.py` has the renderer of the Harmony level.

    At chat level chunks pass unchanged. Below it a chunk has only text: reasoning is put in tags, a refusal is not.
    """

    def __init__(self, level: Level) -> None:
        self.raw = level != "chat"
        self._level = level
        self._in_reasoning = False

    def render(self, chunk: Chunk) -> tuple[list[Chunk], int]:
        """Return the chunks to emit and their number of tokens; the name of a call is one, as in automatic answers."""
        width = 1 if self._level == "tokens" else WIDTH
        texts = (chunk.text, chunk.reasoning, chunk.refusal, *[call.arguments for call in chunk.calls])
        names = sum([bool(call.name) for call in chunk.calls])
        return [self._to_text_chunk(chunk)], names + sum([count_tokens(len(text), width) for text in texts])

    def end_tokens(self, finish: FinishKind | None) -> tuple[int, ...]:
        return ()

    def _to_text_chunk(self, chunk: Chunk) -> Chunk:
        if not self.raw:
            return chunk
        if chunk.calls:
            raise EngineFailed("The fake engine supports tool calls at chat level only.")
        text = self._reasoning_tag(chunk) + chunk.reasoning + chunk.text + chunk.refusal
        ids = tuple(encode_text(text)) if self._level == "tokens" else ()
        return replace(chunk, text=text, reasoning="", refusal="", tokens=chunk.tokens or ids)

    def _reasoning_tag(self, chunk: Chunk) -> str:
        """Return the tag to emit before the chunk if reasoning starts or ends with it."""
        before = self._in_reasoning
        self._in_reasoning = bool(chunk.reasoning) or (before and not chunk.text)
        if before == self._in_reasoning:
            return ""
        return "<think>" if self._in_reasoning else "</think>"


class ScriptedPlayback(Struct):
    reply: ScriptedReply
    answer: AnswerChunks  # played where the reply has the step None
    renderer: ReplyRenderer
    input_counts: TokenCounts
    output_tokens: int = 0
    reasoning_tokens: int = 0

    def steps(self, burst: int) -> Iterator[PlaybackStep]:
        remaining = burst
        for step in self.reply.expand(self.answer.chunks):
            if callable(step):
                yield step, ()
                continue
            burst_chunks: list[Chunk] = []
            for chunk in step:
                rendered, tokens = self.renderer.render(chunk)
                self.output_tokens += tokens
                self.reasoning_tokens += tokens if chunk.reasoning else 0
                burst_chunks += rendered
            remaining = remaining - 1 or burst
            yield _YIELD if remaining == burst else None, (burst_chunks,)

    def last_chunk(self) -> Chunk | None:
        finish = self.answer.finish if self.reply.finish is UNSET else self.reply.finish
        if finish is None:
            return None
        # Below chat level the automatic answer is raw text, so its reasoning is not visible in the chunks.
        reasoning = self.reasoning_tokens + (self.answer.reasoning_tokens if self.renderer.raw else 0)
        ending = self.renderer.end_tokens(finish)
        counts = replace(self.input_counts, output_tokens=self.output_tokens + len(ending), reasoning_tokens=reasoning)
        return Chunk(finish=finish, counts=self.reply.counts or counts, tokens=ending)


Playback = AutomaticPlayback | ScriptedPlayback
