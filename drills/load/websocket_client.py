"""WebSocket clients: one that sends requests and measures, one that stays idle, and one that sends a request and never
reads.
"""

import asyncio
import socket
from time import perf_counter
from typing import Any, Protocol, cast

import msgspec
from msgspec import Struct

from bench.harness.websocket_frames import frame, upgrade

TIMEOUT_SECONDS = 60.0  # for one answer or for the handshake
_RECEIVE_BUFFER_BYTES = 4096  # receive buffer of a client that does not read; the kernel enforces its own minimum
_PING, _PONG = 0x89, 0x8A
_ENDED = (b'{"type":"response.completed"', b'{"type":"error"', b'{"type":"response.failed"')


class Timing(Struct, frozen=True):
    """Seconds until the first event and until the end."""

    first: float
    whole: float


class Disconnectable(Protocol):
    def disconnect(self) -> None: ...


class MeasuringClient:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def request(self, text: str) -> Timing:
        """Send a request and measure its answer. Raises RuntimeError if the response does not complete."""
        began, first = perf_counter(), 0.0
        self._writer.write(render_create(text))
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while not (message := await self._read_text()).startswith(_ENDED):
                first = first or perf_counter()
        if not message.startswith(_ENDED[0]):
            raise RuntimeError(message[:300].decode())
        return Timing(first - began, perf_counter() - began)

    async def _read_text(self) -> bytes:
        """Return the payload of the next text frame; pings are answered."""
        while True:
            kind, size = await self._reader.readexactly(2)
            if size >= 126:
                size = int.from_bytes(await self._reader.readexactly(2 if size == 126 else 8), "big")
            payload = await self._reader.readexactly(size)
            if kind != _PING:
                return payload
            self._writer.write(_render_pong(payload))

    def disconnect(self) -> None:
        self._writer.transport.abort()


class IdleClient(asyncio.Protocol):
    """Stays connected and answers pings."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._upgraded = asyncio.get_running_loop().create_future()
        self.disconnected = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(upgrade(self._port))

    def data_received(self, data: bytes) -> None:
        if not self._upgraded.done():
            self._upgraded.set_result(data)
        elif data[0] == _PING:
            self._transport.write(_render_pong(data[2:]))

    def connection_lost(self, error: Exception | None) -> None:
        self.disconnected = True
        if not self._upgraded.done():
            self._upgraded.set_result(b"")

    async def wait_for_upgrade(self) -> None:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            _check_upgrade(await self._upgraded)

    def disconnect(self) -> None:
        self._transport.abort()


class UnreadingClient:
    """Sends a request and reads none of the answer."""

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)

    async def request(self, port: int, text: str) -> None:
        loop = asyncio.get_running_loop()
        await loop.sock_connect(self._socket, ("127.0.0.1", port))
        await loop.sock_sendall(self._socket, upgrade(port))
        _check_upgrade(await loop.sock_recv(self._socket, _RECEIVE_BUFFER_BYTES))
        await loop.sock_sendall(self._socket, render_create(text))

    def disconnect(self) -> None:
        self._socket.close()


async def open_measuring(port: int) -> MeasuringClient:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(upgrade(port))
        _check_upgrade(await reader.readuntil(b"\r\n\r\n"))
    return MeasuringClient(reader, writer)


async def open_idle(port: int) -> IdleClient:
    _, client = await asyncio.get_running_loop().create_connection(lambda: IdleClient(port), "127.0.0.1", port)
    await client.wait_for_upgrade()
    return client


async def open_unreading(port: int, text: str) -> UnreadingClient:
    """Connect a client that has sent its request."""
    client = UnreadingClient()
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await client.request(port, text)
    return client


def render_create(text: str, **fields: Any) -> bytes:
    message = {"type": "response.create", "model": "fake", "input": text, "store": False, **fields}
    return frame(msgspec.json.encode(message))


def _check_upgrade(answer: bytes) -> None:
    if not answer.startswith(b"HTTP/1.1 101"):
        raise RuntimeError(f"not upgraded: {answer[:300]!r}")


def _render_pong(payload: bytes) -> bytes:
    masked = frame(payload)
    return bytes((_PONG,)) + masked[1:]
