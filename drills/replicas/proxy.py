"""A TCP proxy in front of several servers that acts as a load balancer.

It polls /ready of each server and passes a new connection to the ready server with the fewest connections, or to the
next one if the connection is refused. If no server is ready, it uses any that accepts connections, since a 503 says
more than a refused connection. Open connections stay where they are.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import cast

from drills.harness.client import DISCONNECT_ERRORS, Client

CHECK_SECONDS = 0.2  # between two requests of /ready
_ANSWER_SECONDS = 1.0


class Backend:
    def __init__(self, pid: int, port: int) -> None:
        self.pid = pid
        self.port = port
        self.ready = True
        self.open_connections = 0


class ProxyConnection(asyncio.Protocol):
    """One side of a proxied connection; received data is written to the other side."""

    def __init__(
        self, on_connect: Callable[["ProxyConnection"], None] | None = None, on_lost: Callable[[], None] | None = None
    ) -> None:
        self._on_connect = on_connect
        self._on_lost = on_lost
        self._peer: ProxyConnection | None = None
        self._early = (
            b""  # received before the other side was connected: asyncio of Python 3.11.2 reads although paused
        )
        self.is_closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if self._on_connect is not None:
            self.transport.pause_reading()  # until the other side is connected
            self._on_connect(self)

    def join(self, peer: "ProxyConnection") -> None:
        self._peer, peer._peer = peer, self
        peer.transport.write(self._early)
        self.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        if self._peer is None:
            self._early += data
        else:
            self._peer.transport.write(data)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_closed = True
        if self._peer is not None:
            self._peer.transport.close()  # data that was already written is still sent
        if self._on_lost is not None:
            self._on_lost()

    def pause_writing(self) -> None:
        if self._peer is not None:
            self._peer.transport.pause_reading()

    def resume_writing(self) -> None:
        if self._peer is not None and not self._peer.is_closed:
            self._peer.transport.resume_reading()


class Proxy:
    def __init__(self) -> None:
        self.port = 0
        self.rejected_connections = 0  # no server accepted them
        self._backends: dict[int, Backend] = {}
        self._backend_pids: dict[int, int] = {}  # by the client's port
        self._join_tasks: set[asyncio.Task[None]] = set()

    def add(self, pid: int, port: int) -> None:
        self._backends[pid] = Backend(pid, port)

    def remove(self, pid: int) -> None:
        self._backends.pop(pid, None)

    def get_backend_pid(self, port: int) -> int:
        """Return the process that handles a connection, by the client's port; 0 if no server accepted it."""
        return self._backend_pids.get(port, 0)

    def accept_client(self) -> ProxyConnection:
        return ProxyConnection(on_connect=self._start_joining)

    async def watch_readiness(self) -> None:
        """Poll the servers until cancelled."""
        while True:
            await asyncio.gather(*(_check_readiness(backend) for backend in self._backends.values()))
            await asyncio.sleep(CHECK_SECONDS)

    async def close(self) -> None:
        for task in self._join_tasks:
            task.cancel()
        if self._join_tasks:
            await asyncio.wait(self._join_tasks)

    def _start_joining(self, client: ProxyConnection) -> None:
        task = asyncio.get_running_loop().create_task(self._join(client))
        self._join_tasks.add(task)
        task.add_done_callback(self._join_tasks.discard)

    async def _join(self, client: ProxyConnection) -> None:
        port = client.transport.get_extra_info("peername")[1]
        self._backend_pids.pop(port, None)
        for backend in sorted(self._backends.values(), key=lambda one: (not one.ready, one.open_connections)):
            server = await _connect(backend)
            if server is not None:
                self._backend_pids[port] = backend.pid
                client.join(server)
                if client.is_closed:
                    server.transport.close()
                return
        self.rejected_connections += 1
        client.transport.abort()


async def _connect(backend: Backend) -> ProxyConnection | None:
    """Connect to a server; returns None if it refuses the connection."""

    def on_lost() -> None:
        backend.open_connections -= 1

    backend.open_connections += 1
    connecting = asyncio.get_running_loop().create_connection(
        lambda: ProxyConnection(on_lost=on_lost), "127.0.0.1", backend.port
    )
    try:
        return (await connecting)[1]
    except OSError:
        backend.open_connections -= 1
        backend.ready = False
        return None


async def _check_readiness(backend: Backend) -> None:
    try:
        async with asyncio.timeout(_ANSWER_SECONDS):
            backend.ready = (await Client(backend.port).get("/ready")).status == 200
    except (OSError, *DISCONNECT_ERRORS):  # TimeoutError is an OSError
        backend.ready = False


@contextlib.asynccontextmanager
async def run_proxy() -> AsyncIterator[Proxy]:
    proxy = Proxy()
    server = await asyncio.get_running_loop().create_server(proxy.accept_client, "127.0.0.1", 0, backlog=1024)
    proxy.port = server.sockets[0].getsockname()[1]
    watcher = asyncio.get_running_loop().create_task(proxy.watch_readiness())
    try:
        yield proxy
    finally:
        watcher.cancel()
        server.close()
        await asyncio.wait([watcher])
        await proxy.close()
