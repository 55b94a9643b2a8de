"""A plain HTTP client that keeps the bytes it got, and knows nothing of how the server makes them.

A server that dies in the middle is ConnectionError or EOFError here, a server that is silent TimeoutError.
"""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct

ANSWER_SECONDS = 30.0
HangUp = Callable[[bool], None]  # with a RST instead of a FIN?
GONE = (ConnectionError, EOFError)  # asyncio's IncompleteReadError is an EOFError
_DONE = b"data: [DONE]"
_KEEPALIVE = b"event: keepalive\n"


class Answer(Struct, frozen=True):
    status: int
    body: bytes
    retry_after: float | None = None  # seconds

    @property
    def waits(self) -> bool:
        """Does it say when to come back?"""
        return self.retry_after is not None

    def json(self) -> dict[str, Any]:
        decoded: dict[str, Any] = msgspec.json.decode(self.body)
        return decoded

    def error(self) -> dict[str, Any]:
        found = self.json().get("error")
        return found if isinstance(found, dict) else {}


class Stream:
    """An answer that is read event by event: `frames` holds those that came, as bytes, without keepalives."""

    def __init__(self, reader: asyncio.StreamReader, hang_up: HangUp) -> None:
        self._reader = reader
        self.hang_up = hang_up
        self._left = b""
        self.status = 0
        self.retry_after: float | None = None
        self.streams = False
        self.frames: list[bytes] = []
        self.done = False  # [DONE] came, and then the end of the body

    async def begin(self) -> None:
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        self.status = int(head.split(b" ", 2)[1])
        self.streams = b"text/event-stream" in head
        self._length = None if b"transfer-encoding: chunked" in head else int(_header(head, b"content-length") or 0)
        self.retry_after = None if (seconds := _header(head, b"retry-after")) is None else float(seconds)

    async def body(self) -> bytes:
        if self._length is not None:
            return await self._reader.readexactly(self._length)
        pieces = []
        while piece := await self._chunk():
            pieces.append(piece)
        return b"".join(pieces)

    async def read(self, most: int | None = None) -> None:
        """To the end, or until there are so many frames."""
        while not self.done and (most is None or len(self.frames) < most):
            frame, gap, rest = self._left.partition(b"\n\n")
            if gap:
                self._left = rest
                await self._take(frame)
            elif piece := await self._chunk():
                self._left += piece
            else:
                raise EOFError("the stream ended without [DONE]")

    async def _take(self, frame: bytes) -> None:
        if frame == _DONE:
            if self._left or await self._chunk():
                raise EOFError("something came after [DONE]")
            self.done = True
        elif not frame.startswith(_KEEPALIVE):
            self.frames.append(frame)

    async def _chunk(self) -> bytes:
        size = int(await self._reader.readuntil(b"\r\n"), 16)
        return (await self._reader.readexactly(size + 2))[:-2]


class Client:
    """Every request has a connection of its own."""

    seconds = ANSWER_SECONDS  # for a whole answer

    def __init__(self, port: int) -> None:
        self.port = port

    async def get(self, path: str) -> Answer:
        return await self.send("GET", path)

    async def post(self, body: dict[str, Any] | None, path: str = "", key: str | None = None) -> Answer:
        return await self.send("POST", path or "/v1/responses", body, key)

    async def send(self, method: str, path: str, body: dict[str, Any] | None = None, key: str | None = None) -> Answer:
        async with asyncio.timeout(self.seconds), self.open(method, path, body, key) as stream:
            return Answer(stream.status, await stream.body(), stream.retry_after)

    async def stream(self, body: dict[str, Any], key: str | None = None) -> Stream:
        """POST, read to its end."""
        async with asyncio.timeout(self.seconds), self.open("POST", "/v1/responses", body, key) as stream:
            await stream.read()
            return stream

    async def replay(self, response_id: str, after: int | str | None = None) -> Stream:
        where = f"/v1/responses/{response_id}?stream=true"
        where += "" if after is None else f"&starting_after={after}"
        async with asyncio.timeout(self.seconds), self.open("GET", where) as stream:
            if stream.streams:
                await stream.read()
            return stream

    @asynccontextmanager
    async def open(self, method: str, path: str, body: Any = None, key: str | None = None) -> AsyncIterator[Stream]:
        """An answer whose head has come; the connection is closed afterwards, whatever is left of it."""
        reader, writer = await self._connect()
        stream = Stream(reader, partial(_hang_up, writer))
        try:
            writer.write(_request(method, path, body, key, self.port))
            await stream.begin()
            yield stream
        finally:
            stream.hang_up(False)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 24)


def _hang_up(writer: asyncio.StreamWriter, reset: bool) -> None:
    """With a FIN, or with a RST."""
    if reset:
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def _request(method: str, path: str, body: Any, key: str | None, port: int) -> bytes:
    content = b"" if body is None else msgspec.json.encode(body)
    lines = [f"{method} {path} HTTP/1.1", f"Host: 127.0.0.1:{port}", f"Content-Length: {len(content)}"]
    if content:
        lines.append("Content-Type: application/json")
    if key is not None:
        lines.append(f"Idempotency-Key: {key}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + content


def _header(head: bytes, name: bytes) -> bytes | None:
    """Of a head in small letters."""
    _, found, rest = head.partition(b"\r\n%b:" % name)
    return rest.partition(b"\r\n")[0].strip() if found else None
