"""TCP and unix socket servers for use inside a test; all their connections and tasks end with them.

A connection left open would be reported by the garbage collector in the middle of an unrelated test.
"""

import asyncio
import socket
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

Reader = asyncio.StreamReader
Writer = asyncio.StreamWriter
# called for every connection; the connection is closed when it returns
ConnectionHandler = Callable[[Reader, Writer], Awaitable[None]]

_SECONDS = 30.0


class ConnectionTracker:
    """Runs the handler for every connection and tracks the open ones."""

    def __init__(self, handler: ConnectionHandler) -> None:
        self._handler = handler
        self._open: dict[asyncio.Task[Any], Writer] = {}
        self._closing = False

    async def handle(self, reader: Reader, writer: Writer) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open[task] = writer
        try:
            await self._handler(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client disconnected, which many tests do on purpose
        except asyncio.CancelledError:
            if (
                not self._closing
            ):  # cancelled by `close`: Python 3.11 would log an error for a cancelled connection task
                raise
        finally:
            writer.close()
            del self._open[task]

    async def close(self) -> None:
        """Abort all open connections and wait for their tasks."""
        for _ in range(3):  # the task of a connection starts up to two turns of the event loop after it was accepted
            await asyncio.sleep(0)
        self._closing = True
        tasks = list(self._open)
        for task, writer in list(self._open.items()):
            writer.transport.abort()
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_SECONDS)


@asynccontextmanager
async def serve_tcp(
    handler: ConnectionHandler, port: int = 0, host: str = "127.0.0.1", **options: Any
) -> AsyncIterator[int]:
    """Run a TCP server and yield its port."""
    connections = ConnectionTracker(handler)
    server = await asyncio.start_server(connections.handle, host, port, **options)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await connections.close()


@contextmanager
def reserve_port() -> Iterator[int]:
    """Yield a reserved port without a listener; only servers with `reuse_port` can bind it."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


@asynccontextmanager
async def serve_unix(handler: ConnectionHandler, name: str = "s") -> AsyncIterator[str]:
    """Run a unix socket server and yield the path of its socket."""
    connections = ConnectionTracker(handler)
    # shorter than pytest's folder: a socket path has about 100 bytes
    with tempfile.TemporaryDirectory(prefix="up-") as folder:
        path = str(Path(folder) / name)
        server = await asyncio.start_unix_server(connections.handle, path)
        try:
            yield path
        finally:
            server.close()
            await connections.close()
