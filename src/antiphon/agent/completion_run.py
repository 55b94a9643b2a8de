"""A request of another API (chat completions, completions, Anthropic messages): no events, no log, no store.

    run = CompletionRun(calls, dialect, on_end)   one model call for each choice
    await run.begin()          until the first output; earlier failures are raised and become plain error responses
    await run.drive(emit)      emits all output in lists; a failure is emitted too, as the last element
    await run.result()         or, instead of both: returns the JSON body and raises any failure
    await run.close()          always: closing before the end cancels the run

The output is rendered by a dialect (core/dialects/dialect.py). A single choice is read by the driver itself. Several
choices run concurrently, each in a task that `close` waits for, and the first failure ends them all. `interrupt` ends a
run at once; its driver still receives the end.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from time import time
from typing import Literal, get_args

from msgspec import Struct

from antiphon.agent.engine_stream import EngineStream, catch_errors
from antiphon.agent.model_call import ModelCall
from antiphon.agent.output_retry import OutputRetry, RetryOutcome, make_retry
from antiphon.agent.output_rules import Reason
from antiphon.agent.run_tracer import CallTrace, RunOutcome, RunTracer
from antiphon.agent.turn import CUT_FINISHES
from antiphon.core.deltas import CallDone, Delta
from antiphon.core.dialects.dialect import ChoiceEmitter, Dialect, WireEvents
from antiphon.core.prompt import Chunk, FinishKind, TokenCounts
from antiphon.core.usage import set_reasoning_tokens, sum_counts
from antiphon.errors import AntiphonError, EngineFailed
from antiphon.parsers.base import AnswerEnded

OutputSink = Callable[[WireEvents], Awaitable[None] | None]
Status = Literal["in_progress", "completed", "incomplete", "failed", "cancelled"]

ErrorMapper = Callable[[AntiphonError], AntiphonError]  # translates an error into the terms of the API

_FINISH_REASONS: frozenset[str | None] = frozenset(get_args(FinishKind))
_LOG_NAME = "a completion run"  # in logs


class CompletionRun:
    """One request of another API with one or more choices."""

    def __init__(
        self,
        calls: Sequence[ModelCall],
        dialect: Dialect,
        on_end: Callable[["CompletionRun"], None],
        error_mapper: ErrorMapper | None = None,
    ) -> None:
        self._dialect = dialect
        self._error_mapper = error_mapper
        self._tracer = None if (new_tracer := calls[0].new_tracer) is None else new_tracer("")
        self._choices = [ChoiceRun(call, dialect, number, self._tracer) for number, call in enumerate(calls)]
        self._group = None if len(calls) == 1 else ChoiceGroup(self._choices)
        self._on_end = on_end
        self._first_output: WireEvents | None = None  # output that `begin` produced and `drive` emits first
        self.error: AntiphonError | None = None
        self.status: Status = "in_progress"
        self.started_at = time()
        self.ended_at: float | None = None

    @property
    def waits(self) -> bool:
        """Whether the run is waiting for the engine or for a slot of the model."""
        return any(choice.stream.wait_number > 0 for choice in self._choices)

    @property
    def first_at(self) -> float | None:
        return min((at for choice in self._choices if (at := choice.stream.first_at) is not None), default=None)

    @property
    def counts(self) -> TokenCounts:
        return sum_choice_counts(self._choices)

    @property
    def chunk_count(self) -> int:
        """Chunks of all choices; most chunks hold one token."""
        return sum([choice.chunk_count for choice in self._choices])

    @property
    def retry_outcomes(self) -> Sequence[tuple[Reason, RetryOutcome]]:
        return [outcome for choice in self._choices for outcome in choice.retry_outcomes]

    async def begin(self) -> None:
        """Run until the first output. Raises the error if the run fails before that."""
        self.error = self._map_error(await catch_errors(self._begin(), _LOG_NAME))
        if self.error is not None:
            raise self.error

    async def drive(self, emit: OutputSink) -> None:
        """Run to the end. An error that `begin` raised is emitted here, for callers whose stream is already open."""
        if self.error is None:
            self.error = self._map_error(await catch_errors(self._drive(emit), _LOG_NAME))
        output = self._dialect.close(self.counts) if self.error is None else self._dialect.fail(self.error)
        self._finish(self._final_status())
        if output and (pending := emit(output)) is not None:
            await pending

    async def result(self) -> Struct:
        await self.begin()
        await self.drive(self._dialect.fold_events)
        if self.error is not None:
            raise self.error
        return self._dialect.result()

    async def close(self) -> None:
        """Stop all engine work of this run."""
        if self._group is not None:
            await self._group.close()
        else:
            await self._choices[0].stream.close()
        self._finish("failed" if self.error is not None else "cancelled")

    def interrupt(self, error: AntiphonError) -> None:
        for choice in self._choices:
            choice.stream.abort(error)

    def _map_error(self, error: AntiphonError | None) -> AntiphonError | None:
        return error if error is None or self._error_mapper is None else self._error_mapper(error)

    async def _begin(self) -> None:
        output = self._dialect.begin()
        if self._group is not None:
            await self._group.begin()
        else:
            output += await self._choices[0].read_first()
        self._first_output = output

    async def _drive(self, emit: OutputSink) -> None:
        if self._first_output is None:
            await self._begin()
        if self._first_output and (pending := emit(self._first_output)) is not None:
            await pending
        if self._group is not None:
            await self._group.drive(emit)
            return
        await self._choices[0].drive(emit)

    def _final_status(self) -> Status:
        if self.error is not None:
            return "failed"
        return "incomplete" if any(choice.finish in CUT_FINISHES for choice in self._choices) else "completed"

    def _finish(self, status: Status) -> None:
        """Record the end. Only the first call counts."""
        if self.ended_at is None:
            self.ended_at = time()
            self.status = status
            if self._tracer is not None:
                self._end_trace(self._tracer)
            self._on_end(self)

    def _end_trace(self, tracer: RunTracer) -> None:
        for choice in self._choices:
            choice.end_trace(self.error)
        code = "" if self.error is None else self.error.code or ""
        model = self._choices[0].call.generation.model
        tracer.end(RunOutcome(status=self.status, error=code, model=model, counts=self.counts))


class ChoiceRun:
    """One choice: the output of one model call, rendered by the dialect."""

    def __init__(self, call: ModelCall, dialect: ChoiceEmitter, choice: int, tracer: RunTracer | None = None) -> None:
        self.call = call
        self._tracer = tracer
        self._trace: CallTrace | None = None  # of the current attempt
        self.stream = EngineStream(call)
        self._retry = make_retry(call)
        self._current_call = call  # of the current attempt
        self._previous_counts: list[TokenCounts] = []  # of earlier attempts
        self.finish: FinishKind | None = None
        self.chunk_count = 0
        self._counts = TokenCounts()
        self._parse = call.parser.feed
        self._resolve = call.resolver.resolve
        self._render = dialect.feed
        self._dialect = dialect
        self._reports_tokens = call.generation.sampling.return_token_ids
        self._choice = choice

    @property
    def counts(self) -> TokenCounts:
        """Token counts of all attempts together."""
        return sum_counts([*self._previous_counts, self._counts]) if self._previous_counts else self._counts

    @property
    def retry_outcomes(self) -> Sequence[tuple[Reason, RetryOutcome]]:
        """Rule violations of the output and how each was handled."""
        return () if self._retry is None else self._retry.outcomes

    async def read_first(self) -> WireEvents:
        if self._tracer is not None:
            self._start_trace(self._tracer)
        with self.stream:
            if (ticket := self._current_call.ticket) is not None and not ticket.running:
                await self.stream.wait_for_slot(ticket)
            return await self.stream.read_first(self.feed if self._trace is None else self._traced_feed())

    async def run(self, emit: OutputSink) -> None:
        """Run the choice from start to end in its own task."""
        if self._tracer is not None:
            self._start_trace(self._tracer)
        with self.stream:
            if (ticket := self._current_call.ticket) is not None and not ticket.running:
                await self.stream.wait_for_slot(ticket)
        await self.drive(emit)

    async def drive(self, emit: OutputSink) -> None:
        """Run to the end from the current position, with retries if the output violates the rules."""
        again = True
        while again:
            with self.stream:
                await self.stream.read_all(self.feed if self._trace is None else self._traced_feed(), emit)
            if self._retry is None:
                again = False
                self.stream.release_slot()
            if (remaining := self._flush()) and (pending := emit(remaining)) is not None:
                await pending
            if self._retry is not None:
                again = await self._validate(self._retry, emit)
        if (ending := self._render_end()) and (pending := emit(ending)) is not None:
            await pending

    def feed(self, chunks: list[Chunk]) -> WireEvents:
        deltas: list[Delta] = []
        self.chunk_count += len(chunks)
        try:
            for chunk in chunks:
                deltas += self._parse(chunk)
                if chunk.finish is not None:
                    self.finish = chunk.finish
                if chunk.counts is not None:
                    self._counts = chunk.counts
                if chunk.extras is not None or (self._reports_tokens and chunk.tokens):
                    self._dialect.note(chunk, self._choice)
        except AnswerEnded as enough:
            self._stop(enough.final_chunk)
            if not deltas:
                raise
        return self._render_deltas(deltas) if deltas else []

    def _stop(self, last: Chunk) -> None:
        """End the choice here; later output of the engine is ignored."""
        if self.finish is None:
            self._dialect.note(last, self._choice)
        self.finish, self._counts = last.finish, last.counts or self._counts

    async def _validate(self, retry: OutputRetry, emit: OutputSink) -> bool:
        """Validate the output and emit what was held. Returns whether another attempt follows."""
        await retry.validate(self.finish in CUT_FINISHES)
        if (held := retry.gate.release()) and (pending := emit(self._render(held, self._choice))) is not None:
            await pending
        if (call := await retry.prepare_retry(self._current_call)) is None:
            self.stream.release_slot()
            return False
        self._previous_counts.append(self._counts)
        self._start_retry(call)
        return True

    def _start_retry(self, call: ModelCall) -> None:
        self.end_trace()
        self._current_call = call
        self._parse, self._resolve = call.parser.feed, call.resolver.resolve
        self.finish, self._counts = None, TokenCounts()
        self.stream.switch_to(call)
        if self._tracer is not None:
            self._start_trace(self._tracer)

    def _start_trace(self, tracer: RunTracer) -> None:
        self._trace = tracer.start_call(self._current_call.engine.name, self._current_call.generation)

    def _traced_feed(self) -> Callable[[list[Chunk]], WireEvents]:
        assert self._trace is not None
        return self._trace.wrap_feed(self.feed)

    def end_trace(self, error: BaseException | None = None) -> None:
        """End the trace of the current model call."""
        if self._trace is not None:
            self._trace.end(self.finish, self._counts, error)
            self._trace = None

    def _flush(self) -> WireEvents:
        """Render what the parser held back. A call that was cut stays open."""
        held = [*self._current_call.parser.finish()]
        self._counts = set_reasoning_tokens(self._counts, self._current_call.parser.reasoning_tokens)
        if self.finish in CUT_FINISHES:
            held = [delta for delta in held if type(delta) is not CallDone]
        output: WireEvents = []
        with suppress(AnswerEnded):
            output = self._render_deltas(held) if held else []
        if self.finish is None or self.finish not in _FINISH_REASONS:
            raise EngineFailed("The engine stopped in the middle of its answer.")
        return output

    def _render_end(self) -> WireEvents:
        assert self.finish is not None
        return self._dialect.end(self.finish, self.counts, self._choice)

    def _render_deltas(self, deltas: list[Delta]) -> WireEvents:
        if self._retry is None:
            return self._render(self._resolve(deltas), self._choice)
        try:
            passed = self._retry.gate.feed(self._resolve(deltas))
        except AnswerEnded as enough:
            self._stop(enough.final_chunk)
            raise
        return self._render(passed, self._choice) if passed else []


def sum_choice_counts(choices: Sequence[ChoiceRun]) -> TokenCounts:
    """Add up the token counts of all choices. A prompt that several choices share counts once, as for the first of
    them.
    """
    prompts = {id(choice.call.generation.prompt): choice.counts for choice in reversed(choices)}.values()
    return TokenCounts(
        input_tokens=sum([counts.input_tokens for counts in prompts]),
        cached_tokens=sum([counts.cached_tokens for counts in prompts]),
        output_tokens=sum([choice.counts.output_tokens for choice in choices]),
        reasoning_tokens=sum([choice.counts.reasoning_tokens for choice in choices]),
    )


class ChoiceGroup:
    """Runs several choices concurrently. Their output is held until a sink is attached, then all write to that sink."""

    def __init__(self, choices: Sequence[ChoiceRun]) -> None:
        self._choices = choices
        self._tasks: list[asyncio.Task[None]] = []
        self._emit: OutputSink | None = None
        self._held: WireEvents = []  # output that waits for a sink, one list per choice
        self._started = asyncio.Event()
        self._sink_ready = asyncio.Event()

    async def begin(self) -> None:
        """Start all choices and wait until one of them has output or fails."""
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(choice.run(self._forward)) for choice in self._choices]
        for task in self._tasks:
            task.add_done_callback(lambda _: self._started.set())
        await self._started.wait()
        await self._raise_failure()

    async def drive(self, emit: OutputSink) -> None:
        """Run until all choices have ended or the first one fails."""
        self._emit, held = emit, self._held
        if held and (pending := emit(held)) is not None:
            await pending
        self._sink_ready.set()
        await asyncio.wait(self._tasks, return_when=asyncio.FIRST_EXCEPTION)
        await self._raise_failure()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for choice in self._choices:
            await choice.stream.close()

    def _forward(self, output: WireEvents) -> Awaitable[None] | None:
        if self._emit is not None:
            return self._emit(output)
        self._held += output
        self._started.set()
        return self._wait_for_sink()

    async def _wait_for_sink(self) -> None:
        await self._sink_ready.wait()

    async def _raise_failure(self) -> None:
        failed = [task for task in self._tasks if task.done() and not task.cancelled() and task.exception()]
        if failed:
            await self.close()
            failed[0].result()
