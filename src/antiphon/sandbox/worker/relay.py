"""Connections of code in a container to its proxy, whose bytes the server takes and sends.

The proxy is a port of the container's loopback interface: a socket that was made in the container before its kernel,
and given to the sandbox process, which passes bytes on without reading them. The server that runs the call receives
the number of a connection; outside of calls there are none.
"""

import asyncio
import json
import socket
from collections.abc import Callable
from itertools import count

from antiphon.sandbox.worker.forking import StartFailed

MAX_CONNECTIONS = 16
_PIECE = 256 * 1024
_MAX_MESSAGE = 4096
_PREFIX = 8  # bytes of a frame before its header


async def receive_listener(channel: socket.socket, seconds: float) -> socket.socket:
    """Wait for the socket. Raises StartFailed. The channel does not block, and nothing else reads from it."""
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(channel, ready.set)
    try:
        await asyncio.wait_for(ready.wait(), seconds)
        data, files, _, _ = socket.recv_fds(channel, _MAX_MESSAGE, 1)
    except (TimeoutError, ConnectionError):
        raise StartFailed(f"the proxy was not ready within {seconds:g} s") from None
    finally:
        loop.remove_reader(channel)
    if not files:
        raise StartFailed(str(json.loads(data[_PREFIX:]).get("failed")) if data else "the container ended at once")
    return socket.socket(fileno=files[0])


class Relay:
    """The connections of one kernel. `announce` reports one to the server, and returns whether there is a call."""

    def __init__(self, announce: Callable[[int], bool]) -> None:
        self._announce = announce
        self._numbers = count(1)
        self._connections: dict[int, tuple[asyncio.StreamReader, asyncio.StreamWriter]] = {}
        self._server: asyncio.Server | None = None

    async def open(self, listener: socket.socket) -> None:
        self._server = await asyncio.start_server(self._accept, sock=listener)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = next(self._numbers)
        if len(self._connections) < MAX_CONNECTIONS:
            self._connections[number] = reader, writer
            if self._announce(number):
                return
        self._connections.pop(number, None)
        writer.transport.abort()

    async def receive(self, number: int) -> bytes:
        """Return the next bytes; none at the end. Raises OSError."""
        return await self._find(number)[0].read(_PIECE)

    async def send(self, number: int, data: bytes) -> None:
        writer = self._find(number)[1]
        writer.write(data)
        await writer.drain()

    def _find(self, number: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if (found := self._connections.get(number)) is None:
            raise ConnectionResetError("the connection was closed")
        return found

    def end(self, number: int) -> None:
        """Close a connection after what was sent."""
        if (found := self._connections.pop(number, None)) is not None:
            found[1].close()

    def end_all(self) -> None:
        for _, writer in self._connections.values():
            writer.transport.abort()
        self._connections.clear()

    def close(self) -> None:
        self.end_all()
        if self._server is not None:
            self._server.close()
            self._server = None
