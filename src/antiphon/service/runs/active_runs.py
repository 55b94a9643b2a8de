"""A response that runs in this process, as those who follow it see it: its log, and how much of it may be told.

A direct run is driven by its own client and may be followed by others: they are told its log without its end, until
that end is kept. A session (sessions.py) says itself how much may be told.
"""

import asyncio
from collections.abc import Callable, Sequence

from msgspec import Struct

from antiphon.agent.run import Run
from antiphon.core.emitter.emitter import Emitter, Log
from antiphon.core.emitter.event_log import Ended, Entry
from antiphon.errors import AntiphonError, Busy
from antiphon.protocol.types.response import Response
from antiphon.service.planning.planner import Undertaking


class Running:
    def __init__(self, tenant: str, opening: Response, obfuscates: bool, log: Log) -> None:
        self.tenant = tenant
        self.opening = opening
        self.obfuscates = obfuscates
        self.log = log
        self.shown = 0  # of the log's lists; the others may not be told yet
        self.over = False  # nothing more will be shown
        self.outcome: bytes | AntiphonError | None = None  # of one that is over; None: only the store can tell
        self._news: asyncio.Event | None = None

    def attach(self) -> None:
        """Somebody follows it."""

    def detach(self) -> None:
        """Somebody does not follow it any more."""

    def show(self, shown: int) -> None:
        self.shown = shown
        if self._news is not None:
            self._news.set()

    def end(self) -> None:
        """Nothing more will come."""
        self.over = True
        self.show(self.shown)

    async def finished(self) -> None:
        """Until it is over."""
        while not self.over:
            await self.news(self.shown)

    async def news(self, seen: int) -> None:
        """Until more of the log is shown than this, or it is over."""
        if self._news is None:
            self._news = asyncio.Event()
        while self.shown == seen and not self.over:
            self._news.clear()
            await self._news.wait()


class Driven(Running):
    """By its own client. Its log says when it grows once somebody follows it; before, nobody pays for that."""

    def __init__(self, tenant: str, undertaking: Undertaking, emitter: Emitter) -> None:
        assert emitter.log is not None
        super().__init__(tenant, undertaking.opening, undertaking.obfuscates, emitter.log)
        self._emitter = emitter

    def attach(self) -> None:
        if not isinstance(self.log, _Heard) and not self.over:
            self.log = self._emitter.log = _Heard(self.log, self._grew)
            self._grew()

    def end(self) -> None:
        self.shown = len(self.log)
        super().end()

    def _grew(self) -> None:
        last = self.log[-1] if self.log else ()
        self.show(len(self.log) - (len(last) == 1 and type(last[0]) is Ended))


class _Heard(list[Sequence[Entry]]):
    def __init__(self, entries: Log, grew: Callable[[], None]) -> None:
        super().__init__(entries)
        self._grew = grew

    def append(self, entries: Sequence[Entry], /) -> None:
        super().append(entries)
        self._grew()


class Place(Struct, eq=False):
    """One of the places for responses that run at once. Leave it whatever happens; leaving twice is no harm."""

    _places: "Places"
    _tenant: str
    running: Running | None = None  # as others see it, if they may follow it
    run: Run | None = None  # that its own client drives

    def show(self, tenant: str, undertaking: Undertaking, emitter: Emitter) -> None:
        """From now on others may follow this direct run; its emitter has a log."""
        self.take(Driven(tenant, undertaking, emitter))

    def take(self, running: Running) -> None:
        self.running = running
        self._places.taken[running.opening.id] = running

    def leave(self) -> None:
        """Its end is kept (or there is none): whoever follows it is told the rest of its log now."""
        places, tenant = self._places, self._tenant
        if self not in places.held:
            return
        places.held.remove(self)
        if (others := places.of[tenant] - 1) > 0:
            places.of[tenant] = others
        else:
            del places.of[tenant]
        self.run = None  # it may know us
        if (running := self.running) is not None:
            if places.taken.get(running.opening.id) is running:  # and not another attempt at the same
                del places.taken[running.opening.id]
            running.end()


class Places:
    """All that runs here, by its id. A tenant of whom nothing runs is let in even if others have taken all places."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.held: set[Place] = set()
        self.of: dict[str, int] = {}  # tenants, how many
        self.taken: dict[str, Running] = {}

    def enter(self, tenant: str = "", extra: bool = False) -> Place:
        """Raises Busy when too many run. `extra`: for work with a bound of its own."""
        if len(self.held) >= self._most and tenant in self.of and not extra:
            raise Busy("Too many responses run at once. Try again later.", retry_after=1.0)
        self.held.add(place := Place(self, tenant))
        self.of[tenant] = self.of.get(tenant, 0) + 1
        return place

    def find(self, tenant: str, response_id: str) -> Running | None:
        running = self.taken.get(response_id)
        return running if running is not None and running.tenant == tenant else None
