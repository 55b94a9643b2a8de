"""Two servers on one PostgreSQL and one Redis, behind a proxy: each is killed, told to stop and started again, and so
is the database; what was done when is written down, so that everything that clients noticed finds its reason."""

import asyncio
import contextlib
import os
import signal
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

from msgspec import Struct

from drills.harness.process import Process, Servers, servers
from drills.harness.storage_locations import Place
from drills.replicas.proxy import Proxy, proxying
from tests.support.services import Postgres, postgres_server, redis_server

REPLICAS = 2
GRACE = 10.0
NOTICE = 1.0  # seconds after PostgreSQL is there again in which somebody may not know that yet
_CONFIG = {"fake_rate": 60.0, "shutdown_grace": GRACE, "log_level": "warning"}
_AFTER = 10.0  # seconds after its grace in which a server must be gone
_START_SECONDS = 180.0
_AGAIN_SECONDS = 0.3  # before a server that could not start is started again


class Outage(Struct):
    """Of PostgreSQL, on the clock of time.monotonic."""

    down: float
    up: float | None = None

    def covers(self, begin: float, end: float, later: float = 0.0) -> bool:
        """Was it away at any moment between these, or until so long before?"""
        return end >= self.down and (self.up is None or begin <= self.up + NOTICE + later)


class House:
    def __init__(self, place: Place, processes: Servers, proxy: Proxy, postgres: Postgres) -> None:
        self.place = place
        self.proxy = proxy
        self.postgres = postgres
        self.outages: list[Outage] = []
        self.killed: dict[int, float] = {}  # processes, when
        self.stopped: dict[int, float] = {}  # the same for those that were told to stop
        self.slowest_stop = 0.0  # seconds
        self._processes = processes
        self._seats: list[Process] = []

    async def open(self) -> None:
        self._seats = [*await asyncio.gather(*(self._started() for _ in range(REPLICAS)))]

    async def kill(self, seat: int) -> None:
        process = self._seats[seat]
        self.killed[process.pid] = time.monotonic()
        process.kill()
        await self._replaced(seat)

    async def stop(self, seat: int) -> str:
        """In good order, as a rolling restart does it. Gives what is wrong with it."""
        process = self._seats[seat]
        self.stopped[process.pid] = began = time.monotonic()
        process.send(signal.SIGTERM)
        ended = await process.died(GRACE + _AFTER)
        took = time.monotonic() - began
        self.slowest_stop = max(self.slowest_stop, took)
        await self._replaced(seat)
        return "" if ended else f"a server that was told to stop had not ended after {took:.1f} s"

    async def restart_postgres(self, seconds: float, crash: bool) -> None:
        """It is away for so long, and as long as it takes to stop and to start."""
        outage = Outage(time.monotonic())
        self.outages.append(outage)
        if crash:
            os.kill(int(self.postgres.socket.with_name("postmaster.pid").read_text().split()[0]), signal.SIGQUIT)
        await asyncio.to_thread(self.postgres.stop)
        await asyncio.sleep(seconds)
        await asyncio.to_thread(self.postgres.start)
        outage.up = time.monotonic()

    async def close(self) -> None:
        await asyncio.gather(*(process.stop() for process in self._seats))
        for process in self._seats:
            self._processes.gone(process)

    def away(self, begin: float, end: float, later: float = 0.0) -> bool:
        """Was PostgreSQL away at any moment between these?"""
        return any(outage.covers(begin, end, later) for outage in self.outages)

    @property
    def tracebacks(self) -> list[str]:
        return self._processes.tracebacks

    async def _replaced(self, seat: int) -> None:
        """The proxy finds out by itself that somebody is gone."""
        gone = self._seats[seat]
        self._seats[seat] = await self._started()
        self.proxy.remove(gone.pid)
        self._processes.gone(gone)

    async def _started(self) -> Process:
        """As whoever looks after servers does it: again and again, while the database is away."""
        deadline = time.monotonic() + _START_SECONDS
        while True:
            process = self._processes.begin()
            try:
                await process.ready(_START_SECONDS)
            except RuntimeError:
                self._processes.gone(process)
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(_AGAIN_SECONDS)
            else:
                self.proxy.add(process.pid, process.client.port)
                return process


@contextlib.asynccontextmanager
async def house(lease: float) -> AsyncIterator[House]:
    with contextlib.ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="antiphon-drill-")))
        postgres = await asyncio.to_thread(opened.enter_context, postgres_server())
        # What was committed survives its crash. By itself this PostgreSQL would not wait for that.
        postgres.sql("ALTER SYSTEM SET synchronous_commit = 'on'")
        postgres.sql("SELECT pg_reload_conf()")
        live = opened.enter_context(redis_server()).url
        place = Place(folder=folder, store=opened.enter_context(postgres.database()), live=live)
        processes = opened.enter_context(servers(place, {**_CONFIG, "lease_seconds": lease}))
        async with proxying() as proxy:
            found = House(place, processes, proxy, postgres)
            await found.open()
            yield found
