"""Follows a response from any event on: while it runs here, while it runs in another process, and after it ended.

    active run here ──▶ live log and store ──▶ packed log          each entry once, in order; it always ends

A response of another process is read from the live log and the store. Waiters are woken by notifications and poll every
second in case one is lost. A store that does not respond is retried for a while, then Unavailable is raised.
"""

import asyncio
from collections.abc import Awaitable, Callable
from time import time
from typing import TypeVar

from antiphon.agent.run import EventSink
from antiphon.core.emitter.event_log import LoggedError, RunEnded
from antiphon.core.replay import decode_entries, reset_response
from antiphon.errors import AntiphonError, EngineFailed, NotFound, Unavailable
from antiphon.protocol.types.response import Response
from antiphon.service.persistence.live_updates import Notifications, Waiter
from antiphon.service.persistence.rows import decode_response, restore_request
from antiphon.service.persistence.stored_responses import unknown_response_error
from antiphon.service.runs.active_runs import ActiveRun
from antiphon.service.runs.detached_runs import DetachedRuns
from antiphon.service.runs.event_feed import EventFeed, load_log
from antiphon.stores.base import RUNNING_STATUSES, Store, StoredResponse
from antiphon.stores.live.base import LiveLog

T = TypeVar("T")

_POLL_SECONDS = 1.0  # between polls without a notification
_RETRY_SECONDS = 30.0  # for retries while the store does not respond


class FollowService:
    """Creates sources for responses that this or another process runs or has run."""

    def __init__(self, store: Store, live: LiveLog, detached_runs: DetachedRuns) -> None:
        self.store = store
        self.live = live
        self._detached_runs = detached_runs

    @property
    def notifications(self) -> Notifications:
        return self._detached_runs.notifications

    def follow(self, active: ActiveRun) -> "Follower":
        """Follow from the first event. Closing the source is how a foreground run loses a reader."""
        return Follower(self, active.tenant, active.opening, active.obfuscates, active=active)

    def follow_queued(self, tenant: str, opening: Response, padded: bool) -> "Follower":
        """Follow a queued response, whichever server will run it."""
        return Follower(self, tenant, opening, padded)

    async def replay(
        self, tenant: str, response_id: str, after: int = -1, obfuscates: bool | None = None
    ) -> "Follower":
        """Return a source of the events numbered above `after`; its `result()` waits for the end and returns the JSON.

        Deltas are padded as the original request says, unless `obfuscates` is given. Raises NotFound.
        """
        if (active := self._detached_runs.find(tenant, response_id)) is not None:
            padded = active.obfuscates if obfuscates is None else obfuscates
            return Follower(self, tenant, active.opening, padded, after, active)
        row = await self.store.get(tenant, response_id)
        if row is None:
            raise unknown_response_error(response_id)
        padded = _wants_padding(row) if obfuscates is None else obfuscates
        return Follower(self, tenant, reset_response(decode_response(row.response)), padded, after)


class Follower:
    """A source of events that other readers may receive too, live or replayed."""

    def __init__(
        self,
        service: FollowService,
        tenant: str,
        opening: Response,
        padded: bool,
        after: int = -1,
        active: ActiveRun | None = None,
    ) -> None:
        self._service = service
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
            last = (await load_log(row))[-1]
            if isinstance(last, RunEnded) and last.fault is not None:
                raise _to_error(last.fault)
        return row.response

    def close(self) -> None:
        if self._active is not None and not self._closed:
            self._closed = True
            self._active.detach()

    async def _follow_active(self, active: ActiveRun, feed: EventFeed) -> None:
        """Feed everything that is visible in the active run until it is over."""
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
        while not active.is_over:
            await self._wait(active.wait_for_more(active.visible_lists))
        if isinstance(active.outcome, AntiphonError):
            raise active.outcome
        return active.outcome

    async def _follow_remote(self, feed: EventFeed) -> None:
        """Feed all entries that were not fed yet. Raises NotFound if the response is deleted."""
        live = self._service.live
        with self._service.notifications.subscribe(self._opening.id) as waiter:
            batches = entries = 0  # of the live log
            while not feed.ended:
                waiter.clear()
                if added := await self._retry(lambda: live.read(*self._key, batches - 1), waiter):  # noqa: B023
                    new_entries = [entry for batch in added for entry in decode_entries(batch)]
                    before, batches, entries = entries, batches + len(added), entries + len(new_entries)
                    await feed.feed(new_entries, feed.entry_count - before)
                    continue
                row = await self._retry(self._load_row, waiter)
                if row.status not in RUNNING_STATUSES:
                    await feed.feed(await load_log(row), feed.entry_count)
                    return
                await self._wait_notified(waiter)

    async def _wait_ended(self) -> StoredResponse:
        """Return the row once the response has ended. Raises NotFound if it is deleted."""
        with self._service.notifications.subscribe(self._opening.id) as waiter:
            while True:
                waiter.clear()
                row = await self._retry(self._load_row, waiter)
                if row.status not in RUNNING_STATUSES:
                    return row
                await self._wait_notified(waiter)

    async def _load_row(self) -> StoredResponse:
        row = await self._service.store.get(*self._key)
        if row is None:
            raise unknown_response_error(self._opening.id)
        return row

    async def _retry(self, operation: Callable[[], Awaitable[T]], waiter: Waiter) -> T:
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

    async def _wait_notified(self, waiter: Waiter) -> None:
        if self._service.notifications.closed:
            raise Unavailable("The server is shutting down.", retry_after=2.0)
        await self._wait(waiter.wait(_POLL_SECONDS))

    async def _wait(self, awaitable: Awaitable[None]) -> None:
        self.waits = True
        try:
            await awaitable
        finally:
            self.waits = False


def _wants_padding(row: StoredResponse) -> bool:
    options = restore_request(row).request.stream_options
    return options is not None and options.include_obfuscation


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
