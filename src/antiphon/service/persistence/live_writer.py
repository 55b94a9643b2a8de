"""What is written of a background run while it goes on: that it began and, if it streams, what happened.

    log ── what has gathered ──▶ a batch of the live log ──▶ may be shown

One batch is written at a time, and the next one takes all that came meanwhile: a slow store makes batches longer, not
the log late. Nobody is shown anything that could be forgotten.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from itertools import chain, islice
from typing import TypeVar

from msgspec import Struct

from antiphon.core.emitter.emitter import Log
from antiphon.core.emitter.event_log import Began, Entry
from antiphon.core.replay.replay import decode_entries, encode_entries
from antiphon.errors import Unavailable
from antiphon.service.persistence.response_writer import Kept
from antiphon.stores.live.base import LiveLog

T = TypeVar("T")

_ECHO = 0.1  # seconds in which the word of one's own batch comes back
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0  # seconds before a store is asked again


class Left(Struct, frozen=True):
    """What a former owner wrote before it died."""

    batches: int = 0
    entries: tuple[Entry, ...] = ()

    @property
    def spoken(self) -> bool:
        """Did it get further than to begin? Then it cannot be run again: somebody may have heard it."""
        return any(type(entry) is not Began for entry in self.entries)


async def left_behind(live: LiveLog, tenant: str, response_id: str) -> Left:
    batches = await live.read(tenant, response_id, -1)
    return Left(len(batches), tuple(chain.from_iterable(map(decode_entries, batches))))


async def insist(work: Callable[[], Awaitable[T]], seconds: float) -> T:
    """A store that does not answer is asked again for so long; then Unavailable is raised."""
    clock = asyncio.get_running_loop()
    until, pause = clock.time() + seconds, _FIRST_PAUSE
    while True:
        try:
            return await work()
        except Unavailable:
            if clock.time() >= until:
                raise
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


class Journal:
    """`spoken` from the moment that a delta is on its way to the live log."""

    def __init__(self, live: LiveLog, kept: Kept, lease: float, left: Left) -> None:
        self._live = live
        self._kept = kept
        self._lease = lease
        self._number = left.batches
        self._skip = len(left.entries)  # of the log's first entries: they were written by a former owner
        self._grown = asyncio.Event()
        self._begun = asyncio.Event()  # or it never will
        self._closed = False
        self._lists = 0  # of the log, that are written
        self._told = 0  # and that may be
        self._wrote_some = asyncio.Event()
        self._now = asyncio.get_running_loop().time
        self._wrote = -_ECHO
        self.spoken = False

    async def write(self, log: Log, streams: bool, show: Callable[[int], None]) -> None:
        """Until it is closed. Raises ServerRestarted or Lost if the run is not ours any more, and Unavailable."""
        try:
            if not await self._more(0):
                return
            await insist(self._kept.start, self._lease)
        finally:
            self._begun.set()
        while streams and await self._more(self._lists):
            gathered = log[self._lists : self._told]
            await self._append([*islice(chain.from_iterable(gathered), self._skip, None)])
            self._skip = 0
            self._lists += len(gathered)
            self._wrote_some.set()
            show(self._lists)

    async def caught_up(self, log: Log) -> None:
        """Until all of the log is written, if it is. Who cannot write ends the run; nobody waits here for ever."""
        wanted = len(log)
        while self._lists < wanted and not self._closed:
            self._wrote_some.clear()
            await self._wrote_some.wait()

    def written(self, log: Log) -> Iterable[Entry]:
        """What another server would find of it."""
        return chain.from_iterable(log[: self._lists])

    def grew(self, lists: int) -> None:
        """So many lists of the log are told. What was fed and not told yet may hang on something that has to be
        remembered first."""
        self._told = lists
        self._grown.set()

    def begun(self) -> Awaitable[None] | None:
        """What is to be awaited before the engine is given the work: the store's word that it is ours to run.

        Who slept through the end of its lease is told here that others have run it.
        """
        return None if self._begun.is_set() else self._has_begun()

    async def _has_begun(self) -> None:
        await self._begun.wait()

    def close(self) -> None:
        """Nothing more is written; a batch that is on its way arrives."""
        self._closed = True
        self._grown.set()
        self._wrote_some.set()

    def echo(self) -> float:
        """Seconds for which a word may be that of our own batch. Who goes on writing finds out by that what is true."""
        return self._wrote + _ECHO - self._now()

    async def _more(self, seen: int) -> bool:
        """False when it is closed."""
        while self._told == seen and not self._closed:
            self._grown.clear()
            await self._grown.wait()
        return not self._closed

    async def _append(self, entries: list[Entry]) -> None:
        if not entries:
            return
        self.spoken = self.spoken or any(type(entry) is not Began for entry in entries)
        kept, number, batch = self._kept, self._number, encode_entries(entries)
        self._wrote = self._now()
        await insist(lambda: self._live.append(kept.tenant, kept.id, kept.fence, number, batch), self._lease)
        self._number += 1
        self._wrote = self._now()
