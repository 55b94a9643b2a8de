"""One call of the model: render → generate → parse → name → emit.

A Turn is fed what the engine yields and gives events; it awaits nothing itself.
"""

from collections.abc import Iterable

from antiphon.agent.declared import Declared
from antiphon.agent.thoughts import as_summary
from antiphon.core.deltas import CallDone, Delta, Text
from antiphon.core.emitter import Emitter
from antiphon.core.prompt import Chunk, Counts, Finish
from antiphon.parsers.base import Parser
from antiphon.protocol.events import Event


class Turn:
    def __init__(self, parser: Parser, declared: Declared, emitter: Emitter, summarises: bool = False) -> None:
        self._parser = parser
        self._parse = parser.feed
        self._declared = declared
        self._emitter = emitter
        self._summarises = summarises
        self.finish: Finish | None = None
        self.counts = Counts()

    def feed(self, chunks: list[Chunk]) -> list[Event]:
        deltas: list[Delta] = []
        for chunk in chunks:
            deltas += self._parse(chunk)
            if chunk.finish is not None:
                self.finish = chunk.finish
            if chunk.counts is not None:
                self.counts = chunk.counts
        for delta in deltas:
            if type(delta) is not Text:
                return self._emit(deltas)
        return self._emitter.say(deltas) if deltas else []  # type: ignore[arg-type]  # all are Text

    def end(self) -> list[Event]:
        """What the parser had held back. A call that was cut is left open, and so becomes an incomplete item."""
        held = self._parser.finish()
        if not held:
            return []
        cut = self.finish in ("length", "content_filter")
        return self._emit([delta for delta in held if not (cut and isinstance(delta, CallDone))])

    def _emit(self, deltas: Iterable[Delta]) -> list[Event]:
        if self._summarises:
            deltas = as_summary(deltas)
        return self._emitter.feed(self._declared.name(deltas))
