"""Live updates between processes: the live log of a background run, and notifications about responses.

The log records that the run started and, if it streams, its entries:

    log ── gathered entries ──▶ a batch of the live log ──▶ may be shown

One batch is written at a time, and the next one takes everything gathered meanwhile: a slow store makes batches larger
instead of delaying the log. Nothing is shown before it is written. Delivery of notifications is best effort, so waiters
also poll.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, islice
from time import time
from typing import TypeVar

from msgspec import Struct

from antiphon.core.emitter.emitter import EventLog
from antiphon.core.emitter.event_log import LogEntry, RunStarted
from antiphon.core.replay import decode_entries, encode_entries
from antiphon.errors import Unavailable
from antiphon.offload import TimedEvent
from antiphon.service.persistence.response_writer import OwnedRow
from antiphon.stores.live.base import LiveLog

T = TypeVar("T")

QUEUE = "queue"  # pseudo id: the background queue has new entries

_ECHO_SECONDS = 0.1  # within this time the notification of this process's own batch arrives
_FIRST_RETRY_DELAY, _MAX_RETRY_DELAY = 0.02, 1.0  # seconds between attempts while the store is unavailable


class Notifications:
    def __init__(self) -> None:
        self._waiters: dict[str, set[TimedEvent]] = {}
        self.closed = False  # waiting is no longer allowed

    @contextmanager
    def subscribe(self, response_id: str) -> Iterator[TimedEvent]:
        """Yield an event that notifications set. Clear it before reading the state, so that only later ones count."""
        waiter = TimedEvent()
        waiters = self._waiters.setdefault(response_id, set())
        waiters.add(waiter)
        try:
            yield waiter
        finally:
            waiters.discard(waiter)
            if not waiters:
                self._waiters.pop(response_id, None)

    def notify(self, response_id: str) -> None:
        for waiter in self._waiters.get(response_id, ()):
            waiter.set()

    def close(self) -> None:
        self.closed = True
        for waiters in self._waiters.values():
            for waiter in waiters:
                waiter.set()


class PriorLog(Struct, frozen=True):
    """The live log that a former owner wrote before it died."""

    batches: int = 0
    entries: tuple[LogEntry, ...] = ()

    @property
    def has_output(self) -> bool:
        """Whether it contains more than the start: clients may have seen output, so the run cannot be repeated."""
        return any(type(entry) is not RunStarted for entry in self.entries)


async def read_prior_log(live: LiveLog, tenant: str, response_id: str) -> PriorLog:
    batches = await live.read(tenant, response_id, -1)
    return PriorLog(len(batches), tuple(chain.from_iterable(map(decode_entries, batches))))


async def retry_unavailable(operation: Callable[[], Awaitable[T]], seconds: float) -> T:
    """Repeat the operation while the store is unavailable, for so many seconds; then raise Unavailable."""
    clock = asyncio.get_running_loop()
    deadline, pause = clock.time() + seconds, _FIRST_RETRY_DELAY
    while True:
        try:
            return await operation()
        except Unavailable:
            if clock.time() >= deadline:
                raise
        await asyncio.sleep(pause)
        pause = min(2 * pause, _MAX_RETRY_DELAY)


class LiveWriter:
    """Writes the log of one run. `has_output` is set as soon as a delta is being written to the live log."""

    def __init__(self, live: LiveLog, owned_row: OwnedRow, lease: float, prior: PriorLog) -> None:
        self._live = live
        self._owned_row = owned_row
        self._lease = lease
        self._number = prior.batches
        self._skip = len(prior.entries)  # first log entries that a former owner already wrote
        self._growth = asyncio.Event()
        self._started = asyncio.Event()  # also set if the run will never start
        self._closed = False
        self._written_lists = 0  # lists of the log that are written
        self._writable_lists = 0  # lists of the log that may be written
        self._progress = asyncio.Event()
        self._clock = asyncio.get_running_loop().time
        self._last_write = -_ECHO_SECONDS
        self.has_output = False

    async def write(self, log: EventLog, streams: bool, show: Callable[[int], None]) -> None:
        """Write until closed. Raises ServerRestarted or OwnershipLost if this process lost the run, and Unavailable."""
        try:
            if not await self._wait_for_more(0):
                return
            await retry_unavailable(self._owned_row.start, self._lease)
        finally:
            self._started.set()
        while streams and await self._wait_for_more(self._written_lists):
            gathered = log[self._written_lists : self._writable_lists]
            await self._append([*islice(chain.from_iterable(gathered), self._skip, None)])
            self._skip = 0
            self._written_lists += len(gathered)
            self._progress.set()
            show(self._written_lists)

    async def wait_written(self, log: EventLog) -> None:
        """Wait until the current log is written or the writer is closed. A failing writer ends the run."""
        target = len(log)
        while self._written_lists < target and not self._closed:
            self._progress.clear()
            await self._progress.wait()

    def iter_written(self, log: EventLog) -> Iterable[LogEntry]:
        """Return the entries that another server would find in the live log."""
        return chain.from_iterable(log[: self._written_lists])

    def note_growth(self, lists: int) -> None:
        """Allow the first `lists` lists of the log to be written; later ones may depend on a record not yet stored."""
        self._writable_lists = lists
        self._growth.set()

    @property
    def has_started(self) -> bool:
        """Whether the store has confirmed the ownership, or the run will never start."""
        return self._started.is_set()

    async def wait_started(self) -> None:
        """Wait until the run has started.

        It is awaited before the engine is called: a process that slept past its lease learns here that others ran it.
        """
        await self._started.wait()

    def close(self) -> None:
        """Stop writing; a batch in flight is still written."""
        self._closed = True
        self._growth.set()
        self._progress.set()

    def get_echo_seconds(self) -> float:
        """Return the seconds for which a notification may stem from this process's own batch.

        A process that keeps writing learns from the write itself whether it still owns the run.
        """
        return self._last_write + _ECHO_SECONDS - self._clock()

    async def _wait_for_more(self, seen: int) -> bool:
        """Wait for more lists than `seen`. Returns False when closed."""
        while self._writable_lists == seen and not self._closed:
            self._growth.clear()
            await self._growth.wait()
        return not self._closed

    async def _append(self, entries: list[LogEntry]) -> None:
        if not entries:
            return
        self.has_output = self.has_output or any(type(entry) is not RunStarted for entry in entries)
        owned_row, number, batch = self._owned_row, self._number, encode_entries(entries)
        self._last_write, began = self._clock(), time()
        await retry_unavailable(
            lambda: self._live.append(owned_row.tenant, owned_row.id, owned_row.fence, number, batch), self._lease
        )
        owned_row.note_write("events", began)
        self._number += 1
        self._last_write = self._clock()
