"""A proxy for TCP in front of several servers, as a load balancer is one.

It asks each of them at /ready, gives a new connection to the ready one that has fewest, and to another if nobody
listens there; if none is ready, to any that listens, since its 503 says more than a closed door. What is open stays
where it is.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import cast

from drills.harness.client import GONE, Client

LOOK_SECONDS = 0.2  # between two questions at /ready
_ANSWER_SECONDS = 1.0


class Backend:
    def __init__(self, pid: int, port: int) -> None:
        self.pid = pid
        self.port = port
        self.ready = True
        self.open = 0  # connections


class Side(asyncio.Protocol):
    """One end of what is passed on: what it hears, the other end says."""

    def __init__(self, made: Callable[["Side"], None] | None = None, lost: Callable[[], None] | None = None) -> None:
        self._made = made
        self._lost = lost
        self._other: Side | None = None
        self.gone = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if self._made is not None:
            self.transport.pause_reading()  # until there is somebody to tell
            self._made(self)

    def join(self, other: "Side") -> None:
        self._other, other._other = other, self
        self.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        if self._other is not None:
            self._other.transport.write(data)

    def connection_lost(self, error: Exception | None) -> None:
        self.gone = True
        if self._other is not None:
            self._other.transport.close()  # what it was told before is still sent
        if self._lost is not None:
            self._lost()

    def pause_writing(self) -> None:
        if self._other is not None:
            self._other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self._other is not None and not self._other.gone:
            self._other.transport.resume_reading()


class Proxy:
    def __init__(self) -> None:
        self.port = 0
        self.turned_away = 0  # connections for which nobody listened
        self._backends: dict[int, Backend] = {}
        self._carriers: dict[int, int] = {}  # a client's port: the process that has its connection
        self._joining: set[asyncio.Task[None]] = set()

    def add(self, pid: int, port: int) -> None:
        self._backends[pid] = Backend(pid, port)

    def remove(self, pid: int) -> None:
        self._backends.pop(pid, None)

    def carrier(self, port: int) -> int:
        """The process that a client's connection went to, by the port of the client; 0: it came to nobody."""
        return self._carriers.get(port, 0)

    def welcome(self) -> Side:
        return Side(made=self._welcomed)

    async def watch(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.gather(*(_look(backend) for backend in self._backends.values()))
            await asyncio.sleep(LOOK_SECONDS)

    async def close(self) -> None:
        for task in self._joining:
            task.cancel()
        if self._joining:
            await asyncio.wait(self._joining)

    def _welcomed(self, client: Side) -> None:
        task = asyncio.get_running_loop().create_task(self._join(client))
        self._joining.add(task)
        task.add_done_callback(self._joining.discard)

    async def _join(self, client: Side) -> None:
        port = client.transport.get_extra_info("peername")[1]
        self._carriers.pop(port, None)
        for backend in sorted(self._backends.values(), key=lambda one: (not one.ready, one.open)):
            server = await _connected(backend)
            if server is not None:
                self._carriers[port] = backend.pid
                client.join(server)
                if client.gone:
                    server.transport.close()
                return
        self.turned_away += 1
        client.transport.abort()


async def _connected(backend: Backend) -> Side | None:
    """None: nobody listens there."""

    def lost() -> None:
        backend.open -= 1

    backend.open += 1
    connecting = asyncio.get_running_loop().create_connection(lambda: Side(lost=lost), "127.0.0.1", backend.port)
    try:
        return (await connecting)[1]
    except OSError:
        backend.open -= 1
        backend.ready = False
        return None


async def _look(backend: Backend) -> None:
    try:
        async with asyncio.timeout(_ANSWER_SECONDS):
            backend.ready = (await Client(backend.port).get("/ready")).status == 200
    except (OSError, *GONE):  # a deadline that passed is an OSError
        backend.ready = False


@contextlib.asynccontextmanager
async def proxying() -> AsyncIterator[Proxy]:
    proxy = Proxy()
    server = await asyncio.get_running_loop().create_server(proxy.welcome, "127.0.0.1", 0, backlog=1024)
    proxy.port = server.sockets[0].getsockname()[1]
    watching = asyncio.get_running_loop().create_task(proxy.watch())
    try:
        yield proxy
    finally:
        watching.cancel()
        server.close()
        await asyncio.wait([watching])
        await proxy.close()
