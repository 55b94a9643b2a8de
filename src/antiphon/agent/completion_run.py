"""A request of another API (chat completions, completions, Anthropic messages): no events, no log, no store.

    run = CompletionRun(calls, dialect, on_end)   one model call for each choice
    await run.begin()          until the first output; earlier failures are raised and become plain error responses
    await run.drive(emit)      emits all output in lists; a failure is emitted too, as the last element
    await run.result()         or, instead of both: returns the JSON body and raises any failure (`fold`: as an object)
    await run.close()          always: closing before the end cancels the run

The output is rendered by a dialect (core/dialects/dialect.py). `interrupt` ends a run at once; its driver still
receives the end.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from time import time
from typing import Literal

from msgspec import Struct

from antiphon.agent.choices import ChoiceGroup
from antiphon.agent.engine_stream import EngineStream, ModelCall, catch_errors
from antiphon.agent.model_call_run import ModelCallRun, Sink, emit_all
from antiphon.agent.moderation import ContentBlocked, ModeratedOutput, RunModeration
from antiphon.core.deltas import Delta
from antiphon.core.dialects.dialect import Dialect, PlainTextResult, WireEvents
from antiphon.core.prompt import Chunk
from antiphon.errors import AntiphonError
from antiphon.protocol.decoding.codec import encode

Status = Literal["in_progress", "completed", "incomplete", "failed", "cancelled"]

ErrorMapper = Callable[[AntiphonError], AntiphonError]  # translates an error into the terms of the API

_LOG_NAME = "a completion run"  # in logs


class CompletionRun(ChoiceGroup[Struct]):
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
        self.model = calls[0].generation.model
        self._tracer = None if (new_tracer := calls[0].new_tracer) is None else new_tracer("")
        self._moderation = None if calls[0].moderation is None else RunModeration(calls[0].moderation)
        self._outputs: dict[int, ModeratedOutput[Struct]] = {}  # of each choice, if they are moderated
        self._is_blocked = False  # the input was flagged, and no model is called
        choices = [self._make_choice(call, number) for number, call in enumerate(calls)]
        super().__init__(choices, partial(_render_end, dialect))
        self._on_end = on_end
        self._first_output: WireEvents | None = None  # output that `begin` produced and `drive` emits first
        self.tool_outcomes = ()  # no tools are run for these APIs
        self.error: AntiphonError | None = None
        self.status: Status = "in_progress"
        self.started_at = time()
        self.ended_at: float | None = None

    async def begin(self) -> None:
        """Run until the first output. Raises the error if the run fails before that."""
        self.error = self._map_error(await catch_errors(self._begin(), _LOG_NAME))
        if self.error is not None:
            raise self.error

    async def drive(self, emit: Sink[Struct]) -> None:
        """Run to the end. An error that `begin` raised is emitted here, for callers whose stream is already open."""
        if self.error is None:
            self.error = self._map_error(await catch_errors(self._drive(emit), _LOG_NAME))
        if self._moderation is not None:
            self._dialect.moderation = self._moderation.to_chat()
        output = self._dialect.close(self.counts) if self.error is None else self._dialect.fail(self.error)
        self._finish("failed" if self.error is not None else "incomplete" if self.is_cut else "completed")
        await emit_all(emit, output)

    async def result(self) -> bytes:
        """Return the JSON body. Raises the error if the run fails."""
        return encode(await self.fold())

    async def fold(self) -> Struct:
        """Run to the end and return the fold of the output. Raises the error if the run fails."""
        await self.drive(self._dialect.fold_events)
        if self.error is not None:
            raise self.error
        return self._dialect.result()

    async def fold_text(self) -> PlainTextResult:
        """Run to the end, close the run, and return its text: for a run without a client, with a PlainTextEmitter."""
        try:
            result = await self.fold()
        finally:
            await self.close()
        assert isinstance(result, PlainTextResult)
        return result

    async def close(self) -> None:
        """Stop all engine work of this run."""
        await self.stop()
        self._finish("failed" if self.error is not None else "cancelled")

    def interrupt(self, error: AntiphonError) -> None:
        for choice in self.choices:
            choice.stream.abort(error)

    def _map_error(self, error: AntiphonError | None) -> AntiphonError | None:
        return error if error is None or self._error_mapper is None else self._error_mapper(error)

    async def _begin(self) -> None:
        if self._moderation is not None:
            try:
                await self._moderation.check_input()
            except ContentBlocked:
                self._is_blocked = True
                self._first_output = self._dialect.begin()
                return
        self._first_output = self._dialect.begin() + await self.start()

    async def _drive(self, emit: Sink[Struct]) -> None:
        if self._first_output is None:
            await self._begin()
        await emit_all(emit, self._first_output or [])
        if not self._is_blocked:
            await self.run_all(emit)
            return
        for number, choice in enumerate(self.choices):
            choice.finish = "content_filter"
            await emit_all(emit, _render_end(self._dialect, choice, number))

    async def _drive_choice(self, number: int, emit: Sink[Struct]) -> None:
        await super()._drive_choice(number, emit)
        if (moderated := self._outputs.get(number)) is None:
            return
        try:
            output = await moderated.finish()
        except ContentBlocked:
            self.choices[number].finish = "content_filter"
        else:
            await emit_all(emit, output)

    def _make_choice(self, call: ModelCall, number: int) -> ModelCallRun[Struct]:
        dialect = self._dialect
        feed: Callable[[Iterable[Delta]], WireEvents] = dialect.feed
        note: Callable[[Chunk], None] = dialect.note
        if number:
            feed, note = partial(dialect.feed, choice=number), partial(dialect.note, choice=number)
        if self._moderation is not None:
            self._outputs[number] = moderated = ModeratedOutput(self._moderation, feed, note, number)
            feed, note = moderated.feed, moderated.note
        return ModelCallRun(call, EngineStream(call), feed, feed, note, self._tracer)

    def _finish(self, status: Status) -> None:
        """Record the end. Only the first call counts."""
        if self.ended_at is None:
            self.ended_at = time()
            self.status = status
            if self._tracer is not None:
                self._tracer.end(status, self.model, self.counts, self.error)
            self._on_end(self)


def _render_end(dialect: Dialect, choice: ModelCallRun[Struct], number: int) -> WireEvents:
    assert choice.finish is not None
    return dialect.end(choice.finish, choice.total_counts, number)
