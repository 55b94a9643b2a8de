"""A response that runs in another process, or has ended, and its events for one reader.

It is read from the live log and the store. Waiters are woken by notifications and poll every second in case one is
lost. A store that does not respond is retried for a while, then Unavailable is raised.

Entries may come from the log of this process, a live log or a packed log. They are counted, so a reader that moves from
one to the next neither skips nor repeats any.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from typing import TypeVar

from msgspec import UNSET

from antiphon.agent.run import EventSink
from antiphon.core.emitter.event_log import LogEntry, RunEnded
from antiphon.core.emitter.fold import ResponseEnding
from antiphon.core.replay import Replay, UnreadableLog, decode_entries, unpack
from antiphon.errors import AntiphonError, Internal, Unavailable
from antiphon.protocol.types.events import Error, ErrorBody, Event
from antiphon.protocol.types.response import Response
from antiphon.service.persistence.live_updates import Notifications, Waiter
from antiphon.service.persistence.stored_responses import unknown_response_error
from antiphon.stores.base import RUNNING_STATUSES, Store, StoredResponse
from antiphon.stores.live.base import LiveLog
from antiphon.threads import run_sized

log = logging.getLogger(__name__)

T = TypeVar("T")

_BATCH_SIZE = 200  # entries before other tasks get to run

_POLL_SECONDS = 1.0  # between polls without a notification
_RETRY_SECONDS = 30.0  # for retries while the store does not respond


class EventFeed:
    """Replays log entries as events to one sink."""

    def __init__(self, opening: Response, obfuscates: bool, after: int, emit: EventSink) -> None:
        self._replay = Replay(opening, obfuscates)
        self._after = after
        self._emit = emit
        self._last_number = -1  # last sequence number produced, emitted or not
        self.entry_count = 0  # entries fed so far
        self.ended = False

    async def open(self) -> None:
        await self._emit_new(self._replay.open())

    async def feed(self, entries: Sequence[LogEntry], skip: int = 0) -> None:
        """Feed the next entries. `skip`: number of leading entries that were fed before."""
        remaining = islice(entries, skip, None)
        while batch := [*islice(remaining, _BATCH_SIZE)]:
            self.entry_count += len(batch)
            self.ended = type(batch[-1]) is RunEnded
            await self._emit_new(self._replay.feed(batch))
            if len(batch) == _BATCH_SIZE:
                await asyncio.sleep(0)

    async def fail(self, error: AntiphonError, at: int) -> None:
        """Emit a failed end for a response that no longer exists."""
        self.ended = True
        await self._emit_new(self._replay.emitter.finish(ResponseEnding(status="failed", error=error), None, at))

    async def break_off(self, error: AntiphonError) -> None:
        """Emit an error because the response cannot be followed here; it may continue.

        The error is not part of the log, so it has no sequence number of its own.
        """
        body = ErrorBody(type=error.type, code=error.code, message=error.message, param=error.param)
        retry_after = UNSET if error.retry_after is None else error.retry_after
        event = Error(code=error.code, message=error.message, error=body, retry_after=retry_after)
        event.sequence_number = max(self._last_number, 0)
        if (pending := self._emit([event])) is not None:
            await pending

    async def _emit_new(self, events: list[Event]) -> None:
        """Emit the events above the requested sequence number."""
        if not events:
            return
        self._last_number = events[-1].sequence_number
        if events[0].sequence_number <= self._after:
            events = [event for event in events if event.sequence_number > self._after]
        if events and (pending := self._emit(events)) is not None:
            await pending


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
    return await run_sized(len(row.response), _unpack_row, row)


def _unpack_row(row: StoredResponse) -> list[LogEntry]:
    assert row.packed_log is not None  # the response has ended
    try:
        return unpack(row.packed_log, row.response)
    except UnreadableLog as error:
        log.error("the events of %s cannot be read: %s", row.id, error)
        raise Internal("The events of this response can no longer be read; the response itself is still available.")
