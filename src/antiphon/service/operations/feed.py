"""A live feed of begun and ended responses of a tenant, without contents, for any number of servers on one store.

    store ── the newest summaries, once a second ──▶ TenantFeed ── differences ──▶ FeedReader ──▶ client

It compares what the store lists now with what it listed before, so every server sees the responses of all of them, and
nothing is written for it. A tenant is polled while it has readers. A reader that does not keep up is closed. What is
not stored is added when it ends, for the readers of the process that ran it.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from time import time

from antiphon.agent.completion_run import CompletionRun
from antiphon.agent.model_call_run import Sink
from antiphon.agent.run import Run
from antiphon.errors import AntiphonError, Busy, Unavailable
from antiphon.observe.logs import LOG_CONTEXT
from antiphon.offload import BackgroundTasks, TimedEvent
from antiphon.protocol.types.operations.activity import AnyFeedEvent, FeedClosed, FeedGap, ResponseBegun, ResponseEnded
from antiphon.service.persistence.response_summary import summarise_unstored, to_response_summary
from antiphon.stores.base import SummaryFilter, SummaryRow
from antiphon.stores.sql.store import Store

log = logging.getLogger(__name__)

POLL_SECONDS = 1.0
_WINDOW = 500  # newest responses that are compared; and running ones beside them
_MAX_RECENT = 1000  # events that a reader can get again
_MAX_PENDING = 1000  # events that a reader has not taken yet
_MAX_READERS, _MAX_TENANT_READERS = 128, 16
_RESUME_OVERLAP = 5.0  # seconds of events that are repeated: clocks differ, and writes take time
_CHECK_SECONDS = 5.0  # between two checks of a reader's key
_ALL = SummaryFilter()

CheckKey = Callable[[], Awaitable[None]]  # raises if the key is no longer valid


class FeedReader:
    """One reader: a source of events for Delivery. `since`: earlier events are not repeated."""

    waits = True

    def __init__(self, tenant_feed: "TenantFeed", since: float, check_key: CheckKey) -> None:
        self._tenant_feed = tenant_feed
        self._since = since
        self._check_key = check_key
        self._pending: list[AnyFeedEvent] = []
        self._changed = TimedEvent()
        self._is_closed = False

    def begin(self) -> None:
        """Return at once: there may be no event for a long time."""

    def push_recent(self, events: Iterable[AnyFeedEvent]) -> None:
        self.push([event for event in events if event.at > self._since])

    def push(self, events: Sequence[AnyFeedEvent]) -> None:
        if len(self._pending) + len(events) > _MAX_PENDING:
            self.shut(FeedClosed(at=time(), reason="slow"))
        elif events and not self._is_closed:
            self._pending += events
            self._changed.set()

    def shut(self, last: FeedClosed) -> None:
        """End the stream with this event, after those that are pending."""
        if not self._is_closed:
            self._is_closed = True
            self._pending.append(last)
            self._changed.set()

    async def drive(self, emit: Sink[AnyFeedEvent]) -> None:
        while True:
            is_last, events = self._is_closed, self._take()
            if events and (pending := emit(events)) is not None:
                await pending
            if is_last:
                return
            if not self._pending and not await self._changed.wait_for(_CHECK_SECONDS):
                await self._recheck()

    async def result(self) -> bytes:
        raise NotImplementedError  # there is no end whose JSON could be returned

    def close(self) -> None:
        self._is_closed = True
        self._tenant_feed.remove(self)

    def _take(self) -> list[AnyFeedEvent]:
        events, self._pending = self._pending, []
        self._changed.clear()
        return events

    async def _recheck(self) -> None:
        try:
            await self._check_key()
        except Unavailable:
            return  # the store does not respond; keys that were valid stay so
        except AntiphonError:
            self.shut(FeedClosed(at=time(), reason="key"))


class TenantFeed:
    """The readers of one tenant, and what the store listed at the last poll."""

    def __init__(self, store: Store, tenant: str, on_empty: Callable[[], None]) -> None:
        self._store = store
        self._tenant = tenant
        self._on_empty = on_empty
        self._recent: deque[AnyFeedEvent] = deque(maxlen=_MAX_RECENT)
        self.unstored: deque[ResponseEnded] = deque(maxlen=_WINDOW)  # since the last poll
        self._ended: dict[str, bool] | None = None  # whether a response had ended, by id; None before the first poll
        self.readers: set[FeedReader] = set()

    def add(self, reader: FeedReader) -> None:
        self.readers.add(reader)
        reader.push_recent(self._recent)

    def remove(self, reader: FeedReader) -> None:
        self.readers.discard(reader)
        if not self.readers:
            self._on_empty()

    async def poll_forever(self) -> None:
        """Poll while there are readers. Failures are logged and retried."""
        while self.readers:
            try:
                await self.poll()
            except AntiphonError as error:
                log.warning("the feed could not read the store: %s", error)
            await asyncio.sleep(POLL_SECONDS)

    async def poll(self) -> None:
        before, page = self._ended, await self._store.page_summaries(self._tenant, None, _WINDOW, True, _ALL)
        listed = {row.id for row in page.rows}
        running = [name for name, ended in (before or {}).items() if not ended and name not in listed][:_WINDOW]
        rows = [*page.rows, *(await self._store.find_summaries(self._tenant, running) if running else ())]
        self._ended = {row.id: row.ended is not None for row in rows}
        events = sorted([*_find_changes(rows, before or {}), *self.unstored], key=lambda event: event.at)
        self.unstored.clear()
        if before and len(listed) == _WINDOW and listed.isdisjoint(before):
            events.insert(0, FeedGap(at=events[0].at))
        self._recent += events
        for reader in [*self.readers]:
            if before is None:
                reader.push_recent(events)
            else:
                reader.push(events)


class ActivityFeed:
    """The feeds of all tenants that have readers."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._tenants: dict[str, TenantFeed] = {}
        self._tasks = BackgroundTasks()
        self._is_closed = False

    def subscribe(self, tenant: str, since: float | None, check_key: CheckKey) -> FeedReader:
        """Return a reader, which must be closed. `since`: id of the last event that the client has. Raises Busy."""
        if self._is_closed:
            raise Unavailable("The server is shutting down.", retry_after=2.0)
        self._check_limits(tenant)
        tenant_feed = self._tenants.get(tenant)
        if tenant_feed is None:
            tenant_feed = TenantFeed(self._store, tenant, lambda: self._forget(tenant))
        reader = FeedReader(tenant_feed, time() if since is None else since - _RESUME_OVERLAP, check_key)
        tenant_feed.add(reader)
        if tenant not in self._tenants:
            self._tenants[tenant] = tenant_feed
            self._tasks.start(tenant_feed.poll_forever())
        return reader

    def record_unstored(self, run: Run | CompletionRun) -> None:
        """Add an ended run of the current task to the feed of its tenant, unless it is stored or nobody reads."""
        context = LOG_CONTEXT.get()
        if context is None or (tenant_feed := self._tenants.get(context.tenant)) is None:
            return
        if isinstance(run, CompletionRun) or not run.response.store:
            summary = summarise_unstored(run, context.request_id)
            tenant_feed.unstored.append(ResponseEnded(at=run.ended_at or time(), response=summary))

    def shut(self) -> None:
        """End all streams, since the server drains."""
        self._is_closed = True
        for tenant_feed in self._tenants.values():
            for reader in tenant_feed.readers:
                reader.shut(FeedClosed(at=time(), reason="shutdown"))

    async def close(self) -> None:
        self.shut()
        await self._tasks.close()

    def _forget(self, tenant: str) -> None:
        self._tenants.pop(tenant, None)

    def _check_limits(self, tenant: str) -> None:
        own = len(self._tenants[tenant].readers) if tenant in self._tenants else 0
        total = sum(len(tenant_feed.readers) for tenant_feed in self._tenants.values())
        if own >= _MAX_TENANT_READERS or total >= _MAX_READERS:
            raise Busy("Too many clients read the feed of this server.", retry_after=POLL_SECONDS)


def _find_changes(rows: Iterable[SummaryRow], before: dict[str, bool]) -> Iterable[AnyFeedEvent]:
    for row in rows:
        if row.ended is not None:
            if not before.get(row.id, False):
                yield ResponseEnded(at=row.ended, response=to_response_summary(row))
        elif row.id not in before:
            yield ResponseBegun(at=row.created, response=to_response_summary(row))
