"""One request and its reply on our own server: an HttpChannel on top of a connection.

A complete reply is one write. The head of a streamed reply is written together with the data that follows it in the
same iteration of the event loop. Objects to wait with are only created when something has to wait.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, Protocol

from msgspec import Struct
from uvicorn.server import ServerState

from antiphon.transport.http.channel import CLOSE, ClientGone, Header
from antiphon.transport.server.client_task import ClientTask
from antiphon.transport.server.response_head import ResponseHeads

_CHUNKED: Header = (b"transfer-encoding", b"chunked")
_BODILESS_STATUSES = (204, 304)
_EXPECT = b"expect"
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_LAST_CHUNK = b"0\r\n\r\n"


class HttpTransport(Protocol):
    """The connection, as an exchange uses it."""

    heads: ResponseHeads
    state: ServerState  # default headers of every reply, and the tasks of running requests
    transport: asyncio.Transport
    waiting: "deque[HttpExchange]"  # the exchanges to answer after this one
    read_paused: bool  # reading is paused, since enough received data waits
    write_paused: bool  # the client has too much unread data

    async def drain(self) -> None:
        """Wait until the client has read enough, or is gone."""

    def resume_reading(self) -> None: ...

    def finish_exchange(self, exchange: "HttpExchange") -> None:
        """Called when a reply is complete: starts the next exchange, or closes the connection."""

    def abandon_exchange(self, exchange: "HttpExchange") -> None:
        """Called when nothing more will be written and the reply is incomplete."""


class HttpExchange(ClientTask, Struct, eq=False):
    """A request and its reply on an HTTP/1.1 connection."""

    connection: HttpTransport
    method: str
    path: bytes
    query: bytes
    fields: dict[bytes, bytes]
    repeated: Collection[bytes] = ()
    keep_alive: bool = True  # whether the connection stays open afterwards
    body: bytes | bytearray = b""  # received data that was not read yet
    more: bool = True
    started: bool = False  # the head of the reply was rendered
    complete: bool = False
    chunked: bool = False
    gone: bool = False  # the client disconnected
    head: bytes = b""  # head of the reply, while it is held back
    task: asyncio.Task[None] | None = None
    _body_event: asyncio.Event | None = None  # set when body data arrives, or the client disconnects
    _worker: asyncio.Task[None] | None = None
    _cancelled: asyncio.Task[None] | None = None
    _before_head: Callable[[], None] | None = None

    def read(self) -> bytes | Awaitable[bytes]:
        if self.gone or self.complete:
            raise ClientGone
        if self.more and not self.body:
            return self._wait_for_body()
        body, self.body = self.body, b""
        if self.connection.read_paused:
            self.connection.resume_reading()
        return bytes(body)

    def receive_body(self, piece: bytes) -> int:
        """Append received body data. Returns how many bytes wait to be read."""
        if self.body:
            # a client may send it byte by byte, and appending to bytes copies them each time
            if isinstance(self.body, bytes):
                self.body = bytearray(self.body)
            self.body += piece
        else:
            self.body = piece
        if self._body_event is not None:
            self._body_event.set()
        return len(self.body)

    def finish_body(self) -> None:
        """Called when the body is complete."""
        self.more = False
        if self._body_event is not None:
            self._body_event.set()

    def disconnect(self) -> None:
        """Called when the client disconnects before its reply is complete."""
        self.gone = True
        if self._body_event is not None:
            self._body_event.set()
        self._cancel()

    def reply(self, status: int, headers: Sequence[Header], body: bytes) -> Awaitable[None] | None:
        connection = self.connection
        if self.gone:
            return None
        if connection.write_paused:
            return self._retry_when_drained(self.reply, status, headers, body)
        connection.transport.write(self._render_head(status, headers, b"" if self.method == "HEAD" else body))
        self.complete = True
        if connection.waiting or connection.read_paused or not self.keep_alive:  # usually false, which saves the call
            connection.finish_exchange(self)
        return None

    def begin(self, status: int, headers: Sequence[Header]) -> Awaitable[None] | None:
        if self.connection.write_paused and not self.gone:
            return self._retry_when_drained(self.begin, status, headers)
        if not self.gone:
            self.chunked = self.method != "HEAD" and status not in _BODILESS_STATUSES
            self.head = self._render_head(status, [*headers, _CHUNKED] if self.chunked else headers)
            asyncio.get_running_loop().call_soon(self._send_head)
        return None

    def write(self, piece: bytes) -> Awaitable[None] | None:
        if self.connection.write_paused and not self.gone:
            return self._retry_when_drained(self.write, piece)
        if piece and self.chunked and self.is_open():  # an empty chunk would end the body (RFC 9112 §7.1)
            self.write_raw(b"%x\r\n%b\r\n" % (len(piece), piece))
        return None

    def end(self, piece: bytes = b"") -> Awaitable[None] | None:
        if self.connection.write_paused and not self.gone:
            return self._retry_when_drained(self.end, piece)
        if not self.gone:
            chunk = b"%x\r\n%b\r\n" % (len(piece), piece) if piece else b""
            if self.complete:
                raise RuntimeError("A reply was ended twice.")
            self.write_raw(chunk + _LAST_CHUNK if self.chunked else b"")
            self.complete = True
            self.connection.finish_exchange(self)
        return None

    def write_raw(self, data: bytes) -> None:
        """Write bytes, behind the head if that is still held back."""
        if self.head:
            data, self.head = self.head + data, b""
        self.connection.transport.write(data)

    def call_before_head(self, callback: Callable[[], None]) -> None:
        """Set a callback that runs before the head is written alone: it may have data to send with it."""
        self._before_head = callback

    def is_open(self) -> bool:
        return not self.gone and not self.connection.transport.is_closing()

    def __enter__(self) -> None:
        self._worker = self.task
        if self.connection.read_paused:  # a disconnect is only noticed while reading
            self.connection.resume_reading()
        if self.gone:
            asyncio.get_running_loop().call_soon(self._cancel)

    def close(self) -> None:
        if self.task is not None:
            self.connection.state.tasks.discard(self.task)
            self.task = None
        if not self.complete and not self.gone:
            self.connection.abandon_exchange(self)

    def send_head(self) -> None:
        """Write the head now, if it is still held back."""
        if self.head and self.is_open():
            self.write_raw(b"")

    def _render_head(self, status: int, headers: Sequence[Header], body: bytes = b"") -> bytes:
        """Render the head, followed by `body`."""
        if self.started:
            raise RuntimeError("A reply was begun twice.")
        if CLOSE in headers:
            self.keep_alive = False
        elif not self.keep_alive:
            headers = [*headers, CLOSE]
        connection = self.connection
        head = connection.heads.render(status, connection.state.default_headers, headers, body)
        self.started = True
        return head

    def _send_head(self) -> None:
        callback, self._before_head = self._before_head, None
        if self.head and callback is not None:
            callback()
        self.send_head()

    async def _retry_when_drained(self, step: Callable[..., Awaitable[None] | None], *args: Any) -> None:
        await self.connection.drain()
        if (pending := step(*args)) is not None:
            await pending

    async def _wait_for_body(self) -> bytes:
        """Wait for body data. Sends `100 Continue` first if the client expects it (RFC 9110 §10.1.1)."""
        if self._body_event is None:
            self._body_event = asyncio.Event()
            if self.fields.get(_EXPECT, b"").lower() == b"100-continue" and self.is_open():
                self.connection.transport.write(_CONTINUE)
        while self.more and not self.body and not self.gone:
            self._body_event.clear()
            self.connection.resume_reading()
            await self._body_event.wait()
        piece = self.read()
        assert isinstance(piece, bytes)
        return piece
