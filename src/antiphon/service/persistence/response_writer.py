"""Rows of the responses that this process runs: written at the start, leased by a heartbeat, and ended exactly once.

    begin ──▶ OwnedRow ── start ── end ──▶ final row in the store
    adopt ──▶    │           └── release ──▶ another process takes it over
    defer ──▶    └── lost: another process owns it, or it was deleted; nothing from here is written any more

Only tracked rows are renewed. A row whose start or end failed is untracked: its lease expires, and the next scan ends
it.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from time import time
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from antiphon.errors import AntiphonError, NotFound, ServerRestarted, Unavailable
from antiphon.ids import new_id
from antiphon.protocol.decoding.codec import DecodedRequest, encode
from antiphon.protocol.types.response import Response
from antiphon.service.persistence.background_tasks import BackgroundTasks
from antiphon.service.persistence.retention import RetentionSweeper, TenantBytes
from antiphon.service.persistence.rows import FinishedResponse, Log, is_slow_to_encode, make_end, make_row
from antiphon.service.persistence.stored_request import encode_request, render_response
from antiphon.stores.base import (
    Claim,
    IdempotencyKey,
    OwnershipLost,
    ResponseEnd,
    RetentionBounds,
    Store,
    StoredResponse,
)
from antiphon.stores.live.base import LiveLog

log = logging.getLogger(__name__)

OnStored = Callable[[str, Response, DecodedRequest, int], None]  # tenant, final response, request, bytes of both

_run_in_thread = asyncio.to_thread

_FAST_FAILURE = 1.0  # seconds; a store that fails within this time is retried once immediately
_FIRST_RETRY_DELAY, _MAX_RETRY_DELAY = (
    0.2,
    1.0,
)  # seconds between attempts to write an end; doubled each time up to the maximum
_RETRY_SECONDS = 600.0  # seconds for which the end is retried while the store is unavailable


class RetentionSettings(Struct, frozen=True, kw_only=True):
    """Operator settings for stored responses."""

    lease: float = 15.0
    ttl: float = 2_592_000.0
    background_limit: int = 1000  # unfinished background responses per tenant
    background_timeout: float = 86_400.0
    sweep_seconds: float = 60.0
    bounds: RetentionBounds = RetentionBounds()
    background_limit_of: Callable[[str], int | None] | None = None  # per-tenant override of `background_limit`
    tenant_bytes: TenantBytes = dict  # byte limits of tenants that differ from `bounds`

    def get_background_limit(self, tenant: str) -> int | None:
        return self.background_limit if self.background_limit_of is None else self.background_limit_of(tenant)


class ResponseWriter:
    """Writes and leases the rows of this process.

    `on_stored` is called after each end that was written, to fill the history cache (`HistoryLoader.remember`).
    """

    def __init__(
        self, store: Store, live: LiveLog, settings: RetentionSettings, on_stored: OnStored | None = None
    ) -> None:
        self.owner = new_id("item")
        self.store = store
        self.live = live
        self.settings = settings
        self.on_stored = on_stored
        self.sweeper = RetentionSweeper(store, settings.bounds, settings.sweep_seconds, settings.tenant_bytes)
        self._rows: dict[str, OwnedRow] = {}
        self._tasks = BackgroundTasks()
        self.lost_count = 0  # rows taken over by other processes, or deleted

    async def begin(
        self,
        tenant: str,
        decoded: DecodedRequest,
        response: Response,
        key: IdempotencyKey | None = None,
        is_chain_root: bool = False,
    ) -> "OwnedRow | str":
        """Write the row with its current status. Returns the id of the response that already uses the key, if any.

        `is_chain_root`: the previous response is not in the store. A background response counts against the tenant's
        limit and gets a deadline. Raises what `Store.begin` raises.
        """
        settings = self.settings
        request = (
            await _run_in_thread(encode_request, decoded) if is_slow_to_encode(decoded) else encode_request(decoded)
        )
        new = make_row(response, encode(response), request, time(), settings.background_timeout)
        if is_chain_root:
            new = replace(new, previous=None)
        limit = settings.get_background_limit(tenant) if response.background else None
        other = await self.store.begin(tenant, new, self.make_claim(), key, limit)
        if other is not None:
            return other
        return self.track(OwnedRow(self, tenant, response.id, 1, decoded, len(request), new.created))

    async def find_by_key(self, tenant: str, key: IdempotencyKey) -> str | None:
        """Return the id of the response with this idempotency key."""
        return await self.store.keyed(tenant, key)

    async def load_body(self, tenant: str, response_id: str) -> bytes:
        """Return the JSON of a response, finished or not."""
        row = await self.store.get(tenant, response_id)
        if row is None:
            raise NotFound(f"There is no response {response_id!r}.")
        return render_response(row)

    def defer(self, tenant: str, decoded: DecodedRequest, response: Response) -> "OwnedRow":
        """Return a row that is written once, at its end, for a response that cannot be observed before."""
        return OwnedRow(self, tenant, response.id, 0, decoded, 0, time())

    async def adopt(self, tenant: str, row: StoredResponse) -> "OwnedRow":
        """Take over a row that was claimed or taken, and fence off its former owner from the live log."""
        await self.live.fence(tenant, row.id, row.fence)
        owned_row = OwnedRow(
            self, tenant, row.id, row.fence, row.request, len(row.request), row.created, row.charged_key
        )
        return self.track(owned_row)

    def make_claim(self) -> Claim:
        """Return a claim of this process for the length of a lease, for `Store.claim` and `Store.take`."""
        return Claim(self.owner, time() + self.settings.lease)

    @property
    def held_count(self) -> int:
        """Number of rows with a lease of this process."""
        return len(self._rows)

    def start_task(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine as a background task; `drain` waits for it."""
        self._tasks.start(coroutine)

    async def run_forever(self) -> None:
        """Send heartbeats and sweep the store until cancelled. Store failures are logged and retried."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._heartbeat())
            group.create_task(self.sweeper.run_forever())

    async def drain(self, seconds: float) -> None:
        """Wait for pending writes. Writes that take longer are cancelled, and the next scan ends their rows."""
        await self._tasks.close(seconds)

    def untrack(self, owned_row: "OwnedRow") -> None:
        """Stop renewing the row."""
        if self._rows.get(owned_row.id) is owned_row:
            del self._rows[owned_row.id]

    def track(self, owned_row: "OwnedRow") -> "OwnedRow":
        """Start renewing the row."""
        self._rows[owned_row.id] = owned_row
        return owned_row

    async def _heartbeat(self) -> None:
        while True:
            await asyncio.sleep(self.settings.lease / 3)
            try:
                await self.renew()
            except AntiphonError as error:
                log.warning("lease renewal failed: %s", error)

    async def renew(self, force: bool = False) -> None:
        """Send one heartbeat and mark rows that were lost. `force`: also if no row is tracked."""
        owned = dict(self._rows)
        if not owned and not force:
            return
        alive = await self.store.renew(self.make_claim(), owned.keys())
        for response_id, owned_row in owned.items():
            if response_id not in alive and self._rows.get(response_id) is owned_row:
                owned_row.mark_lost()


class OwnedRow(Struct, eq=False):
    """The row of one response that this process owns."""

    _writer: ResponseWriter
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
            await self._writer.store.start(self.tenant, self.id, self.fence)
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
        writer, request = self._writer, self._request
        if self.fence:  # otherwise it was never tracked
            writer.untrack(self)
        if self._attempted_status != response.status:
            self._replaces_end, self._attempted_status = self._attempted_status != "", response.status
        ttl = writer.settings.ttl
        finished = FinishedResponse(
            response, body, request, self._request_size, self.fence, self._created, ttl, self._replaces_end
        )
        end = await _run_in_thread(make_end, finished, log) if finished.is_slow(log) else make_end(finished, log)
        try:
            await writer.store.finish(self.tenant, end)
        except Unavailable:
            if time() - end.ended > _FAST_FAILURE:
                raise
            await self._finish(end)
        except OwnershipLost:
            raise self.make_lost_error() from None
        self.ended = True
        size = len(body) + (self._request_size if end.new is None else len(end.new.request))
        writer.sweeper.note_write(size)
        if type(request) is DecodedRequest and writer.on_stored is not None:
            writer.on_stored(self.tenant, response, request, size)
        if response.background:
            await self._notify()
        return body

    def end_in_background(self, response: Response, log: Log, on_done: Callable[[], None]) -> None:
        """Write the end in a background task and retry while the store is unavailable: clients may have seen this end.

        The row is renewed meanwhile, so that no other process ends it differently. `on_done` is called after success or
        when the attempts are given up.
        """
        self.on_lost = None
        self._writer.start_task(self._retry_end(response, log, on_done))

    async def release(self) -> None:
        """Return the row to the queue, to be run again by the next process that scans."""
        self.forget()
        try:
            await self._writer.store.release(self.tenant, self.id, self.fence)
        except OwnershipLost:
            raise self.make_lost_error() from None
        await self._notify()

    def forget(self) -> None:
        """Stop renewing the row, whatever its state; its lease expires."""
        self._writer.untrack(self)

    def mark_lost(self) -> None:
        """Called by `ResponseWriter`: this process no longer owns the row."""
        self.forget()
        if not self.lost:
            self.lost = True
            self._writer.lost_count += 1
            if self.on_lost is not None:
                self.on_lost()

    async def _finish(self, end: ResponseEnd) -> None:
        """Write the end again: a failed attempt may have been written, and repeating the same write is harmless."""
        try:
            await self._writer.store.finish(self.tenant, end)
        except OwnershipLost:
            raise self.make_lost_error() from None

    async def _retry_end(self, response: Response, log: Log, on_done: Callable[[], None]) -> None:
        deadline, pause = time() + _RETRY_SECONDS, _FIRST_RETRY_DELAY
        try:
            while not await self._try_end(response, log) and time() + pause < deadline:
                self._writer.track(self)
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
        live = self._writer.live
        try:
            if self.ended:
                await live.drop(self.tenant, self.id)
            await live.tell(self.id)
        except AntiphonError as error:
            log.warning("notification for %s failed: %s", self.id, error)

    def make_lost_error(self) -> ServerRestarted:
        """Mark the row as lost and return the error to raise."""
        self._writer.lost_count += not self.lost
        self.lost = True
        self.forget()
        return ServerRestarted("This response was deleted, or taken over by another server, while it ran.")
