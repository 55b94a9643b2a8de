"""A response that runs in another process, or has ended: read from the live log and the store.

Waiters are woken by notifications and poll every second in case one is lost. A store that does not respond is retried
for a while, then Unavailable is raised.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from antiphon.core.emitter.event_log import LogEntry
from antiphon.core.replay import UnreadableLog, decode_entries, unpack
from antiphon.errors import Internal, Unavailable
from antiphon.service.persistence.notifications import Notifications, Waiter
from antiphon.service.persistence.stored_responses import unknown_response_error
from antiphon.service.runs.event_feed import EventFeed
from antiphon.stores.base import RUNNING_STATUSES, Store, StoredResponse
from antiphon.stores.live.base import LiveLog

T = TypeVar("T")
log = logging.getLogger(__name__)

_POLL_SECONDS = 1.0  # between polls without a notification
_RETRY_SECONDS = 30.0  # for retries while the store does not respond
# size of a Response up to which its packed log is unpacked on the event loop; larger ones go to a thread
_INLINE_BYTES = 256 * 1024


class RemoteRun:
    """One response for one follower."""

    def __init__(
        self, store: Store, live: LiveLog, notifications: Notifications, tenant: str, response_id: str
    ) -> None:
        self._store = store
        self._live = live
        self._notifications = notifications
        self._key = tenant, response_id
        self._loop = asyncio.get_running_loop()
        self.waits = False

    async def wait_ended(self) -> StoredResponse:
        """Return the row once the response has ended. Raises NotFound if it is deleted."""
        with self._notifications.subscribe(self._key[1]) as waiter:
            while True:
                waiter.clear()
                row = await self._retry(self._load_row, waiter)
                if row.status not in RUNNING_STATUSES:
                    return row
                await self._wait(waiter)

    async def follow(self, feed: EventFeed) -> None:
        """Feed all entries that were not fed yet. Raises NotFound if the response is deleted."""
        with self._notifications.subscribe(self._key[1]) as waiter:
            batches = entries = 0  # of the live log
            while not feed.ended:
                waiter.clear()
                if added := await self._retry(lambda: self._live.read(*self._key, batches - 1), waiter):  # noqa: B023
                    new_entries = [entry for batch in added for entry in decode_entries(batch)]
                    before, batches, entries = entries, batches + len(added), entries + len(new_entries)
                    await feed.feed(new_entries, feed.entry_count - before)
                    continue
                row = await self._retry(self._load_row, waiter)
                if row.status not in RUNNING_STATUSES:
                    await feed.feed(await load_log(row), feed.entry_count)
                    return
                await self._wait(waiter)

    async def _load_row(self) -> StoredResponse:
        row = await self._store.get(*self._key)
        if row is None:
            raise unknown_response_error(self._key[1])
        return row

    async def _retry(self, operation: Callable[[], Awaitable[T]], waiter: Waiter) -> T:
        deadline = self._loop.time() + _RETRY_SECONDS
        while True:
            try:
                return await operation()
            except Unavailable:
                if self._loop.time() >= deadline:
                    raise
            waiter.clear()
            await self._wait(waiter)

    async def _wait(self, waiter: Waiter) -> None:
        if self._notifications.closed:
            raise Unavailable("The server is shutting down.", retry_after=2.0)
        self.waits = True
        try:
            await waiter.wait(_POLL_SECONDS)
        finally:
            self.waits = False


async def load_log(row: StoredResponse) -> list[LogEntry]:
    """Return all log entries of a response that has ended."""
    if len(row.response) <= _INLINE_BYTES:
        return _unpack_row(row)
    return await asyncio.to_thread(_unpack_row, row)


def _unpack_row(row: StoredResponse) -> list[LogEntry]:
    assert row.packed_log is not None  # the response has ended
    try:
        return unpack(row.packed_log, row.response)
    except UnreadableLog as error:
        log.error("the events of %s cannot be read: %s", row.id, error)
        raise Internal("The events of this response can no longer be read; the response itself is still available.")
