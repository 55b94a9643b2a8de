"""The sandbox workers of --sandbox-url: a container is on one of them.

Each address of each host name is a worker. All servers try them in the same order for a container, which its id
determines: a new one is made on the first worker that takes it, and another server finds it there.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from hashlib import sha256
from socket import AF_INET, SOCK_STREAM
from urllib.parse import SplitResult

from msgspec.structs import replace

from antiphon.config.areas import SandboxLevel
from antiphon.errors import Busy, SandboxUnavailable, UnknownContainer
from antiphon.sandbox.base import ContainerLimits, SandboxStatus
from antiphon.sandbox.client import CodeSandbox, read_status, start_container
from antiphon.sandbox.connection import SandboxConnection
from antiphon.sandbox.remote import RemoteWorker, find_port

_LOOKUP_SECONDS = 5.0
_REFRESH_SECONDS = 5.0  # until addresses are looked up again
_MAX_LOCATIONS = 10_000
_WEAKEST = "landlock"


class WorkerPool(CodeSandbox):
    def __init__(self, urls: Sequence[SplitResult], key: str, level: SandboxLevel = "auto") -> None:
        self._urls = urls
        self._key = key
        self._level = level
        self.name = f"workers:{sha256(key.encode()).hexdigest()[:12]}"  # a worker separates them by key
        self._workers: dict[tuple[SplitResult, str], RemoteWorker] = {}
        self._locations: dict[str, RemoteWorker] = {}  # by container
        self._resolved_at = float("-inf")
        self._lock = asyncio.Lock()

    async def start(self, container_id: str, limits: ContainerLimits) -> None:
        """Make a container on the first worker that can be reached and has room."""
        failures: list[Busy | SandboxUnavailable] = []
        for worker in await self._rank(container_id):
            try:
                connection = await worker.open()
            except SandboxUnavailable as error:
                failures.append(error)
                continue
            try:  # any other failure is final: this worker may have made the container
                await start_container(connection, container_id, limits)
                self._note(container_id, worker)
                return
            except Busy as error:
                failures.append(error)
        raise failures[0]

    async def status(self) -> SandboxStatus:
        """Return what the weakest worker is, with the containers and kills of all.

        Raises SandboxUnavailable if one of them does not answer: its containers are not lost.
        """
        connections = await asyncio.gather(*(worker.open() for worker in await self._resolve()))
        found = await asyncio.gather(*map(read_status, connections))
        weakest = next((one for one in found if one.level == _WEAKEST), found[0])
        kills: Counter[str] = Counter()
        for one in found:
            kills.update(one.kills)
        containers = {name for one in found for name in one.containers}
        return replace(weakest, containers=(*sorted(containers),), kills=dict(kills))

    async def close(self) -> None:
        for worker in self._workers.values():
            await worker.close()
        self._workers.clear()
        self._locations.clear()

    async def connect(self, container_id: str) -> SandboxConnection:
        """Return the connection to the worker that has a container. It is unknown if all answer, and none has it."""
        workers = await self._rank(container_id)
        if (located := self._locations.get(container_id)) in workers:
            assert located is not None
            return await located.open()
        failure = None
        for worker in workers:
            try:
                connection = await worker.open()
                if container_id in (await read_status(connection)).containers:
                    self._note(container_id, worker)
                    return connection
            except SandboxUnavailable as error:
                failure = error
        raise failure or UnknownContainer("There is no container with this id.")

    def _note(self, container_id: str, worker: RemoteWorker) -> None:
        self._locations[container_id] = worker
        if len(self._locations) > _MAX_LOCATIONS:
            del self._locations[next(iter(self._locations))]

    async def _rank(self, container_id: str) -> list[RemoteWorker]:
        """Return the workers in the order of a container: another worker changes it for few containers only."""
        workers = await self._resolve()
        return sorted(workers, key=lambda worker: sha256(f"{worker.name} {container_id}".encode()).digest())

    async def _resolve(self) -> Sequence[RemoteWorker]:
        """Return the workers of all addresses. Those whose address is gone are disconnected."""
        async with self._lock:
            if time.monotonic() - self._resolved_at > _REFRESH_SECONDS:
                found = {(url, address) for url in self._urls for address in await self._look_up(url)}
                for missing in self._workers.keys() - found:
                    await self._workers.pop(missing).close()
                for url, address in found - self._workers.keys():
                    worker = RemoteWorker(url, address, self._key, self._level)
                    self._workers[url, address] = worker
                self._resolved_at = time.monotonic()
            return [*self._workers.values()]

    async def _look_up(self, url: SplitResult) -> set[str]:
        """Return the addresses of a name, of one family: others are the same hosts. A lookup that fails keeps them."""
        try:
            async with asyncio.timeout(_LOOKUP_SECONDS):
                rows = await asyncio.get_running_loop().getaddrinfo(url.hostname, find_port(url), type=SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            if earlier := {address for owner, address in self._workers if owner == url}:
                return earlier
            reason = getattr(error, "strerror", None) or type(error).__name__
            raise SandboxUnavailable(
                f"{url.hostname} has no address: {reason} (--sandbox-url {url.geturl()})."
            ) from None
        family = AF_INET if any(row[0] == AF_INET for row in rows) else rows[0][0]
        return {str(row[4][0]) for row in rows if row[0] == family}
