"""A run that its own client drives, without a task or a queue in between: the path of most requests.

Its end is stored before it is emitted. Closing the source before that cancels the run; if its row was already written,
the end is stored in the background.
"""

from collections.abc import Callable, Coroutine
from typing import Any

from msgspec import Struct

from antiphon.agent.run import EventSink, Run
from antiphon.core.emitter.emitter import Emitter
from antiphon.core.emitter.event_log import FOLD_BATCH
from antiphon.protocol.decoding.codec import encode
from antiphon.service.persistence.response_writer import OwnedRow
from antiphon.service.planning.planner import PlannedResponse
from antiphon.service.runs.active_runs import RunSlot


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
    ) -> None:
        self._slot = slot
        self._owned_row = owned_row
        self._emitter = emitter = planned.make_emitter(None if owned_row is None else [])
        self._store_end = None
        if owned_row is not None:
            emitter.fold_threshold = FOLD_BATCH
            self._store_end = _StoreEnd(owned_row, slot, emitter)
        self.run = slot.run = Run(planned.call, emitter, on_end, self._store_end, planned.multi_turn)
        if owned_row is not None and owned_row.fence:
            owned_row.on_lost = self._on_lost
            planned.set_fence(owned_row.fence)
            slot.publish(tenant, planned, emitter)

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
            owned_row.end_in_background(self.run.response, self.run.log, self._slot.release)
        if owned_row is not None:
            owned_row.on_lost = None

    def _on_lost(self) -> None:
        assert self._owned_row is not None
        self.run.interrupt(self._owned_row.make_lost_error())


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
        self.body = await self._owned_row.end(emitter.last_response, emitter.log)
        self._slot.release()
