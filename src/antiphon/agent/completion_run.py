"""A request of another API (chat completions, completions, Anthropic messages): no events, no log, no store.

    run = CompletionRun(calls, dialect, on_end)   one model call for each choice
    await run.begin()          until the first output; earlier failures are raised and become plain error responses
    await run.drive(emit)      emits all output in lists; a failure is emitted too, as the last element
    await run.result()         or, instead of both: returns the JSON body and raises any failure (`fold`: as an object)
    await run.close()          always: closing before the end cancels the run

The output is rendered by a dialect (core/dialects/dialect.py). `interrupt` ends a run at once; its driver still
receives the end.
"""

from collections.abc import Callable, Sequence
from functools import partial
from time import time
from typing import Literal

from msgspec import Struct

from antiphon.agent.choices import ChoiceGroup
from antiphon.agent.engine_stream import EngineStream, ModelCall, catch_errors
from antiphon.agent.model_call_run import ModelCallRun, Sink
from antiphon.agent.run_tracer import RunTracer
from antiphon.core.dialects.dialect import Dialect, WireEvents
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
        self._model = calls[0].generation.model
        self._tracer = None if (new_tracer := calls[0].new_tracer) is None else new_tracer("")
        choices = [_make_choice(call, dialect, number, self._tracer) for number, call in enumerate(calls)]
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
        output = self._dialect.close(self.counts) if self.error is None else self._dialect.fail(self.error)
        self._finish("failed" if self.error is not None else "incomplete" if self.is_cut else "completed")
        if output and (pending := emit(output)) is not None:
            await pending

    async def result(self) -> bytes:
        """Return the JSON body. Raises the error if the run fails."""
        return encode(await self.fold())

    async def fold(self) -> Struct:
        """Run to the end and return the fold of the output. Raises the error if the run fails."""
        await self.begin()
        await self.drive(self._dialect.fold_events)
        if self.error is not None:
            raise self.error
        return self._dialect.result()

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
        self._first_output = self._dialect.begin() + await self.start()

    async def _drive(self, emit: Sink[Struct]) -> None:
        if self._first_output is None:
            await self._begin()
        if self._first_output and (pending := emit(self._first_output)) is not None:
            await pending
        await self.run_all(emit)

    def _finish(self, status: Status) -> None:
        """Record the end. Only the first call counts."""
        if self.ended_at is None:
            self.ended_at = time()
            self.status = status
            if self._tracer is not None:
                self._tracer.end(status, self._model, self.counts, self.error)
            self._on_end(self)


def _make_choice(call: ModelCall, dialect: Dialect, number: int, tracer: RunTracer | None) -> ModelCallRun[Struct]:
    if number == 0:
        return ModelCallRun(call, EngineStream(call), dialect.feed, dialect.feed, dialect.note, tracer)
    render, note = partial(dialect.feed, choice=number), partial(dialect.note, choice=number)
    return ModelCallRun(call, EngineStream(call), render, render, note, tracer)


def _render_end(dialect: Dialect, choice: ModelCallRun[Struct], number: int) -> WireEvents:
    assert choice.finish is not None
    return dialect.end(choice.finish, choice.total_counts, number)
