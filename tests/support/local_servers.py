"""Servers within a test, on a port or a unix socket: all that they began is over when they are.

A connection that nobody closed would be noticed by the garbage collector, in the middle of some other test.
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
Behaviour = Callable[[Reader, Writer], Awaitable[None]]  # for every connection, which ends when it returns

_SECONDS = 30.0


class Connections:
    """Those that are open."""

    def __init__(self, behave: Behaviour) -> None:
        self._behave = behave
        self._open: dict[asyncio.Task[Any], Writer] = {}
        self._over = False

    async def serve(self, reader: Reader, writer: Writer) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open[task] = writer
        try:
            await self._behave(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client went away, as many tests want it to
        except asyncio.CancelledError:
            if not self._over:  # else by `end`; a task that says so is an error in the log of Python 3.11
                raise
        finally:
            writer.close()
            del self._open[task]

    async def end(self) -> None:
        await asyncio.sleep(0)  # who was let in just now has begun
        self._over = True
        tasks = list(self._open)
        for task, writer in list(self._open.items()):
            writer.transport.abort()
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_SECONDS)


@asynccontextmanager
async def tcp(behave: Behaviour, port: int = 0, host: str = "127.0.0.1", **options: Any) -> AsyncIterator[int]:
    """The port."""
    connections = Connections(behave)
    server = await asyncio.start_server(connections.serve, host, port, **options)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await connections.end()


@contextmanager
def held_port() -> Iterator[int]:
    """Where nobody listens, and which nobody else is given: only servers with `reuse_port` may come and go there."""
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        one.bind(("127.0.0.1", 0))
        yield one.getsockname()[1]


@asynccontextmanager
async def unix(behave: Behaviour, name: str = "s") -> AsyncIterator[str]:
    """The path of the socket."""
    connections = Connections(behave)
    with tempfile.TemporaryDirectory(prefix="up-") as folder:  # shorter than pytest's: a socket's path has 100 bytes
        path = str(Path(folder) / name)
        server = await asyncio.start_unix_server(connections.serve, path)
        try:
            yield path
        finally:
            server.close()
            await connections.end()
