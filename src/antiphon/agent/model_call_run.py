"""One model call: slot → chunks → parser → tool resolver → output gate → renderer, and again if the output is invalid
or has no answer.

    run = ModelCallRun(call, stream, render, render_text)
    await run.begin()       optional: until the first output, which is returned
    await run.drive(emit)   to the end, with retries
    await run.close()       to stop it before its end

Responses and the completion APIs share this class. They differ in the renderer, which turns deltas into events, and in
what follows a call: other turns of a response (`Run`), or other choices (`ChoiceGroup`).
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from sys import exception
from time import time
from typing import Any, Generic, TypeVar, get_args

from antiphon.agent.engine_stream import EngineStream, ModelCall
from antiphon.agent.output_gate import OutputRetry, RetryOutcome
from antiphon.agent.output_rules import Reason
from antiphon.agent.reasoning import ReasoningFilter
from antiphon.agent.run_tracer import CallTrace, RunTracer
from antiphon.core.deltas import Break, CallDone, Delta, Text
from antiphon.core.prompt import Chunk, FinishKind, TokenCounts
from antiphon.core.usage import set_reasoning_tokens, sum_counts
from antiphon.errors import EngineFailed, UnsupportedParameter
from antiphon.parsers.base import AnswerEnded

E = TypeVar("E")
Sink = Callable[[list[E]], Awaitable[None] | None]  # returns an awaitable if the write has to be awaited


async def emit_all(emit: Sink[E], output: list[E]) -> None:
    """Emit the output, if there is any, and wait for the write if necessary."""
    if output and (pending := emit(output)) is not None:
        await pending


CUT_FINISHES: frozenset[FinishKind | None] = frozenset({"length", "content_filter"})
_FINISH_KINDS: frozenset[FinishKind | None] = frozenset(get_args(FinishKind))
_NO_COUNTS = TokenCounts()


class ModelCallRun(Generic[E]):
    """Makes one model call, and makes it again while its output violates the rules or has no answer.

    `render` turns deltas into events, `render_text` does so for a list of nothing but text, and `note` receives the
    chunks that have more than output.
    """

    __slots__ = (
        "_gate", "_lacks_logprobs", "_note", "_notes_tokens", "_previous_counts", "_reasoning", "_render",
        "_render_text", "_retry", "_trace", "_tracer", "call", "chunk_count", "counts", "finish", "stream",
    )  # fmt: skip

    def __init__(
        self,
        call: ModelCall,
        stream: EngineStream,
        render: Callable[[Iterable[Delta]], list[E]],
        render_text: Callable[[Sequence[Text]], list[E]],
        note: Callable[[Chunk], None] | None = None,
        tracer: RunTracer | None = None,
    ) -> None:
        self.stream = stream
        self.chunk_count = 0  # of all attempts; most chunks hold one token
        self._render = render
        self._render_text = render_text
        self._note = note
        self._notes_tokens = note is not None and call.generation.sampling.return_token_ids
        self._tracer = tracer
        self._trace: CallTrace | None = None  # of the current attempt
        self._retry = None if call.retry_policy is None else OutputRetry(call.retry_policy)
        self._previous_counts: list[TokenCounts] = []  # of earlier attempts
        self._start_attempt(call)

    def _start_attempt(self, call: ModelCall) -> None:
        self.call = call  # of the current attempt
        self.finish: FinishKind | None = None
        self.counts = _NO_COUNTS  # of the current attempt
        # whether all text so far came without log probabilities; None: they are not required, or there are some
        self._lacks_logprobs = None if call.logprobs_field is None else False
        self._gate = None if self._retry is None else self._retry.gate  # None: all output passes
        self._reasoning = (  # summarises or encrypts reasoning; None: unchanged
            ReasoningFilter(call.summarise_reasoning, call.encrypt_reasoning)
            if call.summarise_reasoning or call.encrypt_reasoning is not None
            else None
        )

    @property
    def is_cut(self) -> bool:
        """Whether the model was stopped before it had finished."""
        return self.finish in CUT_FINISHES

    @property
    def attempt_counts(self) -> list[TokenCounts]:
        """Token counts of each attempt, the last one at the end."""
        return [*self._previous_counts, self.counts]

    @property
    def total_counts(self) -> TokenCounts:
        """Token counts of all attempts together."""
        return sum_counts(self.attempt_counts) if self._previous_counts else self.counts

    @property
    def retry_outcomes(self) -> Sequence[tuple[Reason, RetryOutcome]]:
        """Rule violations of the output and how each was handled."""
        return () if self._retry is None else self._retry.outcomes

    async def begin(self) -> list[E]:
        """Run until the first output and return it; empty if the model ends without any. `drive` continues."""
        try:
            with self.stream:
                feed = await self._enter_slot()
                return await self.stream.read_first(feed)
        finally:
            if (error := exception()) is not None:
                self._end_trace(error)

    async def drive(self, emit: Sink[E], opening: Callable[[], list[E]] | None = None) -> None:
        """Run to the end. `opening` returns the events to emit once the call has its slot."""
        while True:
            try:
                with self.stream:
                    feed = await self._enter_slot()
                    if opening is not None:
                        await emit_all(emit, opening())
                    await self.stream.read_all(feed, emit)
                remaining = self.end_output()
                if (retry := self._find_retry()) is None:
                    self.stream.release_slot()
                await emit_all(emit, remaining)
            finally:
                self._end_trace(exception())
            if self.finish not in _FINISH_KINDS:  # no finish reason, or an unknown one
                raise EngineFailed("The engine stopped in the middle of its answer.")
            if self._lacks_logprobs:
                raise _missing_logprobs_error(self.call)
            if retry is None or not await self._validate(retry, emit):
                return
            opening = None

    def _find_retry(self) -> OutputRetry | None:
        """Return the retry that has to validate the output; None if the output is valid."""
        return self._retry if self._gate is not None or self.call.resolver.lacks_answer else None

    async def close(self) -> None:
        """Cancel the engine's work and release the slot."""
        await self.stream.close()
        self._end_trace(None)

    async def _enter_slot(self) -> Callable[[list[Chunk]], list[E]]:
        """Wait for the slot of the model, unless the call has it. Returns the function that reads the chunks."""
        if self._tracer is not None and self._trace is None:
            self._trace = self.stream.trace = self._tracer.start_call(self.call.engine.name, self.call.generation)
        if (ticket := self.call.ticket) is not None and not ticket.running:
            await self.stream.wait_for_slot(ticket)
        if self._trace is None:
            return self.feed
        self._trace.ready_at = time()
        return self._trace.wrap_feed(self.feed)

    def feed(self, chunks: list[Chunk]) -> list[E]:
        """Token path: text that nothing has to process goes straight to the renderer."""
        deltas: list[Any] = []
        parse, note = self.call.parser.feed, self._note
        self.chunk_count += len(chunks)
        try:
            for chunk in chunks:
                deltas += parse(chunk)
                if chunk.finish is not None:
                    self.finish = chunk.finish
                if chunk.counts is not None:
                    self.counts = chunk.counts
                if note is not None and (chunk.extras is not None or (self._notes_tokens and chunk.tokens)):
                    note(chunk)
        except AnswerEnded as enough:
            self._stop(enough.final_chunk)
            if not deltas:
                raise
        if self._lacks_logprobs is not None:
            self._note_logprobs(deltas)
        for delta in deltas:
            if type(delta) is not Text:
                return self._feed_deltas(deltas)
        if self.call.rewriters or (self._reasoning is not None and self._reasoning.open):
            return self._feed_deltas(deltas)
        if self._gate is not None and not self._gate.try_pass(deltas):
            return self._feed_deltas(deltas)
        if not self.call.resolver.has_answer:
            for delta in deltas:
                self.call.resolver.note_output(delta)
        return self._render_text(deltas) if deltas else []

    def end_output(self) -> list[E]:
        """Render what the parser held back. A call that was cut stays open and becomes an incomplete item."""
        remaining: list[Delta] = []
        parser = self.call.parser
        held = parser.finish()
        self.counts = set_reasoning_tokens(self.counts, parser.reasoning_tokens)
        if self._lacks_logprobs is not None:
            self._note_logprobs(held)
        if held:
            with suppress(AnswerEnded):
                remaining += self._resolve([delta for delta in held if not (self.is_cut and type(delta) is CallDone)])
        if self._gate is None:
            remaining += self._flush()
        return self._render(remaining) if remaining else []

    def _release(self) -> list[Delta]:
        """Return what the gate held back, after validation."""
        if self._gate is None:
            return []
        remaining = [*self._postprocess(self._gate.release())]
        if self.is_cut:
            remaining += self._postprocess(self.call.resolver.take_cut_calls())
        return remaining + self._flush()

    async def _validate(self, retry: OutputRetry, emit: Sink[E]) -> bool:
        """Validate the output and emit what was held back. Returns whether another attempt follows."""
        await retry.validate(self.is_cut, self.call.resolver)
        remaining = self._release()
        if retry.violation is not None and retry.violation.reason == "no_answer":
            remaining.append(Break())  # the next attempt continues the response with items of its own
        if remaining:
            await emit_all(emit, self._render(remaining))
        if (call := await retry.prepare_retry(self.call)) is None:
            self.stream.release_slot()
            return False
        self._previous_counts.append(self.counts)
        self._start_attempt(call)
        self.stream.switch_to(call)
        return True

    def _note_logprobs(self, deltas: Iterable[Delta]) -> None:
        for delta in deltas:
            if type(delta) is Text and delta.logprobs:
                self._lacks_logprobs = None
                return
            if type(delta) is Text and delta.text:
                self._lacks_logprobs = True

    def _stop(self, last: Chunk) -> None:
        """End the output here; later output of the engine is ignored."""
        if self._note is not None and self.finish is None:
            self._note(last)
        self.finish, self.counts = last.finish, last.counts or self.counts

    def _feed_deltas(self, deltas: list[Delta]) -> list[E]:
        try:
            output = self._resolve(deltas)
        except AnswerEnded as enough:  # raised by the gate
            self._stop(enough.final_chunk)
            raise
        return self._render(output) if output else []

    def _resolve(self, deltas: list[Delta]) -> list[Delta]:
        resolved = self.call.resolver.resolve(deltas)
        return self._postprocess(resolved if self._gate is None else self._gate.feed(resolved))

    def _postprocess(self, deltas: list[Delta]) -> list[Delta]:
        deltas = self.call.resolver.gather(deltas)
        for rewriter in self.call.rewriters:
            deltas = rewriter.feed(deltas)
        return deltas if self._reasoning is None else self._reasoning.feed(deltas)

    def _flush(self) -> list[Delta]:
        """Return what the rewriters and the reasoning filter held back."""
        remaining: list[Delta] = []
        for rewriter in self.call.rewriters:
            remaining = rewriter.feed(remaining) + rewriter.finish()
        return remaining if self._reasoning is None else self._reasoning.feed(remaining) + self._reasoning.finish()

    def _end_trace(self, error: BaseException | None) -> None:
        if self._trace is not None:
            self._trace.end(self.finish, self.counts, error)
            self._trace = self.stream.trace = None


def _missing_logprobs_error(call: ModelCall) -> UnsupportedParameter:
    """Return the error for an engine that accepts the field and returns nothing for it, which no probe can reveal."""
    return UnsupportedParameter(
        f"The {call.engine.name} engine returned no log probabilities: leave out '{call.logprobs_field}'.",
        param=call.logprobs_field,
    )
