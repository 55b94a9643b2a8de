"""Requests as bytes, whatever they are, and the answers as they come: status, headers, body, or none at all."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from msgspec import Struct

from bench.harness.turns import frame

SECONDS = 20.0
Header = tuple[bytes, bytes]
_UPGRADED = 101
_END = b"\r\n\r\n"
_LONGER = 126  # than one byte tells
_LAST = tuple(
    b'{"type":"%b"' % kind
    for kind in (b"error", b"response.completed", b"response.incomplete", b"response.failed", b"response.steer.failed")
)


class Reply(Struct, frozen=True):
    status: int  # 0: hung up without a word; -1: no end in time
    headers: tuple[Header, ...] = ()
    body: bytes = b""

    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class Knocking:
    """Every request has a connection of its own."""

    def __init__(self, port: int) -> None:
        self.port = port

    @property
    def host(self) -> Header:
        return (b"Host", b"127.0.0.1:%d" % self.port)

    async def ask(self, method: str, path: str, *headers: Header, body: Any = None) -> Reply:
        """A request in good order, with these headers."""
        return await self.send(self._request(method, path, headers, body))

    async def beginning(self, method: str, path: str, *headers: Header, body: Any = None) -> bytes:
        """Of an answer whose client then hangs up."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 24)
        try:
            async with asyncio.timeout(SECONDS):
                writer.write(self._request(method, path, headers, body))
                head = await reader.readuntil(_END)
                return head + await reader.readuntil(b"\n\n")
        finally:
            writer.transport.abort()

    def _request(self, method: str, path: str, headers: Sequence[Header], body: Any) -> bytes:
        content = b"" if body is None else msgspec.json.encode(body)
        given = [self.host, *headers, (b"Connection", b"close"), (b"Content-Length", b"%d" % len(content))]
        if content:
            given.append((b"Content-Type", b"application/json"))
        return written(f"{method} {path} HTTP/1.1".encode(), given) + content

    async def send(self, request: bytes) -> Reply:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 24)
        try:
            async with asyncio.timeout(SECONDS):
                writer.write(request)
                return await _answer(reader)
        except ConnectionError:
            return Reply(0)
        except TimeoutError:
            return Reply(-1)
        finally:
            writer.transport.abort()


class Talk:
    """An open WebSocket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def ask(self, message: dict[str, Any]) -> list[bytes]:
        """All that it is told, up to the end of what it asked for."""
        async with asyncio.timeout(SECONDS):
            self._writer.write(frame(msgspec.json.encode(message)))
            told = [await self._text()]
            while not told[-1].startswith(_LAST):
                told.append(await self._text())
        return told

    async def _text(self) -> bytes:
        _, size = await self._reader.readexactly(2)
        if size >= _LONGER:
            size = int.from_bytes(await self._reader.readexactly(2 if size == _LONGER else 8), "big")
        return await self._reader.readexactly(size)


@asynccontextmanager
async def talking(knocking: Knocking, *headers: Header) -> AsyncIterator[Talk]:
    reader, writer = await asyncio.open_connection("127.0.0.1", knocking.port, limit=1 << 24)
    try:
        async with asyncio.timeout(SECONDS):
            writer.write(as_upgrade([knocking.host, *headers]))
            head = await reader.readuntil(_END)
        if not head.startswith(b"HTTP/1.1 101"):
            raise RuntimeError(f"not upgraded: {head[:300]!r}")
        yield Talk(reader, writer)
    finally:
        writer.transport.abort()


def written(first: bytes, headers: Sequence[Header]) -> bytes:
    return b"\r\n".join([first, *(b"%b: %b" % header for header in headers), b"", b""])


def as_upgrade(headers: Sequence[Header], path: bytes = b"/v1/responses") -> bytes:
    own = [
        (b"Connection", b"Upgrade"),
        (b"Upgrade", b"websocket"),
        (b"Sec-WebSocket-Version", b"13"),
        (b"Sec-WebSocket-Key", b"dGhlIHNhbXBsZSBub25jZQ=="),
    ]
    return written(b"GET %b HTTP/1.1" % path, [*headers, *own])


async def _answer(reader: asyncio.StreamReader) -> Reply:
    try:
        head = await reader.readuntil(_END)
    except asyncio.IncompleteReadError:
        return Reply(0)
    first, *lines = head.removesuffix(_END).split(b"\r\n")
    headers = tuple((name.lower(), value.strip()) for name, _, value in (line.partition(b":") for line in lines))
    status = int(first.split(b" ", 2)[1])
    body = b"" if status == _UPGRADED else await reader.read()
    return Reply(status, headers, _whole(body) if (b"transfer-encoding", b"chunked") in headers else body)


def _whole(chunked: bytes) -> bytes:
    pieces = []
    while chunked:
        size, _, rest = chunked.partition(b"\r\n")
        count = int(size or b"0", 16)
        pieces.append(rest[:count])
        chunked = rest[count + 2 :] if count else b""
    return b"".join(pieces)
