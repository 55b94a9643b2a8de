"""Runs that are driven for their own clients: the path of most requests.

The end is stored before it is emitted. Followers see the log without its end until that end is stored.

    DirectRun   driven by its client, without a task or a queue in between. Closing the source before the end cancels
                the run; if its row was already written, the end is stored in the background.
    KeptRun     driven by a task of its own, which emits the events to the client itself. Closing the source leaves the
                run as it is, so that the client can resume the stream.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from msgspec import Struct

from antiphon.agent.run import EventSink, Run
from antiphon.core.emitter.emitter import Emitter, EventLog
from antiphon.core.emitter.event_log import FOLD_BATCH, LogEntry, RunEnded
from antiphon.protocol.decoding.codec import encode
from antiphon.protocol.types.events import Event
from antiphon.service.persistence.response_writer import OwnedRow
from antiphon.service.planning.planner import PlannedResponse
from antiphon.service.runs.active_runs import ActiveRun, RunSlot
from antiphon.service.runs.detached_runs import DetachedRuns


class ClientDrivenRun(ActiveRun):
    """A run that is driven for its own client. To save the cost, its log reports growth only to attached followers."""

    def __init__(
        self, tenant: str, planned: PlannedResponse, run: Run, emitter: Emitter, owned_row: OwnedRow | None
    ) -> None:
        super().__init__(tenant, planned, emitter, owned_row)
        self.run = run
        self.task: asyncio.Task[None] | None = None  # of a kept run
        self._emitter = emitter
        self._readers = 1  # its own client

    def attach(self) -> None:
        super().attach()
        if not isinstance(self.log, _ObservedLog) and not self.is_over:
            self.log = self._emitter.log = _ObservedLog(self.log, self._on_growth)
            self._on_growth()

    def cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()

    def end(self) -> None:
        """Mark the run as over. Followers see its end if that is stored; otherwise they read the store, where another
        server may have written another end.
        """
        if self.owned_row is None or self.owned_row.ended:
            self.visible_lists = len(self.log)
        super().end()

    def _on_growth(self) -> None:
        last = self.log[-1] if self.log else ()
        self.set_visible(len(self.log) - (len(last) == 1 and type(last[0]) is RunEnded))


class _ObservedLog(list[Sequence[LogEntry]]):
    """A log that calls back when it grows."""

    def __init__(self, entries: EventLog, on_growth: Callable[[], None]) -> None:
        super().__init__(entries)
        self._on_growth = on_growth

    def append(self, entries: Sequence[LogEntry], /) -> None:
        super().append(entries)
        self._on_growth()


class DirectRun:
    """Source of a client-driven run.

    `owned_row` is None for a response that is not stored. The row is already written if other clients may know the id.
    """

    __slots__ = ("_emitter", "_owned_row", "_slot", "_store_end", "run")

    def __init__(
        self,
        slot: RunSlot,
        tenant: str,
        planned: PlannedResponse,
        owned_row: OwnedRow | None,
        on_end: Callable[[Run], None],
        is_kept: bool = False,
    ) -> None:
        """`is_kept`: others can follow the run even if it is not stored."""
        self._slot = slot
        self._owned_row = owned_row
        self._emitter = emitter = planned.make_emitter([] if is_kept or owned_row is not None else None)
        emitter.fold_threshold = FOLD_BATCH
        self._store_end = None if owned_row is None else _StoreEnd(owned_row, slot, emitter)
        self.run = slot.run = Run(planned.call, emitter, on_end, self._store_end, planned.multi_turn)
        if owned_row is not None and owned_row.fence:
            owned_row.on_lost = lambda: self.run.interrupt(owned_row.make_lost_error())
            planned.set_fence(owned_row.fence)
        if is_kept or (owned_row is not None and owned_row.fence):
            slot.register(ClientDrivenRun(tenant, planned, self.run, emitter, owned_row))

    @property
    def waits(self) -> bool:
        return self.run.waits

    def begin(self) -> None:
        """Return at once: the first event is the created response."""

    def drive(self, emit: EventSink) -> Coroutine[Any, Any, None]:
        return self.run.drive(emit)

    async def result(self) -> bytes:
        run = self.run
        await run.drive(None)
        if run.error is not None:
            raise run.error
        return encode(self._emitter.last_response) if self._store_end is None else self._store_end.body

    def close(self) -> None:
        if self.run.ended_at is None:
            self.run.cancel()
        owned_row = self._owned_row
        if owned_row is None or owned_row.ended or owned_row.lost or not owned_row.fence:
            self._slot.release()
        else:
            owned_row.end_in_background(self.run.response, self.run.log, self.run.first_at, self._slot.release)
        if owned_row is not None:
            owned_row.on_lost = None


class KeptRun(DirectRun):
    """Source of a stream that continues without its client, until it has been unread for too long (`UnreadRuns`)."""

    __slots__ = ("_active", "_end", "_sink", "_tasks")

    def __init__(
        self, runs: DetachedRuns, slot: RunSlot, tenant: str, planned: PlannedResponse, owned_row: OwnedRow | None
    ) -> None:
        super().__init__(slot, tenant, planned, owned_row, runs.on_end, is_kept=True)
        assert isinstance(slot.active, ClientDrivenRun)
        self._active = slot.active
        self._active.unread_runs = runs.unread
        self._tasks = runs.tasks
        self._sink: EventSink = _discard_events
        self._end: list[Event] = []  # the last events, with the terminal one

    async def drive(self, emit: EventSink) -> None:
        """The end is emitted when everything else is done, since the client may send its next request at once."""
        self._sink = emit
        self._active.task = task = self._tasks.start(self.run.drive(self._emit))
        task.add_done_callback(self._on_done)
        await asyncio.shield(task)
        if (pending := emit(self._end)) is not None:
            await pending

    def close(self) -> None:
        self._sink = _discard_events
        if self._active.task is None:
            super().close()
        else:
            self._active.detach()

    def _emit(self, events: list[Event]) -> Awaitable[None] | None:
        """The token path."""
        if self.run.ended_at is None:
            return self._sink(events)
        self._end = events
        return None

    def _on_done(self, _: asyncio.Task[None]) -> None:
        if self._active.unread_runs is not None:
            self._active.unread_runs.remove(self._active)
        super().close()


class _StoreEnd(Struct, eq=False):
    """Stores the end of a run.

    It references neither the run nor its driver, except through the slot, which drops the run when released: a
    reference cycle would be left to the garbage collector, which costs more than everything else about storing.
    """

    _owned_row: OwnedRow
    _slot: RunSlot
    _emitter: Emitter
    body: bytes = b""

    async def __call__(self, run: Run) -> None:
        emitter = self._emitter
        assert emitter.log is not None
        self.body = await self._owned_row.end(emitter.last_response, emitter.log, run.first_at)
        self._slot.release()


def _discard_events(events: list[Event]) -> None:
    """Sink of a client that is gone."""
