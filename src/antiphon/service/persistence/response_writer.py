"""Rows of the responses that this process runs: written at the start, taken over from other processes, or written once.

    begin ──▶ OwnedRow ── start ── end ──▶ final row in the store
    adopt ──▶    │           └── release ──▶ another process takes it over
    defer ──▶    └── lost: another process owns it, or it was deleted; nothing from here is written any more

A heartbeat renews the leases of tracked rows, so that no other process takes them over. A row whose start or end failed
is untracked: its lease expires, and the next scan ends it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from time import time

from msgspec import Struct
from msgspec.structs import replace

from antiphon.config.areas import StorageSettings
from antiphon.core.replay import pack
from antiphon.errors import AntiphonError, ServerRestarted, Unavailable
from antiphon.ids import new_id
from antiphon.offload import MAX_INLINE_BYTES, BackgroundTasks
from antiphon.protocol.decoding.codec import DecodedRequest, encode
from antiphon.protocol.types.response import Response
from antiphon.service.access.rate_limits import RateLimits
from antiphon.service.persistence import rows
from antiphon.service.persistence.response_summary import encode_summary
from antiphon.service.persistence.store_maintenance import RetentionSweeper, make_bounds
from antiphon.service.persistence.stored_images import References, StoredImages, has_images
from antiphon.stores.base import RUNNING_STATUSES, Claim, IdempotencyKey, OwnershipLost, ResponseEnd, StoredResponse
from antiphon.stores.live.base import LiveLog
from antiphon.stores.sql.store import Store

log = logging.getLogger(__name__)

OnStored = Callable[[str, Response, DecodedRequest, int], None]  # tenant, final response, request, bytes of both
NoteWrite = Callable[[str, str, str, float], None]  # tenant, response id, kind, when it began

_FAST_FAILURE = 1.0  # seconds; a store that fails within this time is retried once immediately
_FIRST_RETRY_DELAY, _MAX_RETRY_DELAY = 0.2, 1.0  # seconds between attempts to write an end; doubled each time
_MAX_INLINE_RESPONSE = 64 * 1024  # bytes; about 3 ms to compress its log
_MAX_INLINE_LISTS = 5_000  # lists of a log that are packed on the event loop
_RETRY_SECONDS = 600.0  # seconds for which the end is retried while the store is unavailable


class RowLeases:
    """Tracks the rows of this process and renews their leases of so many seconds."""

    def __init__(self, store: Store, seconds: float) -> None:
        self.owner = new_id("item")
        self._store = store
        self._seconds = seconds
        self._rows: dict[str, OwnedRow] = {}
        self.lost_count = 0  # rows taken over by other processes, or deleted

    @property
    def held_count(self) -> int:
        """Number of rows with a lease of this process."""
        return len(self._rows)

    def make_claim(self) -> Claim:
        """Return a claim of this process for the length of a lease, for `Store.claim` and `Store.take`."""
        return Claim(self.owner, time() + self._seconds)

    def track(self, row: "OwnedRow") -> None:
        self._rows[row.id] = row

    def untrack(self, row: "OwnedRow") -> None:
        if self._rows.get(row.id) is row:
            del self._rows[row.id]

    async def run_forever(self) -> None:
        """Send heartbeats until cancelled. Store failures are logged and retried."""
        while True:
            await asyncio.sleep(self._seconds / 3)
            try:
                await self.renew()
            except AntiphonError as error:
                log.warning("lease renewal failed: %s", error)

    async def renew(self, force: bool = False) -> None:
        """Send one heartbeat and mark rows that were lost. `force`: also if no row is tracked."""
        tracked = dict(self._rows)
        if not tracked and not force:
            return
        alive = await self._store.renew(self.make_claim(), tracked.keys())
        for response_id, row in tracked.items():
            if response_id not in alive and self._rows.get(response_id) is row:
                row.mark_lost()


class ResponseWriter:
    """Writes and leases the rows of this process.

    `on_stored` is called after each end that was written, to fill the history cache (`HistoryLoader.remember`).
    `rate_limits` holds the limits of tenants that differ from the settings.
    """

    def __init__(
        self,
        store: Store,
        live: LiveLog,
        settings: StorageSettings,
        on_stored: OnStored | None = None,
        rate_limits: RateLimits | None = None,
        images: StoredImages | None = None,
    ) -> None:
        self.store = store
        self.live = live
        self.images = images  # None: images are stored in the rows
        self.settings = settings
        self.leases = RowLeases(store, settings.lease_seconds)
        self.tasks = BackgroundTasks()  # writes that outlive their run
        self.on_stored = on_stored
        self.note_write: NoteWrite | None = None  # called after each write of a response; None: nothing is traced
        self._rate_limits = rate_limits or RateLimits(background_queue=settings.background_queue)
        self.sweeper = RetentionSweeper(
            store, make_bounds(settings, store.name), tenant_bytes=self._rate_limits.get_store_bytes
        )

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
        request = (
            await asyncio.to_thread(rows.encode_request, decoded)
            if rows.is_slow_to_encode(decoded)
            else rows.encode_request(decoded)
        )
        new = rows.make_row(response, encode(response), request, time(), self.settings.background_timeout)
        if is_chain_root:
            new = replace(new, previous=None)
        limit = self._rate_limits.get_background_limit(tenant) if response.background else None
        if (other := await self.store.begin(tenant, new, self.leases.make_claim(), key, limit)) is not None:
            return other
        owned_row = OwnedRow(self, tenant, response.id, 1, decoded, len(request), new.created)
        owned_row.note_write("begin", new.created)
        self.leases.track(owned_row)
        return owned_row

    def defer(self, tenant: str, decoded: DecodedRequest, response: Response) -> "OwnedRow":
        """Return a row that is written once, at its end, for a response that cannot be observed before."""
        return OwnedRow(self, tenant, response.id, 0, decoded, 0, time())

    async def adopt(self, tenant: str, row: StoredResponse) -> "OwnedRow":
        """Take over a row that was claimed or taken, and fence off its former owner from the live log."""
        await self.live.fence(tenant, row.id, row.fence)
        request = b"" if row.conversation is None else row.request
        owned_row = OwnedRow(self, tenant, row.id, row.fence, request, len(row.request), row.created, row.charged_key)
        self.leases.track(owned_row)
        return owned_row

    async def run_forever(self) -> None:
        """Send heartbeats and sweep the store until cancelled. Store failures are logged and retried."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.leases.run_forever())
            group.create_task(self.sweeper.run_forever())

    async def drain(self, seconds: float) -> None:
        """Wait for pending writes. Writes that take longer are cancelled, and the next scan ends their rows."""
        await self.tasks.close(seconds)


