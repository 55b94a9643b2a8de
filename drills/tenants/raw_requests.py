"""Requests as raw bytes, valid or not, and their answers: status, headers and body, or none at all."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from msgspec import Struct

from bench.harness.websocket_frames import frame

TIMEOUT_SECONDS = 20.0
Header = tuple[bytes, bytes]
_UPGRADED = 101
_END = b"\r\n\r\n"
_EXTENDED_LENGTH = 126  # payload lengths from 126 are in an extended field (RFC 6455 §5.2)
_LAST_EVENTS = tuple(
    b'{"type":"%b"' % kind
    for kind in (b"error", b"response.completed", b"response.incomplete", b"response.failed", b"response.steer.failed")
)


class Reply(Struct, frozen=True):
    status: int  # 0: disconnected without an answer; -1: timeout
    headers: tuple[Header, ...] = ()
    body: bytes = b""

    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class RawClient:
    """Opens a new connection for every request."""

    def __init__(self, port: int) -> None:
        self.port = port

    @property
    def host(self) -> Header:
        return (b"Host", b"127.0.0.1:%d" % self.port)

    async def request(self, method: str, path: str, *headers: Header, body: Any = None) -> Reply:
        """Send a well-formed request with these headers."""
        return await self.send(self._render_request(method, path, headers, body))

    async def read_beginning(self, method: str, path: str, *headers: Header, body: Any = None) -> bytes:
        """Return the head and the first event of an answer, then disconnect."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 24)
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                writer.write(self._render_request(method, path, headers, body))
                head = await reader.readuntil(_END)
                return head + await reader.readuntil(b"\n\n")
        finally:
            writer.transport.abort()

    def _render_request(self, method: str, path: str, headers: Sequence[Header], body: Any) -> bytes:
        content = b"" if body is None else msgspec.json.encode(body)
        all_headers = [self.host, *headers, (b"Connection", b"close"), (b"Content-Length", b"%d" % len(content))]
        if content:
            all_headers.append((b"Content-Type", b"application/json"))
        return render_head(f"{method} {path} HTTP/1.1".encode(), all_headers) + content

    async def send(self, request: bytes) -> Reply:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 24)
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                writer.write(request)
                return await _read_reply(reader)
        except ConnectionError:
            return Reply(0)
        except TimeoutError:
            return Reply(-1)
        finally:
            writer.transport.abort()


class RawWebSocket:
    """An open WebSocket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def request(self, message: dict[str, Any]) -> list[bytes]:
        """Send a message and return all events up to the end of its response."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            self._writer.write(frame(msgspec.json.encode(message)))
            messages = [await self._read_text()]
            while not messages[-1].startswith(_LAST_EVENTS):
                messages.append(await self._read_text())
        return messages

    async def _read_text(self) -> bytes:
        _, size = await self._reader.readexactly(2)
        if size >= _EXTENDED_LENGTH:
            size = int.from_bytes(await self._reader.readexactly(2 if size == _EXTENDED_LENGTH else 8), "big")
        return await self._reader.readexactly(size)


@asynccontextmanager
async def open_websocket(client: RawClient, *headers: Header) -> AsyncIterator[RawWebSocket]:
    reader, writer = await asyncio.open_connection("127.0.0.1", client.port, limit=1 << 24)
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            writer.write(render_upgrade([client.host, *headers]))
            head = await reader.readuntil(_END)
        if not head.startswith(b"HTTP/1.1 101"):
            raise RuntimeError(f"not upgraded: {head[:300]!r}")
        yield RawWebSocket(reader, writer)
    finally:
        writer.transport.abort()


def render_head(first: bytes, headers: Sequence[Header]) -> bytes:
    return b"\r\n".join([first, *(b"%b: %b" % header for header in headers), b"", b""])


def render_upgrade(headers: Sequence[Header], path: bytes = b"/v1/responses") -> bytes:
    own_headers = [
        (b"Connection", b"Upgrade"),
        (b"Upgrade", b"websocket"),
        (b"Sec-WebSocket-Version", b"13"),
        (b"Sec-WebSocket-Key", b"dGhlIHNhbXBsZSBub25jZQ=="),
    ]
    return render_head(b"GET %b HTTP/1.1" % path, [*headers, *own_headers])


async def _read_reply(reader: asyncio.StreamReader) -> Reply:
    try:
        head = await reader.readuntil(_END)
    except asyncio.IncompleteReadError:
        return Reply(0)
    first, *lines = head.removesuffix(_END).split(b"\r\n")
    headers = tuple((name.lower(), value.strip()) for name, _, value in (line.partition(b":") for line in lines))
    status = int(first.split(b" ", 2)[1])
    body = b"" if status == _UPGRADED else await reader.read()
    return Reply(status, headers, _decode_chunked(body) if (b"transfer-encoding", b"chunked") in headers else body)


def _decode_chunked(chunked: bytes) -> bytes:
    pieces = []
    while chunked:
        size, _, remaining = chunked.partition(b"\r\n")
        count = int(size or b"0", 16)
        pieces.append(remaining[:count])
        chunked = remaining[count + 2 :] if count else b""
    return b"".join(pieces)
