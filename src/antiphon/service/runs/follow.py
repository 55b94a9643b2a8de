"""Follows a response from any event on: while it runs here, while it runs in another process, and after it ended.

    active run here ──▶ live log and store ──▶ packed log          each entry once, in order; it always ends

A response of another process is read from the live log and the store. Waiters are woken by notifications and poll every
second in case one is lost. A store that does not respond is retried for a while, then Unavailable is raised.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from itertools import groupby, islice
from time import time
from typing import TypeVar

from antiphon.agent.run import EventSink
from antiphon.core.emitter.event_log import LogEntry, LoggedError, RunEnded
from antiphon.core.emitter.fold import ResponseEnding, error_event, to_logged_error
from antiphon.core.replay import Replay, UnreadableLog, decode_entries, reset_response, unpack
from antiphon.errors import AntiphonError, EngineFailed, Internal, NotFound, Unavailable
from antiphon.offload import TimedEvent, run_sized
from antiphon.protocol.types.events import Event
from antiphon.protocol.types.response import Response
from antiphon.service.persistence.rows import decode_response, load_row, restore_request
from antiphon.service.persistence.stored_images import IMAGE_ENTRIES, join_images
from antiphon.service.runs.active_runs import ActiveRun
from antiphon.service.runs.detached_runs import DetachedRuns
from antiphon.stores.base import RUNNING_STATUSES, StoredResponse

log = logging.getLogger(__name__)

T = TypeVar("T")

_BATCH_SIZE = 200  # entries that are replayed before other tasks get to run
_POLL_SECONDS = 1.0  # between polls without a notification
_RETRY_SECONDS = 30.0  # for retries while the store does not respond


class EventFeed:
    """Replays log entries as events to one sink: each once, in order, above the requested sequence number.

    Entries may come from the log of this process, a live log or a packed log. They are counted, so a reader that moves
    from one to the next neither skips nor repeats any.
    """

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
        event = error_event(to_logged_error(error))
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


async def replay(
    runs: DetachedRuns, tenant: str, response_id: str, after: int = -1, obfuscates: bool | None = None
) -> "Follower":
    """Return a source of the events numbered above `after`; its `result()` waits for the end and returns the JSON.

    Deltas are padded as the original request says, unless `obfuscates` is set. Raises NotFound.
    """
    if (active := runs.find(tenant, response_id)) is not None:
        padded = active.obfuscates if obfuscates is None else obfuscates
        return Follower(runs, tenant, active.opening, padded, after, active)
    row = await load_row(runs.store, tenant, response_id)
    if obfuscates is None:
        options = restore_request(row).request.stream_options
        obfuscates = options is not None and options.include_obfuscation
    return Follower(runs, tenant, reset_response(decode_response(row.response)), obfuscates, after)


class Follower:
    """A source of events that other readers may receive too, live or replayed.

    `active` is None for a response that another process runs, or that has ended. Closing the source is how a foreground
    run loses a reader.
    """

    def __init__(
        self,
        runs: DetachedRuns,
        tenant: str,
        opening: Response,
        padded: bool,
        after: int = -1,
        active: ActiveRun | None = None,
    ) -> None:
        self._runs = runs
        self._key = tenant, opening.id
        self._opening = opening
        self._padded = padded
        self._after = after
        self._active = active
        self._closed = False
        self.waits = False
        if active is not None:
            active.attach()

    def begin(self) -> None:
        """Return at once: the first event is the created response."""

    async def drive(self, emit: EventSink) -> None:
        feed = EventFeed(self._opening, self._padded, self._after, emit)
        await feed.open()
        if self._active is not None:
            await self._follow_active(self._active, feed)
        if feed.ended:
            return
        try:
            await self._follow_remote(feed)
        except NotFound as error:
            await feed.fail(error, int(time()))
        except AntiphonError as error:
            await feed.break_off(error)

    async def result(self) -> bytes:
        if self._active is not None and (outcome := await self._wait_outcome(self._active)) is not None:
            return outcome
        row = await self._wait_ended()
        if row.status == "failed":
            last = (await _load_log(row))[-1]
            if isinstance(last, RunEnded) and last.fault is not None:
                raise _to_error(last.fault)
        return await join_images(self._runs.images, self._key[0], row.response)

    def close(self) -> None:
        if self._active is not None and not self._closed:
            self._closed = True
            self._active.detach()

    async def _follow_active(self, active: ActiveRun, feed: EventFeed) -> None:
        """Feed everything that is visible in the active run until it is over.

        A run whose end is being stored may be lost meanwhile; then the store has another log than this process.
        """
        if active.run.ended_at is not None:
            await self._wait(active.wait_finished())
            if active.visible_lists < len(active.log):
                return
        position = 0
        while not feed.ended:
            if position < (visible := active.visible_lists):
                lists, position = active.log[position:visible], visible
                await feed.feed([entry for entries in lists for entry in entries])
            elif active.is_over:
                return
            else:
                await self._wait(active.wait_for_more(position))

    async def _wait_outcome(self, active: ActiveRun) -> bytes | None:
        await self._wait(active.wait_finished())
        if isinstance(active.outcome, AntiphonError):
            raise active.outcome
        return active.outcome

    async def _follow_remote(self, feed: EventFeed) -> None:
        """Feed all entries that were not fed yet. Raises NotFound if the response is deleted."""
        live = self._runs.live
        with self._runs.notifications.subscribe(self._opening.id) as waiter:
            batches = entries = 0  # of the live log
            while not feed.ended:
                waiter.clear()
                if added := await self._retry(lambda: live.read(*self._key, batches - 1), waiter):  # noqa: B023
                    new_entries = [entry for batch in added for entry in decode_entries(batch)]
                    before, batches, entries = entries, batches + len(added), entries + len(new_entries)
                    await feed.feed(new_entries, feed.entry_count - before)
                    continue
                row = await self._retry(lambda: load_row(self._runs.store, *self._key, with_request=False), waiter)
                if row.status not in RUNNING_STATUSES:
                    await self._feed_remaining(feed, await _load_log(row))
                    return
                await self._wait_notified(waiter)

    async def _feed_remaining(self, feed: EventFeed, entries: Sequence[LogEntry]) -> None:
        """Feed the entries of a complete log that were not fed yet, with their images, and always its end.

        The log has fewer entries than were fed if another server has ended the response without having its output.
        """
        images, remaining = self._runs.images, entries[feed.entry_count :] or entries[-1:]
        if images is None:
            await feed.feed(remaining)
            return
        for kind, group in groupby(remaining, lambda entry: type(entry) in IMAGE_ENTRIES):
            if not kind:
                await feed.feed([*group])
            else:
                for entry in group:  # one at a time: each may have megabytes
                    await feed.feed([await images.join_entry(self._key[0], entry)])

    async def _wait_ended(self) -> StoredResponse:
        """Return the row once the response has ended. Raises NotFound if it is deleted."""
        with self._runs.notifications.subscribe(self._opening.id) as waiter:
            while True:
                waiter.clear()
                row = await self._retry(lambda: load_row(self._runs.store, *self._key, with_request=False), waiter)
                if row.status not in RUNNING_STATUSES:
                    return row
                await self._wait_notified(waiter)

    async def _retry(self, operation: Callable[[], Awaitable[T]], waiter: TimedEvent) -> T:
        now = asyncio.get_running_loop().time
        deadline = now() + _RETRY_SECONDS
        while True:
            try:
                return await operation()
            except Unavailable:
                if now() >= deadline:
                    raise
            waiter.clear()
            await self._wait_notified(waiter)

    async def _wait_notified(self, waiter: TimedEvent) -> None:
        if self._runs.notifications.closed:
            raise Unavailable("The server is shutting down.", retry_after=2.0)
        await self._wait(waiter.wait_for(_POLL_SECONDS))

    async def _wait(self, awaitable: Awaitable[object]) -> None:
        self.waits = True
        try:
            await awaitable
        finally:
            self.waits = False


async def _load_log(row: StoredResponse) -> list[LogEntry]:
    """Return all log entries of a response that has ended."""
    assert row.packed_log is not None
    try:
        return await run_sized(len(row.response), unpack, row.packed_log, row.response)
    except UnreadableLog as error:
        log.error("the events of %s cannot be read: %s", row.id, error)
        raise Internal("The events of this response can no longer be read; the response itself is still available.")


def _to_error(fault: LoggedError) -> AntiphonError:
    """Return the error as it was raised when the response failed."""
    kind = _ERROR_TYPES.get((fault.type, fault.code), EngineFailed)
    return kind(fault.message, param=fault.param, retry_after=fault.retry_after)


def _collect_types(kind: type[AntiphonError]) -> dict[tuple[str, str | None], type[AntiphonError]]:
    """Map type and code to the error class; the class nearest to the root wins."""
    found = {(kind.type, kind.code): kind}
    for child in kind.__subclasses__():
        found = _collect_types(child) | found
    return found


_ERROR_TYPES = _collect_types(AntiphonError)