class OwnedRow(Struct, eq=False):
    """The row of one response that this process owns."""

    _writer: ResponseWriter
    tenant: str
    id: str
    fence: int  # 0: the row is first written at the end
    _request: DecodedRequest | bytes  # bytes: as stored, for the conversation of a response that was adopted
    _request_size: int  # bytes of the stored request; 0 while the row is not written
    _created: float
    charged_key: str = ""  # the API key that is charged, for an adopted response
    ended: bool = False  # the end is written
    lost: bool = False
    on_lost: Callable[[], None] | None = None  # called at most once, on the event loop
    _attempted_status: str = ""  # final status of the last attempt to write the end
    _replaces_end: bool = False  # an earlier attempt with another status may have been written
    _images: References = {}  # those that were written for this row

    async def start(self) -> None:
        """Set the status from queued to in_progress. Raises ServerRestarted if the row was lost, and Unavailable."""
        began = time()
        try:
            await self._writer.store.start(self.tenant, self.id, self.fence)
        except OwnershipLost:
            raise self.make_lost_error() from None
        self.note_write("start", began)

    async def end(self, response: Response, log: rows.Log, first_at: float | None = None) -> bytes:
        """Write the final response and return its JSON. May be repeated after a cancellation or a failure.

        `first_at`: when the first output arrived, if that is known.

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
            writer.leases.untrack(self)
        if self._attempted_status != response.status:
            self._replaces_end, self._attempted_status = self._attempted_status != "", response.status
        stored_body = body
        if writer.images is not None and has_images(response):
            response, log = await writer.images.offload(response, log, self._images)
            stored_body = encode(response)
        if self._is_slow_to_end(response, stored_body, log):
            end = await asyncio.to_thread(self._make_end, response, stored_body, log, first_at)
        else:
            end = self._make_end(response, stored_body, log, first_at)
        try:
            await self._finish(end)
        except Unavailable:  # repeating the same write is harmless, if the failed attempt was written after all
            if time() - end.ended > _FAST_FAILURE:
                raise
            await self._finish(end)
        self.ended = True
        size = len(stored_body) + (self._request_size if end.new is None else len(end.new.request))
        writer.sweeper.note_write(size)
        if type(request) is DecodedRequest and writer.on_stored is not None:
            writer.on_stored(self.tenant, response, request, size)
        if response.background:
            await self._notify()
        return body

    def end_in_background(
        self, response: Response, log: rows.Log, first_at: float | None, on_done: Callable[[], None]
    ) -> None:
        """Write the end in a background task and retry while the store is unavailable: clients may have seen this end.

        The row is renewed meanwhile, so that no other process ends it differently. `on_done` is called after success or
        when the attempts are given up.
        """
        self.on_lost = None
        self._writer.tasks.start(self._retry_end(partial(self.end, response, log, first_at), on_done))

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
        self._writer.leases.untrack(self)

    def verify(self, row: StoredResponse | None) -> None:
        """Compare with the row that was read from the store, and mark this one as lost if another process owns it."""
        if row is None or row.fence != self.fence or row.status not in RUNNING_STATUSES:
            self.mark_lost()

    def note_write(self, kind: str, began: float) -> None:
        """Note a write that has ended now, for the trace of the response."""
        if (note := self._writer.note_write) is not None:
            note(self.tenant, self.id, kind, began)

    def mark_lost(self) -> None:
        """Note that this process no longer owns the row. Called by `RowLeases` and `verify`."""
        self.forget()
        if not self.lost:
            self.lost = True
            self._writer.leases.lost_count += 1
            if self.on_lost is not None:
                self.on_lost()

    def _is_slow_to_end(self, response: Response, body: bytes, log: rows.Log) -> bool:
        """Return whether encoding the request and its end belongs in a thread."""
        if len(log) > _MAX_INLINE_LISTS or len(body) > _MAX_INLINE_RESPONSE:
            return True
        if self.fence:
            return response.conversation is not None and self._request_size > MAX_INLINE_BYTES
        return isinstance(self._request, DecodedRequest) and rows.is_slow_to_encode(self._request)

    def _make_end(self, response: Response, body: bytes, log: rows.Log, first_at: float | None) -> ResponseEnd:
        request, now, new = self._request, time(), None
        if not self.fence:
            assert type(request) is DecodedRequest
            new = rows.make_row(response, body, rows.encode_request(request), self._created)
        return ResponseEnd(
            id=response.id,
            fence=self.fence,
            status=response.status,
            response=body,
            packed_log=pack(log, response, body),
            ended=now,
            expires=now + self._writer.settings.store_ttl,
            summary=encode_summary(response, None if first_at is None else first_at - self._created),
            new=new,
            conversation=None if response.conversation is None else response.conversation.id,
            items=rows.list_conversation_items(request, response),
            replaces_unconfirmed=self._replaces_end,
            images=[reference.key for reference in self._images.values()],
            image_bytes=sum([reference.size for reference in self._images.values()]),
        )

    async def _finish(self, end: ResponseEnd) -> None:
        try:
            await self._writer.store.finish(self.tenant, end)
        except OwnershipLost:
            raise self.make_lost_error() from None
        self.note_write("end", end.ended)

    async def _retry_end(self, end: Callable[[], Awaitable[bytes]], on_done: Callable[[], None]) -> None:
        deadline, pause = time() + _RETRY_SECONDS, _FIRST_RETRY_DELAY
        try:
            while not await self._try_end(end) and time() + pause < deadline:
                self._writer.leases.track(self)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _MAX_RETRY_DELAY)
        finally:
            self.forget()
            on_done()

    async def _try_end(self, end: Callable[[], Awaitable[bytes]]) -> bool:
        """Try to write the end. Returns False if it may be retried."""
        try:
            await end()
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
        self._writer.leases.lost_count += not self.lost
        self.lost = True
        self.forget()
        return ServerRestarted("This response was deleted, or taken over by another server, while it ran.")
