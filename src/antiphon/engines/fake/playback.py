"""How one answer is given: list after list, at a pace, and at the end what it came to.

The automatic answer is cut beforehand, because a server's speed is measured against it; a reply that was
written beforehand is counted while it is played.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Protocol

from msgspec import UNSET
from msgspec.structs import replace

from antiphon.core.prompt import Chunk, Counts, Extras, Finish
from antiphon.engines.fake.answer import Spoken
from antiphon.engines.fake.reply import Action, Automatic, Pause, Reply, tokens_of
from antiphon.engines.fake.tokens import Level, ids_of
from antiphon.errors import EngineFailed


class _Due:
    """Until the next list is due; what came late is not made up for by waiting less than nothing."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._clock = asyncio.get_running_loop().time
        self._due = self._clock()

    async def act(self) -> None:
        self._due += self._seconds
        await asyncio.sleep(self._due - self._clock())


Step = tuple[Action | _Due | None, Iterable[list[Chunk]]]  # what happens first, and the lists that come then
_TURN = Pause(0)  # for other streams


class Spontaneous:
    def __init__(self, spoken: Spoken, heard: Counts, joined: int, rate: float | None) -> None:
        self._spoken = spoken
        self._heard = heard
        self._joined = joined
        self._rate = rate

    def steps(self, burst: int) -> Iterator[Step]:
        """A burst is read without a line of ours, since a server's speed is measured against it."""
        chunks, joined = self._spoken.chunks, self._joined
        lists = map(list, zip(chunks, strict=True)) if joined == 1 else _cut(chunks, joined)
        if self._rate is not None:
            due = _Due(joined / self._rate)
            yield from ((due, (each,)) for each in lists)
            return
        yield None, islice(lists, burst - 1)
        for first in lists:
            yield _TURN, (first,)
            if burst > 1:
                yield None, islice(lists, burst - 1)

    def last(self) -> Chunk:
        spoken = self._spoken
        counts = replace(self._heard, output_tokens=len(spoken.chunks), reasoning_tokens=spoken.reasoning)
        last = Chunk(finish=spoken.finish, counts=counts)
        if spoken.stop_reason is not None:
            last.extras = Extras(stop_reason=spoken.stop_reason)
        return last


class Voice(Protocol):
    """How a level says what was written for a model to say."""

    raw: bool

    def said(self, chunk: Chunk) -> tuple[list[Chunk], int]:
        """And how many tokens that is."""
        ...

    def end(self, finish: Finish | None) -> tuple[int, ...]:
        """Tokens that belong to the end."""
        ...


class Written:
    def __init__(self, reply: Reply, speak: Callable[[], Spoken], voice: Voice, heard: Counts) -> None:
        automatic = any(isinstance(step, Automatic) for step in reply.steps)
        self._reply = reply
        self._voice = voice
        self._heard = heard
        self._spoken = speak() if automatic else Spoken(chunks=[], finish="stop")
        self._output = self._reasoning = 0

    def steps(self, burst: int) -> Iterator[Step]:
        voice, left = self._voice, burst
        for step in self._reply.expanded(self._spoken.chunks):
            if not isinstance(step, list):
                yield step, ()
                continue
            told: list[Chunk] = []
            for chunk in step:
                said, tokens = voice.said(chunk)
                self._output += tokens
                self._reasoning += tokens if chunk.thought else 0
                told += said
            left = left - 1 or burst
            yield _TURN if left == burst else None, (told,)

    def last(self) -> Chunk | None:
        finish = self._spoken.finish if self._reply.finish is UNSET else self._reply.finish
        if finish is None:
            return None
        # Below chat level the automatic answer is raw text, whose thoughts do not show.
        reasoning = self._reasoning + (self._spoken.reasoning if self._voice.raw else 0)
        ending = self._voice.end(finish)
        counts = replace(self._heard, output_tokens=self._output + len(ending), reasoning_tokens=reasoning)
        return Chunk(finish=finish, counts=self._reply.counts or counts, tokens=ending)


Play = Spontaneous | Written


def _cut(chunks: list[Chunk], joined: int) -> Iterator[list[Chunk]]:
    return (chunks[at : at + joined] for at in range(0, len(chunks), joined))


class TextVoice:
    """Below chat level a chunk has only its text: thoughts are put in tags, a refusal is what was said."""

    def __init__(self, level: Level) -> None:
        self.raw = level != "chat"
        self._level = level
        self._thinking = False

    def said(self, chunk: Chunk) -> tuple[list[Chunk], int]:
        return [self._said(chunk)], tokens_of(chunk, self._level)

    def end(self, finish: Finish | None) -> tuple[int, ...]:
        return ()

    def _said(self, chunk: Chunk) -> Chunk:
        if not self.raw:
            return chunk
        if chunk.calls:
            raise EngineFailed("The fake engine makes calls at chat level only.")
        text = self._tag(chunk) + chunk.thought + chunk.text + chunk.refusal
        ids = tuple(ids_of(text)) if self._level == "tokens" else ()
        return replace(chunk, text=text, thought="", refusal="", tokens=chunk.tokens or ids)

    def _tag(self, chunk: Chunk) -> str:
        before, self._thinking = self._thinking, bool(chunk.thought) or (self._thinking and not chunk.text)
        if before == self._thinking:
            return ""
        return "<think>" if self._thinking else "</think>"
