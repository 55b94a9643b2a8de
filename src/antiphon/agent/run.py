"""The life of one response: from `response.created` to exactly one terminal event, always the last.

A run has one driver, which awaits `drive` and receives every event, or only reads the final state. Writes are awaited,
so a slow reader slows the engine down. A driver whose client disconnects is cancelled and then calls `cancel`. The
terminal event of a stored response is emitted only after the end is stored.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from time import time
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from antiphon.agent.choices import ChoiceCollector, ExtraChoices
from antiphon.agent.engine_stream import EngineStream, ModelCall, catch_errors
from antiphon.agent.model_call_run import ModelCallRun, Sink, emit_all
from antiphon.agent.moderation import ContentBlocked, ModeratedOutput, RunModeration
from antiphon.agent.output_gate import RetryOutcome
from antiphon.agent.output_rules import Reason
from antiphon.agent.reasoning_summaries import ReasoningSummariser
from antiphon.agent.recovery import Checkpoint
from antiphon.agent.tool_loop import ToolLoop, ToolLoopLimits, TurnPolicy
from antiphon.core.deltas import Delta
from antiphon.core.emitter.emitter import Emitter, EventLog
from antiphon.core.emitter.fold import ResponseEnding
from antiphon.core.prompt import FinishKind, TokenCounts
from antiphon.core.usage import sum_counts, usage_from_counts
from antiphon.errors import AntiphonError
from antiphon.protocol.types.events import Event
from antiphon.protocol.types.response import Response

T = TypeVar("T")
EventSink = Sink[Event]

_ENDINGS: dict[FinishKind | None, ResponseEnding] = {
    "stop": ResponseEnding(status="completed"),
    "tool_calls": ResponseEnding(status="completed"),
    "length": ResponseEnding(status="incomplete", reason="max_output_tokens"),
    "content_filter": ResponseEnding(status="incomplete", reason="content_filter"),
}
_WARMUP_ENDING = ResponseEnding(status="completed", allow_empty=True)
_NO_COUNTS = TokenCounts()


class Steered(AntiphonError):
    """Not a failure: the run ends because a steered successor replaces it."""


class CancelledByClient(AntiphonError):
    """Not a failure: the client cancels the run while it reads the events."""


_CLIENT_ENDINGS: dict[type[AntiphonError], ResponseEnding] = {
    Steered: ResponseEnding(status="incomplete", reason="steered"),
    CancelledByClient: ResponseEnding(status="cancelled"),
}


class MultiTurn(Struct, frozen=True, kw_only=True):
    """Policy, limits and checkpoint of a run that continues after its first turn."""

    policy: TurnPolicy
    limits: ToolLoopLimits = ToolLoopLimits()
    checkpoint: Checkpoint | None = None  # of another server that started the response; None: it starts here


class Run:
    """One response while it is generated.

    `store_end` writes how it ended; if that raises, the run ends with that error instead.
    """

    def __init__(
        self,
        call: ModelCall,
        emitter: Emitter,
        on_end: Callable[["Run"], None],
        store_end: "StoreEnd | None" = None,
        strategy: MultiTurn | ExtraChoices | None = None,
    ) -> None:
        self._call = call
        self._emitter = emitter
        self._on_end = on_end
        self.store_end = store_end
        self._strategy = strategy
        self._turn_counts: list[TokenCounts] = []
        self._summary_counts: list[TokenCounts] = []  # of calls that summarised reasoning
        self._tracer = None if call.new_tracer is None else call.new_tracer(emitter.response.id)
        self._moderation = None if call.moderation is None else RunModeration(call.moderation)
        self.stream = EngineStream(call)
        # rule violations of the output and how each was handled
        self.retry_outcomes: list[tuple[Reason, RetryOutcome]] = []
        self.tool_outcomes: Sequence[tuple[str, str, float]] = ()  # kind, outcome and seconds of each tool call
        self.wait_written: Callable[[], Awaitable[None]] | None = None  # waits until all emitted events are durable
        self.error: AntiphonError | None = None
        self.ending = _ENDINGS["stop"]  # valid once the run has ended
        self.counts = _NO_COUNTS  # sum of all turns, valid once the run has ended
        self.chunk_count = 0  # of all turns
        self.started_at = time()
        self.ended_at: float | None = None

    @property
    def response(self) -> Response:
        return self._emitter.response

    @property
    def log(self) -> EventLog:
        """The log so far; empty for a run that is not stored."""
        return [] if self._emitter.log is None else self._emitter.log

    @property
    def status(self) -> str:
        return self.ending.status

    @property
    def first_at(self) -> float | None:
        """The time at which the first output arrived; None for an unstreamed response."""
        return self.stream.first_at

    @property
    def waits(self) -> bool:
        """Whether the run is waiting for the engine or for a slot of the model."""
        return self.stream.wait_number > 0

    async def drive(self, emit: EventSink | None) -> None:
        """Run to the end and emit every event, in lists: events that occur together are emitted together.

        None as `emit`: no events are needed before the end, and work that only serves events is skipped.
        """
        if emit is None:
            self._emitter.suppress_events = True
            emit = _discard_events
        name = self._emitter.last_response.id
        if (error := await catch_errors(self._execute(emit), name)) is not None:
            self._fail(error)
        events = self._finish(self.ending)
        try:
            if self.store_end is not None:
                store_error = await catch_errors(self.store_end(self), name)
                if store_error is not None and self.error is None:  # a failed run stays failed, stored or not
                    self._fail(store_error)
                    events = self._emitter.replace_end(store_error, int(time()))
        finally:
            self._on_end(self)
        await emit_all(emit, events)

    def cancel(self) -> list[Event]:
        """End a run whose driver was cancelled. Returns no events if it had already ended."""
        if self.ended_at is not None:
            return []
        events = self._finish(ResponseEnding(status="cancelled"))
        self._on_end(self)
        return events

    def interrupt(self, error: AntiphonError) -> None:
        """End the run at once with this error; its driver still receives the terminal event."""
        self.stream.abort(error)

    def abandon(self, status: str) -> None:
        """End the trace of a run that does not end here: another server takes it over, or it is lost."""
        if self._tracer is not None:
            self._tracer.end(status, self.response.model, sum_counts(self._turn_counts))

    def steer(self) -> bool:
        """Stop the run so that a steered successor can replace it.

        Returns False while a tool call is open or if the run has several turns or choices; then it continues.
        """
        if self._strategy is not None or self._emitter.has_client_calls:
            return False
        self.interrupt(Steered("The response was steered."))
        return True

    def stop(self) -> None:
        """End the run as cancelled; its driver still receives the terminal event."""
        self.interrupt(CancelledByClient("The response was cancelled."))

    def _fail(self, error: AntiphonError) -> None:
        if (ending := _CLIENT_ENDINGS.get(type(error))) is not None:
            self.ending = ending
        elif isinstance(error, ContentBlocked):
            self.ending = _ENDINGS["content_filter"]
        else:
            self.error, self.ending = error, ResponseEnding(status="failed", error=error)

    async def _execute(self, emit: EventSink) -> None:
        strategy = self._strategy
        if not isinstance(strategy, MultiTurn) or strategy.checkpoint is None:
            await emit_all(emit, self._emitter.emit_created())
        if self._moderation is not None:
            await self._await_between_turns(self._moderation.check_input())
        if isinstance(strategy, MultiTurn):
            await self._run_turns(strategy, emit)
        elif isinstance(strategy, ExtraChoices):
            await self._run_choices(strategy, emit)
        elif self._call.is_warmup:
            await self._run_warmup(emit)
        else:
            await self._run_call(self._call, emit, is_first=True)

    async def _run_call(self, call: ModelCall, emit: EventSink, is_first: bool = False) -> ModelCall:
        """Call the model. Returns the call of the last attempt. `is_first`: the response starts with this call."""
        emitter = self._emitter
        output = None if self._moderation is None else ModeratedOutput(self._moderation, emitter.feed)
        render, render_text = (emitter.feed, emitter.feed_text) if output is None else (output.feed, output.feed)
        summariser = None if call.write_summary is None else ReasoningSummariser(call.write_summary, render, emit)
        if summariser is not None:
            emit, render, render_text = summariser.emit, summariser.feed, summariser.feed
        model_run = ModelCallRun(call, self.stream, render, render_text, tracer=self._tracer)
        try:
            await model_run.drive(emit, emitter.emit_in_progress if is_first else None)
            if summariser is not None:
                await self._await_between_turns(summariser.finish())
            if output is not None:
                await self._emit_judged(output, emit)
        finally:
            if summariser is not None:
                await summariser.close()
                self._summary_counts += summariser.counts
            self._turn_counts += model_run.attempt_counts
            self.chunk_count += model_run.chunk_count
            self.retry_outcomes += model_run.retry_outcomes
        self.ending = _ENDINGS[model_run.finish]
        return model_run.call

    async def _run_warmup(self, emit: EventSink) -> None:
        """Let the engine process the prompt and discard its output."""
        model_run = ModelCallRun(self._call, self.stream, _discard_deltas, _discard_deltas, tracer=self._tracer)
        await model_run.drive(emit, self._emitter.emit_in_progress)
        self._turn_counts.append(replace(model_run.counts, output_tokens=0, reasoning_tokens=0))
        self.ending = _WARMUP_ENDING

    async def _run_choices(self, extra: ExtraChoices, emit: EventSink) -> None:
        """Run all choices. One choice that was cut makes the response incomplete."""
        await emit_all(emit, self._emitter.emit_in_progress())
        collector = ChoiceCollector((self._call, *extra.others), self._tracer)
        group = collector.group
        try:
            with self.stream, self.stream.suspend_idle_timeout():
                await collector.run()
        finally:
            self._turn_counts.append(group.counts)
            self.chunk_count += group.chunk_count
            self.retry_outcomes += group.retry_outcomes
        deltas = collector.to_deltas(extra.hide_logprobs)
        output = None if self._moderation is None else ModeratedOutput(self._moderation, self._emitter.feed)
        events = self._emitter.feed(deltas) if output is None else output.feed(deltas)
        await emit_all(emit, events)
        if output is not None:
            await self._emit_judged(output, emit)
        endings = [_ENDINGS[choice.finish] for choice in group.choices]
        self.ending = next((ending for ending in endings if ending.status != "completed"), endings[0])

    async def _run_turns(self, multi_turn: MultiTurn, emit: EventSink) -> None:
        policy, limits, emitter = multi_turn.policy, multi_turn.limits, self._emitter
        slots = asyncio.Semaphore(limits.max_parallel)
        loop = ToolLoop(policy, limits, emitter, emit, self._turn_counts, self.wait_written, self._tracer, slots)
        self.tool_outcomes = loop.tool_outcomes
        try:
            call = await self._begin_turns(loop, multi_turn.checkpoint, emit)
            while call is not None:
                self.stream.switch_to(call)
                call = await self._run_call(call, emit)
                if self.ending.status != "completed":  # a call that was cut is never run
                    return
                self.stream.release_slot()
                call = await self._await_between_turns(loop.finish_turn(call))
            if loop.out_of_tokens:
                self.ending = _ENDINGS["length"]
        finally:
            await loop.close()

    async def _begin_turns(self, loop: ToolLoop, checkpoint: Checkpoint | None, emit: EventSink) -> ModelCall | None:
        if checkpoint is not None:
            return await self._await_between_turns(loop.resume(checkpoint))
        await emit_all(emit, self._emitter.emit_in_progress())
        if loop.has_prelude:
            self.stream.release_slot()  # other requests may use the slot meanwhile
        return await self._await_between_turns(loop.begin(self._call))

    async def _emit_judged(self, output: ModeratedOutput[Event], emit: EventSink) -> None:
        """Judge the output of a model call and emit what was held back. Raises ContentBlocked."""
        await emit_all(emit, await self._await_between_turns(output.finish()))

    async def _await_between_turns(self, work: Awaitable[T]) -> T:
        """Await work between two turns; it counts towards the total timeout of the run."""
        with self.stream, self.stream.suspend_idle_timeout():
            return await work

    def _finish(self, ending: ResponseEnding) -> list[Event]:
        turn_counts, summary_counts = self._turn_counts, self._summary_counts
        if self._moderation is not None:
            ending = replace(ending, moderation=self._moderation.to_response())
        self.ending, self.ended_at = ending, time()
        is_single = len(turn_counts) == 1 and not summary_counts
        self.counts = turn_counts[0] if is_single else sum_counts([*turn_counts, *summary_counts])
        self.stream.release_slot()
        # engines do not count the tokens of interrupted calls
        has_usage = ending.status == "completed" or self.counts != _NO_COUNTS
        usage = usage_from_counts(turn_counts, summary_counts) if has_usage else None
        events = self._emitter.finish(ending, usage, int(self.ended_at))
        if self._tracer is not None:
            self._tracer.end(ending.status, self.response.model, self.counts, ending.error)
        return events


StoreEnd = Callable[[Run], Awaitable[None]]


def _discard_events(events: list[Event]) -> None:
    """No-op event sink."""


def _discard_deltas(deltas: Iterable[Delta]) -> list[Event]:
    """Renderer without output."""
    return []
