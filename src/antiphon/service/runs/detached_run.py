"""A run that is independent of its clients: its own task drives it, and any number of readers follow its log.

    foreground   visible at once; cancelled when its last reader has been gone for a while
    background   visible when durable: batch by batch if it streams, otherwise as a whole at its end

A detached run has one of three outcomes. It ends, and the end is stored. Or it is handed over, as if it had never run
here. Or it is lost to another process; then its readers get the remaining events from the store, as they do when the
end could not be stored.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Literal

from antiphon.agent.recovery import read_checkpoint
from antiphon.agent.run import MultiTurn, Run
from antiphon.config.areas import StorageSettings
from antiphon.errors import AntiphonError, ServerRestarted, Unavailable
from antiphon.protocol.decoding.codec import encode
from antiphon.protocol.types.events import Event
from antiphon.service.persistence.live_updates import LiveWriter, retry_unavailable
from antiphon.service.persistence.response_writer import OwnedRow
from antiphon.service.planning.planner import PlannedResponse
from antiphon.service.runs.active_runs import ActiveRun
from antiphon.stores.base import OwnershipLost

log = logging.getLogger(__name__)

_StopReason = Literal["cancelled", "handed over", "lost"]


class DetachedRun(ActiveRun):
    """One run with its own task, writer and readers."""

    owned_row: OwnedRow

    def __init__(
        self,
        tenant: str,
        planned: PlannedResponse,
        owned_row: OwnedRow,
        live_writer: LiveWriter | None,
        settings: StorageSettings,
        on_end: Callable[[Run], None],
    ) -> None:
        """`live_writer` is set for a background run. Takes ownership of the planned response and its row."""
        emitter = planned.make_emitter([])
        super().__init__(tenant, planned, emitter, owned_row)
        self._planned = planned
        self._live_writer = live_writer
        self._settings = settings
        self.run = Run(planned.call, emitter, on_end, self._store_end, planned.multi_turn)
        self._streams = planned.decoded.request.stream or isinstance(planned.multi_turn, MultiTurn)
        self._task: asyncio.Task[object] | None = None
        self._writer_task: asyncio.Task[None] | None = None
        self._stop_reason: _StopReason | None = None
        self._body: bytes | None = None
        self._unstored_error: Unavailable | None = None  # why an end that no reader has seen is not stored yet
        owned_row.on_lost = self.lose
        planned.set_fence(owned_row.fence)
        if self._live_writer is not None:
            self.run.wait_written = partial(self._live_writer.wait_written, self.log)

    # ---- control

    def cancel(self) -> None:
        self._request_stop("cancelled")

    def interrupt(self, error: AntiphonError) -> None:
        """End the run as failed."""
        if self._task is None:  # a run notices an interrupt only while it is driven
            asyncio.get_running_loop().call_soon(self.run.interrupt, error)
        else:
            self.run.interrupt(error)

    def lose(self) -> None:
        """Stop: another process owns the response now."""
        if self._live_writer is not None:
            self._request_stop("lost")
        else:
            self.interrupt(self.owned_row.make_lost_error())

    def hand_over(self, error: AntiphonError) -> None:
        """Stop for a shutdown. A response that emitted nothing, or is between two turns, can run on another server."""
        if self._live_writer is None:
            self.interrupt(error)
            return
        self._live_writer.close()
        if self._live_writer.has_output and read_checkpoint(self._live_writer.iter_written(self.log)) is None:
            self.interrupt(ServerRestarted("The server was stopped while it was generating this response."))
        else:
            self._request_stop("handed over")

    def get_echo_delay(self) -> float:
        return 0.0 if self._live_writer is None else self._live_writer.get_echo_seconds()

    # ---- life cycle

    async def execute(self) -> None:
        """Drive the run to its end; the body of its task."""
        self._task = asyncio.current_task()
        if self._live_writer is not None:
            if self.log:  # events of a former owner: they count as emitted at once, even if there is nothing to add yet
                self._live_writer.note_growth(len(self.log))
            self._writer_task = asyncio.get_running_loop().create_task(self._write_log(self._live_writer))
        try:
            await self._drive()
        finally:
            if self._writer_task is not None:
                self._writer_task.cancel()
                await asyncio.wait([self._writer_task])
            self._set_outcome()
            # Break the reference cycles: what a request holds may be large, and would wait for the garbage collector.
            self.run.store_end = self.owned_row.on_lost = None

    async def _drive(self) -> None:
        try:
            if self._stop_reason is None:
                await self.run.drive(self._on_events)
                return
        except asyncio.CancelledError:
            if self._stop_reason is None:  # cancelled from outside: everything is being torn down
                raise
            assert self._task is not None
            while self._task.cancelling():
                self._task.uncancel()
        reason = self._stop_reason
        assert reason is not None
        try:
            await self._finish_stopped(reason)
        except AntiphonError as error:
            log.warning("response %s was %s, but that could not be stored: %s", self.opening.id, reason, error)

    async def _finish_stopped(self, reason: _StopReason) -> None:
        if reason == "cancelled":
            events = self.run.cancel()
            try:
                await self._store_end(self.run)
            finally:
                self._on_events(events)
            return
        self._planned.leave()
        self.run.abandon(reason)
        if reason == "handed over":
            await self._stop_writing()
            await self.owned_row.release()

    def _on_events(self, events: list[Event]) -> Awaitable[None] | None:
        """Token path: make the new events visible, or pass them to the live writer."""
        if self._unstored_error is not None:
            return None
        if self._live_writer is None or self.owned_row.ended:
            self.set_visible(len(self.log))
            return None
        self._live_writer.note_growth(len(self.log))
        return self._live_writer.wait_started() if self.log and not self._live_writer.has_started else None

    async def _store_end(self, run: Run) -> None:
        await self._stop_writing()
        # A foreground client waits for its terminal event; in the other cases there is time to retry.
        timeout = 0.0 if self._live_writer is None and self._stop_reason is None else self._settings.lease_seconds
        try:
            self._body = await retry_unavailable(
                lambda: self.owned_row.end(run.response, self.log, run.first_at), timeout
            )
        except Unavailable as error:
            if self._live_writer is not None or self._planned.decoded.request.stream:
                raise
            # The client gets an error and retries with the same idempotency key; then it must get this result.
            self._unstored_error = error

    async def _write_log(self, live_writer: LiveWriter) -> None:
        try:
            await live_writer.write(self.log, self._streams, self.set_visible)
        except (OwnershipLost, ServerRestarted):
            self.lose()
        except Unavailable as error:
            if live_writer.has_output:
                self.interrupt(error)
            else:  # no reader has seen anything: another server runs it when the store is back
                self._request_stop("lost")

    async def _stop_writing(self) -> None:
        """Stop the live writer and wait for its last batch."""
        if self._live_writer is not None and self._writer_task is not None:
            self._live_writer.close()
            await asyncio.wait([self._writer_task])

    def _set_outcome(self) -> None:
        """Set the outcome for readers that wait for the result, and release the row."""
        has_ended = self.run.ended_at is not None
        if has_ended and (self._live_writer is None or self.owned_row.ended):
            self.outcome = self._unstored_error or self.run.error or self._body or encode(self.run.response)
        owned_row = self.owned_row
        owned_row.forget()
        if has_ended and self._live_writer is None and not owned_row.ended and not owned_row.lost:
            # Readers have seen the end, so later readers must find the same in the store.
            owned_row.end_in_background(self.run.response, self.log, self.run.first_at, lambda: None)

    def _request_stop(self, reason: _StopReason) -> None:
        if self._stop_reason is None and self.run.ended_at is None:
            self._stop_reason = reason
            if self._task is not None:
                self._task.cancel()
