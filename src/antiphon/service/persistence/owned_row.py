"""The row of a response that this process runs: started, and ended exactly once or released.

OwnedRow ── start ── end ──▶ final row in the store
   │           └── release ──▶ another process takes it over
   └── lost: another process owns it, or it was deleted; nothing from here is written any more
"""

import asyncio
import logging
from collections.abc import Callable
from time import time

from msgspec import Struct

from antiphon.errors import AntiphonError, ServerRestarted, Unavailable
from antiphon.protocol.decoding.codec import DecodedRequest, encode
from antiphon.protocol.types.response import Response
from antiphon.service.persistence.background_tasks import BackgroundTasks
from antiphon.service.persistence.retention import RetentionSweeper
from antiphon.service.persistence.row_leases import RowLeases
from antiphon.service.persistence.rows import FinishedResponse, Log, make_end
from antiphon.stores.base import RUNNING_STATUSES, OwnershipLost, ResponseEnd, Store, StoredResponse
from antiphon.stores.live.base import LiveLog

log = logging.getLogger(__name__)

OnStored = Callable[[str, Response, DecodedRequest, int], None]  # tenant, final response, request, bytes of both

_FAST_FAILURE = 1.0  # seconds; a store that fails within this time is retried once immediately
_FIRST_RETRY_DELAY, _MAX_RETRY_DELAY = (
    0.2,
    1.0,
)  # seconds between attempts to write an end; doubled each time up to the maximum
_RETRY_SECONDS = 600.0  # seconds for which the end is retried while the store is unavailable


class RowStorage(Struct, frozen=True, kw_only=True):
    """Everything a row is written to, and what is informed of its end."""

    store: Store
    live: LiveLog
    leases: RowLeases
    sweeper: RetentionSweeper
    tasks: BackgroundTasks  # writes that outlive the run
    ttl: float
    on_stored: OnStored | None = None  # called after each end that was written


class OwnedRow(Struct, eq=False):
    """The row of one response that this process owns."""

    _storage: RowStorage
    tenant: str
    id: str
    fence: int  # 0: the row is first written at the end
    _request: DecodedRequest | bytes  # bytes: as stored, for a response that was adopted
    _request_size: int  # bytes of the stored request; 0 while the row is not written
    _created: float
    charged_key: str = ""  # the API key that is charged, for an adopted response
    ended: bool = False  # the end is written
    lost: bool = False
    on_lost: Callable[[], None] | None = None  # called at most once, on the event loop
    _attempted_status: str = ""  # final status of the last attempt to write the end
    _replaces_end: bool = False  # an earlier attempt with another status may have been written

    async def start(self) -> None:
        """Set the status from queued to in_progress. Raises ServerRestarted if the row was lost, Unavailable if the
        store fails.
        """
        try:
            await self._storage.store.start(self.tenant, self.id, self.fence)
        except OwnershipLost:
            raise self.make_lost_error() from None

    async def end(self, response: Response, log: Log) -> bytes:
        """Write the final response and return its JSON. May be repeated after a cancellation or a failure.

        Raises ServerRestarted if the row was lost (deleted, or ended by another process), and Unavailable if the store
        fails; the row is then left to the next scan. The live log of a background response is dropped, and its waiters
        are notified.
        """
        body = encode(response)
        if self.ended:
            return body
        if self.lost:
            raise self.make_lost_error()
        storage, request = self._storage, self._request
        if self.fence:  # otherwise it was never tracked
            storage.leases.untrack(self)
        if self._attempted_status != response.status:
            self._replaces_end, self._attempted_status = self._attempted_status != "", response.status
        finished = FinishedResponse(
            response, body, request, self._request_size, self.fence, self._created, storage.ttl, self._replaces_end
        )
        end = await asyncio.to_thread(make_end, finished, log) if finished.is_slow(log) else make_end(finished, log)
        try:
            await storage.store.finish(self.tenant, end)
        except Unavailable:
            if time() - end.ended > _FAST_FAILURE:
                raise
            await self._finish(end)
        except OwnershipLost:
            raise self.make_lost_error() from None
        self.ended = True
        size = len(body) + (self._request_size if end.new is None else len(end.new.request))
        storage.sweeper.note_write(size)
        if type(request) is DecodedRequest and storage.on_stored is not None:
            storage.on_stored(self.tenant, response, request, size)
        if response.background:
            await self._notify()
        return body

    def end_in_background(self, response: Response, log: Log, on_done: Callable[[], None]) -> None:
        """Write the end in a background task and retry while the store is unavailable: clients may have seen this end.

        The row is renewed meanwhile, so that no other process ends it differently. `on_done` is called after success or
        when the attempts are given up.
        """
        self.on_lost = None
        self._storage.tasks.start(self._retry_end(response, log, on_done))

    async def release(self) -> None:
        """Return the row to the queue, to be run again by the next process that scans."""
        self.forget()
        try:
            await self._storage.store.release(self.tenant, self.id, self.fence)
        except OwnershipLost:
            raise self.make_lost_error() from None
        await self._notify()

    def forget(self) -> None:
        """Stop renewing the row, whatever its state; its lease expires."""
        self._storage.leases.untrack(self)

    def verify(self, row: StoredResponse | None) -> None:
        """Compare with the row that was read from the store, and mark this one as lost if another process owns it."""
        if row is None or row.fence != self.fence or row.status not in RUNNING_STATUSES:
            self.mark_lost()

    def mark_lost(self) -> None:
        """Note that this process no longer owns the row. Called by `RowLeases` and `verify`."""
        self.forget()
        if not self.lost:
            self.lost = True
            self._storage.leases.lost_count += 1
            if self.on_lost is not None:
                self.on_lost()

    async def _finish(self, end: ResponseEnd) -> None:
        """Write the end again: a failed attempt may have been written, and repeating the same write is harmless."""
        try:
            await self._storage.store.finish(self.tenant, end)
        except OwnershipLost:
            raise self.make_lost_error() from None

    async def _retry_end(self, response: Response, log: Log, on_done: Callable[[], None]) -> None:
        deadline, pause = time() + _RETRY_SECONDS, _FIRST_RETRY_DELAY
        try:
            while not await self._try_end(response, log) and time() + pause < deadline:
                self._storage.leases.track(self)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _MAX_RETRY_DELAY)
        finally:
            self.forget()
            on_done()

    async def _try_end(self, response: Response, entries: Log) -> bool:
        """Try to write the end. Returns False if it may be retried."""
        try:
            await self.end(response, entries)
        except Unavailable as error:
            log.warning("writing the end of %s failed, retrying: %s", self.id, error)
            return False
        except AntiphonError as error:
            log.warning("the end of %s was not written: %s", self.id, error)
        return True

    async def _notify(self) -> None:
        """Drop the live log and notify waiters. Failures are only logged: the row itself is written."""
        live = self._storage.live
        try:
            if self.ended:
                await live.drop(self.tenant, self.id)
            await live.tell(self.id)
        except AntiphonError as error:
            log.warning("notification for %s failed: %s", self.id, error)

    def make_lost_error(self) -> ServerRestarted:
        """Mark the row as lost and return the error to raise."""
        self._storage.leases.lost_count += not self.lost
        self.lost = True
        self.forget()
        return ServerRestarted("This response was deleted, or taken over by another server, while it ran.")
