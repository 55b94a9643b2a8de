"""Clients of WebSockets: one that asks and measures, one that only stays, and one that asks and never reads."""

import asyncio
import socket
from time import perf_counter
from typing import Any, Protocol, cast

import msgspec
from msgspec import Struct

from bench.harness.turns import frame, upgrade

SECONDS = 60.0  # for one answer, or to get in
_LEAST = 4096  # bytes that the kernel keeps for one that does not read; it has a minimum of its own
_PING, _PONG = 0x89, 0x8A
_ENDED = (b'{"type":"response.completed"', b'{"type":"error"', b'{"type":"response.failed"')


class Took(Struct, frozen=True):
    """Seconds."""

    first: float
    whole: float


class Leaving(Protocol):
    def hang_up(self) -> None: ...


class Asking:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def ask(self, text: str) -> Took:
        """Raises RuntimeError if there is no answer."""
        began, first = perf_counter(), 0.0
        self._writer.write(created(text))
        async with asyncio.timeout(SECONDS):
            while not (told := await self._next()).startswith(_ENDED):
                first = first or perf_counter()
        if not told.startswith(_ENDED[0]):
            raise RuntimeError(told[:300].decode())
        return Took(first - began, perf_counter() - began)

    async def _next(self) -> bytes:
        """What is in the next frame of a text; a ping is answered."""
        while True:
            kind, size = await self._reader.readexactly(2)
            if size >= 126:
                size = int.from_bytes(await self._reader.readexactly(2 if size == 126 else 8), "big")
            payload = await self._reader.readexactly(size)
            if kind != _PING:
                return payload
            self._writer.write(_pong(payload))

    def hang_up(self) -> None:
        self._writer.transport.abort()


class Idle(asyncio.Protocol):
    """Stays, and answers pings, as every client does."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._upgraded = asyncio.get_running_loop().create_future()
        self.lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(upgrade(self._port))

    def data_received(self, data: bytes) -> None:
        if not self._upgraded.done():
            self._upgraded.set_result(data)
        elif data[0] == _PING:
            self._transport.write(_pong(data[2:]))

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True
        if not self._upgraded.done():
            self._upgraded.set_result(b"")

    async def entered(self) -> None:
        async with asyncio.timeout(SECONDS):
            _check(await self._upgraded)

    def hang_up(self) -> None:
        self._transport.abort()


class Silent:
    """Reads nothing of what it is told."""

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _LEAST)

    async def ask(self, port: int, text: str) -> None:
        loop = asyncio.get_running_loop()
        await loop.sock_connect(self._socket, ("127.0.0.1", port))
        await loop.sock_sendall(self._socket, upgrade(port))
        _check(await loop.sock_recv(self._socket, _LEAST))
        await loop.sock_sendall(self._socket, created(text))

    def hang_up(self) -> None:
        self._socket.close()


async def open_asking(port: int) -> Asking:
    async with asyncio.timeout(SECONDS):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(upgrade(port))
        _check(await reader.readuntil(b"\r\n\r\n"))
    return Asking(reader, writer)


async def open_idle(port: int) -> Idle:
    _, idle = await asyncio.get_running_loop().create_connection(lambda: Idle(port), "127.0.0.1", port)
    await idle.entered()
    return idle


async def open_silent(port: int, text: str) -> Silent:
    """It has asked."""
    silent = Silent()
    async with asyncio.timeout(SECONDS):
        await silent.ask(port, text)
    return silent


def created(text: str, **fields: Any) -> bytes:
    asked = {"type": "response.create", "model": "fake", "input": text, "store": False, **fields}
    return frame(msgspec.json.encode(asked))


def _check(answer: bytes) -> None:
    if not answer.startswith(b"HTTP/1.1 101"):
        raise RuntimeError(f"not upgraded: {answer[:300]!r}")


def _pong(payload: bytes) -> bytes:
    masked = frame(payload)
    return bytes((_PONG,)) + masked[1:]
