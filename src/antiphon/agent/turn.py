"""One call of the model: render → generate → parse → name → emit.

A Turn is fed what the engine yields and gives events; it awaits nothing itself.
"""

from collections.abc import Iterable
from contextlib import suppress

from msgspec import Struct
from msgspec.structs import replace

from antiphon.agent.model_call import Plan
from antiphon.agent.output_gate import Sieve
from antiphon.agent.reasoning import Thoughts
from antiphon.core.deltas import CallDone, Delta, Text
from antiphon.core.emitter.emitter import Emitter
from antiphon.core.prompt import Chunk, Counts, Finish
from antiphon.core.usage import counted
from antiphon.parsers.base import Enough
from antiphon.protocol.types.events import Event

CUT: frozenset[Finish | None] = frozenset({"length", "content_filter"})


class Turn(Struct, eq=False):
    plan: Plan
    _emitter: Emitter
    _thoughts: Thoughts | None = None  # what has to be done about reasoning; None: it goes out as it is
    _sieve: Sieve | None = None  # None: all that is said is told
    finish: Finish | None = None
    counts: Counts = Counts()
    heard: int = 0  # chunks: mostly a token each

    def feed(self, chunks: list[Chunk]) -> list[Event]:
        deltas: list[Delta] = []
        parser = self.plan.parser
        self.heard += len(chunks)
        try:
            for chunk in chunks:
                deltas += parser.feed(chunk)
                if chunk.finish is not None:
                    self.finish = chunk.finish
                if chunk.counts is not None:
                    self.counts = chunk.counts
        except Enough as enough:
            self.finish, self.counts = enough.last.finish, enough.last.counts or self.counts
            if not deltas:
                raise
        for delta in deltas:
            if type(delta) is not Text:
                return self._emit(deltas)
        if self.plan.rewriter is not None or (self._thoughts is not None and self._thoughts.open):
            return self._emit(deltas)
        if self._sieve is not None and not self._sieve.passes(deltas):  # type: ignore[arg-type]  # all are Text
            return self._emit(deltas)
        return self._emitter.say(deltas) if deltas else []  # type: ignore[arg-type]  # all are Text

    def end(self) -> list[Event]:
        """What the parser had held back. A call that was cut is left open, and so becomes an incomplete item."""
        rest: list[Delta] = []
        parser = self.plan.parser
        held = parser.finish()
        if reasoning := parser.reasoning_tokens:
            self.counts = counted(self.counts, reasoning)
        if held or self._sieve is not None:
            with suppress(Enough):
                rest += self._ready([delta for delta in held if not (self.cut and isinstance(delta, CallDone))])
        if self._sieve is None and not (self.plan.rewriter is None and self._thoughts is None):
            rest += self._last()
        return self._emitter.feed(rest) if rest else []

    def release(self) -> list[Event]:
        """What the sieve had held back, once it is judged."""
        rest = [*self._passed([] if self._sieve is None else self._sieve.release())]
        if self.cut:
            rest += self._passed(self.plan.declared.cut_short())
        rest += self._last()
        return self._emitter.feed(rest) if rest else []

    @property
    def cut(self) -> bool:
        """It had more to say."""
        return self.finish in CUT

    def _emit(self, deltas: Iterable[Delta]) -> list[Event]:
        try:
            ready = self._ready(deltas)
        except Enough as enough:  # the sieve has
            self.finish = enough.last.finish
            raise
        return self._emitter.feed(ready) if ready else []

    def _ready(self, deltas: Iterable[Delta]) -> Iterable[Delta]:
        named = self.plan.declared.name(deltas)
        return self._passed(named if self._sieve is None else self._sieve.feed(named))

    def _passed(self, deltas: Iterable[Delta]) -> Iterable[Delta]:
        deltas = self.plan.declared.gather(deltas)
        if self.plan.rewriter is not None:
            deltas = self.plan.rewriter.feed([*deltas])
        return deltas if self._thoughts is None else self._thoughts.feed(deltas)

    def _last(self) -> list[Delta]:
        """What was held back on the way out."""
        rest: list[Delta] = [] if self.plan.rewriter is None else self.plan.rewriter.finish()
        return rest if self._thoughts is None else self._thoughts.feed(rest) + self._thoughts.finish()


class Warming:
    """A call of the model for the sake of its prompt alone."""

    def __init__(self) -> None:
        self.counts = Counts()

    def feed(self, chunks: list[Chunk]) -> list[Event]:
        for chunk in chunks:
            if chunk.counts is not None:
                self.counts = replace(chunk.counts, output_tokens=0, reasoning_tokens=0)
        return []
