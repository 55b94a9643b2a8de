"""One model call: render → generate → parse → resolve → emit.

A turn is fed the chunks of the engine and returns events; it awaits nothing itself.
"""

from collections.abc import Iterable
from contextlib import suppress

from msgspec import Struct
from msgspec.structs import replace

from antiphon.agent.model_call import ModelCall
from antiphon.agent.output_gate import OutputGate
from antiphon.agent.reasoning import ReasoningFilter
from antiphon.core.deltas import CallDone, Delta, Text
from antiphon.core.emitter.emitter import Emitter
from antiphon.core.prompt import Chunk, FinishKind, TokenCounts
from antiphon.core.usage import set_reasoning_tokens
from antiphon.parsers.base import AnswerEnded
from antiphon.protocol.types.events import Event

CUT_FINISHES: frozenset[FinishKind | None] = frozenset({"length", "content_filter"})


class Turn(Struct, eq=False):
    """Turns the chunks of one model call into events."""

    call: ModelCall
    _emitter: Emitter
    _reasoning: ReasoningFilter | None = None  # summarises or encrypts reasoning; None: unchanged
    _gate: OutputGate | None = None  # None: all output passes
    finish: FinishKind | None = None
    counts: TokenCounts = TokenCounts()
    chunk_count: int = 0  # most chunks hold one token

    def feed(self, chunks: list[Chunk]) -> list[Event]:
        """Token path: text that nothing has to process goes straight to the emitter."""
        deltas: list[Delta] = []
        parser = self.call.parser
        self.chunk_count += len(chunks)
        try:
            for chunk in chunks:
                deltas += parser.feed(chunk)
                if chunk.finish is not None:
                    self.finish = chunk.finish
                if chunk.counts is not None:
                    self.counts = chunk.counts
        except AnswerEnded as enough:
            self.finish, self.counts = enough.final_chunk.finish, enough.final_chunk.counts or self.counts
            if not deltas:
                raise
        for delta in deltas:
            if type(delta) is not Text:
                return self._emit(deltas)
        if self.call.rewriter is not None or (self._reasoning is not None and self._reasoning.open):
            return self._emit(deltas)
        if self._gate is not None and not self._gate.try_pass(deltas):  # type: ignore[arg-type]  # all are Text
            return self._emit(deltas)
        return self._emitter.feed_text(deltas) if deltas else []  # type: ignore[arg-type]  # all are Text

    def end(self) -> list[Event]:
        """Emit what the parser held back. A call that was cut stays open and becomes an incomplete item."""
        remaining: list[Delta] = []
        parser = self.call.parser
        held = parser.finish()
        if reasoning := parser.reasoning_tokens:
            self.counts = set_reasoning_tokens(self.counts, reasoning)
        if held or self._gate is not None:
            with suppress(AnswerEnded):
                remaining += self._resolve(
                    [delta for delta in held if not (self.is_cut and isinstance(delta, CallDone))]
                )
        if self._gate is None and not (self.call.rewriter is None and self._reasoning is None):
            remaining += self._flush()
        return self._emitter.feed(remaining) if remaining else []

    def release(self) -> list[Event]:
        """Emit what the gate held back, after validation."""
        remaining = [*self._postprocess([] if self._gate is None else self._gate.release())]
        if self.is_cut:
            remaining += self._postprocess(self.call.resolver.take_cut_calls())
        remaining += self._flush()
        return self._emitter.feed(remaining) if remaining else []

    @property
    def is_cut(self) -> bool:
        """Whether the model was stopped before it had finished."""
        return self.finish in CUT_FINISHES

    def _emit(self, deltas: Iterable[Delta]) -> list[Event]:
        try:
            output = self._resolve(deltas)
        except AnswerEnded as enough:  # raised by the gate
            self.finish = enough.final_chunk.finish
            raise
        return self._emitter.feed(output) if output else []

    def _resolve(self, deltas: Iterable[Delta]) -> Iterable[Delta]:
        resolved = self.call.resolver.resolve(deltas)
        return self._postprocess(resolved if self._gate is None else self._gate.feed(resolved))

    def _postprocess(self, deltas: Iterable[Delta]) -> Iterable[Delta]:
        deltas = self.call.resolver.gather(deltas)
        if self.call.rewriter is not None:
            deltas = self.call.rewriter.feed([*deltas])
        return deltas if self._reasoning is None else self._reasoning.feed(deltas)

    def _flush(self) -> list[Delta]:
        """Return what the rewriter and the reasoning filter held back."""
        remaining: list[Delta] = [] if self.call.rewriter is None else self.call.rewriter.finish()
        return remaining if self._reasoning is None else self._reasoning.feed(remaining) + self._reasoning.finish()


class WarmupTurn:
    """A model call that only processes the prompt; its output is discarded."""

    def __init__(self) -> None:
        self.counts = TokenCounts()

    def feed(self, chunks: list[Chunk]) -> list[Event]:
        for chunk in chunks:
            if chunk.counts is not None:
                self.counts = replace(chunk.counts, output_tokens=0, reasoning_tokens=0)
        return []
