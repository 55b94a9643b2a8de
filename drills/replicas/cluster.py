"""Two servers on one PostgreSQL and one Redis, behind a proxy.

Each server is killed, stopped and started again, and so is the database. All interruptions are recorded with their
times, so that every fault that clients observe can be attributed.
"""

import asyncio
import contextlib
import os
import signal
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

from msgspec import Struct

from drills.harness.process import Process, Servers, open_servers
from drills.harness.storage_locations import StorageLocation
from drills.replicas.proxy import Proxy, run_proxy
from tests.support.services import Postgres, postgres_server, redis_server

REPLICAS = 2
GRACE_SECONDS = 10.0
NOTICE_SECONDS = 1.0  # seconds after the return of PostgreSQL in which a server may not have noticed it yet
_CONFIG = {"fake_rate": 60.0, "shutdown_grace": GRACE_SECONDS, "log_level": "warning"}
_EXIT_SECONDS = 10.0  # seconds after the grace period in which a server must have exited
_START_SECONDS = 180.0
_RETRY_SECONDS = 0.3  # before a server that could not start is started again


class Outage(Struct):
    """An outage of PostgreSQL, in times of `time.monotonic`."""

    down: float
    up: float | None = None

    def overlaps(self, begin: float, end: float, margin: float = 0.0) -> bool:
        """Whether PostgreSQL was down between these times, or until `margin` (and NOTICE_SECONDS) before them."""
        return end >= self.down and (self.up is None or begin <= self.up + NOTICE_SECONDS + margin)


class ReplicaCluster:
    def __init__(self, storage: StorageLocation, processes: Servers, proxy: Proxy, postgres: Postgres) -> None:
        self.storage = storage
        self.proxy = proxy
        self.postgres = postgres
        self.outages: list[Outage] = []
        self.killed: dict[int, float] = {}  # time by process id
        self.stopped: dict[int, float] = {}  # time by process id
        self.slowest_stop = 0.0
        self._processes = processes
        self._replicas: list[Process] = []

    async def open(self) -> None:
        self._replicas = [*await asyncio.gather(*(self._start_replica() for _ in range(REPLICAS)))]

    async def kill(self, index: int) -> None:
        process = self._replicas[index]
        self.killed[process.pid] = time.monotonic()
        process.kill()
        await self._replace(index)

    async def stop(self, index: int) -> str:
        """Shut a server down and replace it, as in a rolling restart. Returns a violation or ""."""
        process = self._replicas[index]
        self.stopped[process.pid] = began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        ended = await process.wait_for_exit(GRACE_SECONDS + _EXIT_SECONDS)
        took = time.monotonic() - began
        self.slowest_stop = max(self.slowest_stop, took)
        await self._replace(index)
        return "" if ended else f"a stopped server had not exited after {took:.1f} s"

    async def restart_postgres(self, seconds: float, crash: bool) -> None:
        """Stop PostgreSQL for this time, in addition to the time that it takes to stop and start."""
        outage = Outage(time.monotonic())
        self.outages.append(outage)
        if crash:
            os.kill(int(self.postgres.socket.with_name("postmaster.pid").read_text().split()[0]), signal.SIGQUIT)
        await asyncio.to_thread(self.postgres.stop)
        await asyncio.sleep(seconds)
        await asyncio.to_thread(self.postgres.start)
        outage.up = time.monotonic()

    async def close(self) -> None:
        await asyncio.gather(*(process.stop() for process in self._replicas))
        for process in self._replicas:
            self._processes.discard(process)

    def is_postgres_down(self, begin: float, end: float, margin: float = 0.0) -> bool:
        """Whether PostgreSQL was down between these times."""
        return any(outage.overlaps(begin, end, margin) for outage in self.outages)

    @property
    def tracebacks(self) -> list[str]:
        return self._processes.tracebacks

    async def _replace(self, index: int) -> None:
        """Start a replacement first: the proxy must notice by itself that a server is gone."""
        old = self._replicas[index]
        self._replicas[index] = await self._start_replica()
        self.proxy.remove(old.pid)
        self._processes.discard(old)

    async def _start_replica(self) -> Process:
        """Start a server as a process manager does: repeatedly, while the database is down."""
        deadline = time.monotonic() + _START_SECONDS
        while True:
            process = self._processes.spawn()
            try:
                await process.wait_until_ready(_START_SECONDS)
            except RuntimeError:
                self._processes.discard(process)
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                self.proxy.add(process.pid, process.client.port)
                return process


@contextlib.asynccontextmanager
async def open_cluster(lease: float) -> AsyncIterator[ReplicaCluster]:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="antiphon-drill-")))
        postgres = await asyncio.to_thread(stack.enter_context, postgres_server())
        # Committed data must survive a crash; this test server does not wait for its disk by default.
        postgres.run_sql("ALTER SYSTEM SET synchronous_commit = 'on'")
        postgres.run_sql("SELECT pg_reload_conf()")
        live = stack.enter_context(redis_server()).url
        storage = StorageLocation(folder=folder, store=stack.enter_context(postgres.temporary_database()), live=live)
        processes = stack.enter_context(open_servers(storage, {**_CONFIG, "lease_seconds": lease}))
        async with run_proxy() as proxy:
            cluster = ReplicaCluster(storage, processes, proxy, postgres)
            await cluster.open()
            yield cluster
