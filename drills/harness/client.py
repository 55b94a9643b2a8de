"""A minimal HTTP client that retains the received bytes and shares no code with the server.

A server that dies during an answer raises ConnectionError or EOFError, one that does not answer in time TimeoutError.
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
Disconnect = Callable[[bool], None]  # argument: send a RST instead of a FIN
DISCONNECT_ERRORS = (ConnectionError, EOFError)  # asyncio.IncompleteReadError is an EOFError
_DONE = b"data: [DONE]"
_KEEPALIVE = b"event: keepalive\n"
_BOUNDARY = "drill-7b1f0c52"


class Form(Struct, frozen=True, kw_only=True):
    """A multipart form with one file."""

    name: str
    filename: str
    content: bytes
    fields: dict[str, str] = {}

    def render(self) -> bytes:
        head = f'name="{self.name}"; filename="{self.filename}"'
        parts = [(head, self.content), *((f'name="{name}"', value.encode()) for name, value in self.fields.items())]
        rendered = [
            f"--{_BOUNDARY}\r\nContent-Disposition: form-data; {head}\r\n\r\n".encode() + content + b"\r\n"
            for head, content in parts
        ]
        return b"".join(rendered) + f"--{_BOUNDARY}--\r\n".encode()


class Answer(Struct, frozen=True):
    status: int
    body: bytes
    retry_after: float | None = None  # seconds

    @property
    def has_retry_after(self) -> bool:
        return self.retry_after is not None

    def json(self) -> dict[str, Any]:
        decoded: dict[str, Any] = msgspec.json.decode(self.body)
        return decoded

    def error(self) -> dict[str, Any]:
        found = self.json().get("error")
        return found if isinstance(found, dict) else {}


class Stream:
    """An answer that is read event by event. `frames` holds the received events as bytes, without keepalives."""

    def __init__(self, reader: asyncio.StreamReader, disconnect: Disconnect) -> None:
        self._reader = reader
        self.disconnect = disconnect
        self._buffer = b""
        self.status = 0
        self.retry_after: float | None = None
        self.is_event_stream = False
        self.frames: list[bytes] = []
        self.done = False  # [DONE] and the end of the body were received

    async def read_head(self) -> None:
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        self.status = int(head.split(b" ", 2)[1])
        self.is_event_stream = b"text/event-stream" in head
        self._length = (
            None if b"transfer-encoding: chunked" in head else int(_find_header(head, b"content-length") or 0)
        )
        self.retry_after = None if (seconds := _find_header(head, b"retry-after")) is None else float(seconds)

    async def read_body(self) -> bytes:
        if self._length is not None:
            return await self._reader.readexactly(self._length)
        pieces = []
        while piece := await self._read_chunk():
            pieces.append(piece)
        return b"".join(pieces)

    async def read(self, max_frames: int | None = None) -> None:
        """Read to the end, or until `max_frames` frames were received."""
        while not self.done and (max_frames is None or len(self.frames) < max_frames):
            frame, gap, remaining = self._buffer.partition(b"\n\n")
            if gap:
                self._buffer = remaining
                await self._accept_frame(frame)
            elif piece := await self._read_chunk():
                self._buffer += piece
            else:
                raise EOFError("the stream ended without [DONE]")

    async def _accept_frame(self, frame: bytes) -> None:
        if frame == _DONE:
            if self._buffer or await self._read_chunk():
                raise EOFError("something came after [DONE]")
            self.done = True
        elif not frame.startswith(_KEEPALIVE):
            self.frames.append(frame)

    async def _read_chunk(self) -> bytes:
        size = int(await self._reader.readuntil(b"\r\n"), 16)
        return (await self._reader.readexactly(size + 2))[:-2]


class Client:
    """Opens a new connection for every request."""

    seconds = ANSWER_SECONDS  # for a complete answer

    def __init__(self, port: int) -> None:
        self.port = port

    async def get(self, path: str) -> Answer:
        return await self.send("GET", path)

    async def post(self, body: dict[str, Any] | None, path: str = "", key: str | None = None) -> Answer:
        return await self.send("POST", path or "/v1/responses", body, key)

    async def send(
        self, method: str, path: str, body: dict[str, Any] | Form | None = None, key: str | None = None
    ) -> Answer:
        async with asyncio.timeout(self.seconds), self.open(method, path, body, key) as stream:
            return Answer(stream.status, await stream.read_body(), stream.retry_after)

    async def stream(self, body: dict[str, Any], key: str | None = None) -> Stream:
        """POST a request and read its stream to the end."""
        async with asyncio.timeout(self.seconds), self.open("POST", "/v1/responses", body, key) as stream:
            await stream.read()
            return stream

    async def replay(self, response_id: str, after: int | str | None = None) -> Stream:
        path = f"/v1/responses/{response_id}?stream=true"
        path += "" if after is None else f"&starting_after={after}"
        async with asyncio.timeout(self.seconds), self.open("GET", path) as stream:
            if stream.is_event_stream:
                await stream.read()
            return stream

    @asynccontextmanager
    async def open(self, method: str, path: str, body: Any = None, key: str | None = None) -> AsyncIterator[Stream]:
        """Send a request and yield its answer once the head was received; the connection is closed afterwards in any
        case.
        """
        reader, writer = await self._connect()
        stream = Stream(reader, partial(_disconnect, writer))
        try:
            writer.write(_render_request(method, path, body, key, self.port))
            await stream.read_head()
            yield stream
        finally:
            stream.disconnect(False)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 24)


def _disconnect(writer: asyncio.StreamWriter, reset: bool) -> None:
    """Close the connection with a FIN or, if `reset`, with a RST."""
    if reset:
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def _render_request(method: str, path: str, body: Any, key: str | None, port: int) -> bytes:
    is_form = isinstance(body, Form)
    content = body.render() if is_form else b"" if body is None else msgspec.json.encode(body)
    lines = [f"{method} {path} HTTP/1.1", f"Host: 127.0.0.1:{port}", f"Content-Length: {len(content)}"]
    if content:
        lines.append(f"Content-Type: {f'multipart/form-data; boundary={_BOUNDARY}' if is_form else 'application/json'}")
    if key is not None:
        lines.append(f"Idempotency-Key: {key}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + content


def _find_header(head: bytes, name: bytes) -> bytes | None:
    """Return the value of a header in a head that is in lower case."""
    _, found, remaining = head.partition(b"\r\n%b:" % name)
    return remaining.partition(b"\r\n")[0].strip() if found else None
