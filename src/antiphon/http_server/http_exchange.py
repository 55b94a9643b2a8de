"""One request and its response: the ASGI messages of an HTTP connection, and the direct extension.

The extension is for applications that write many small pieces, or have to know at once when their client disconnects:
`scope["extensions"]["antiphon.direct"]` is an object with `write`, `write_paused`, `drain` and `on_disconnect`. It
replaces no message: the response begins and ends with `send`. Objects to wait with are only created on demand.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Literal, Protocol
from urllib.parse import unquote

from uvicorn.server import ServerState

from antiphon.http_server.request_parser import Header, RequestHead
from antiphon.http_server.response_head import ResponseHeads

Message = MutableMapping[str, Any]
AsgiApp = Callable[[Any, Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]], Awaitable[None]]

DIRECT = "antiphon.direct"
CLOSE: Header = (b"connection", b"close")  # the connection is closed after the response (RFC 9112 §9.6)
_CHUNKED: Header = (b"transfer-encoding", b"chunked")
_ASGI = {"version": "3.0", "spec_version": "2.3"}
_NO_BODY_STATUSES = (204, 304)
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_log = logging.getLogger(__name__)
_LAST_CHUNK = b"0\r\n\r\n"

# How the end of a body is marked: by its last chunk (RFC 9112 §7.1), by its length or the end of the connection (§6.3),
# or by the end of the head, since there is none (§6.3).
BodyFraming = Literal["chunked", "plain", "none"]


class HttpConnection(Protocol):
    """The connection, as an exchange uses it."""

    heads: ResponseHeads
    state: ServerState  # default headers of every response, and the tasks of running requests
    transport: asyncio.Transport
    client: tuple[str, int] | None
    server: tuple[str, int | None] | None
    app_state: dict[str, Any]
    waiting: "deque[HttpExchange]"  # the exchanges to answer after this one
    read_paused: bool  # reading is paused, since enough received data waits
    write_paused: bool  # the client has too much unread data

    async def drain(self) -> None:
        """Wait until the client has read enough, or is gone."""

    def resume_reading(self) -> None: ...

    def finish_exchange(self, exchange: "HttpExchange") -> None:
        """Called when a response is complete: starts the next exchange, or closes the connection."""

    def abandon_exchange(self, exchange: "HttpExchange") -> None:
        """Called when the application has ended and its response is incomplete."""


class HttpExchange:
    """A request and its response on an HTTP/1.1 connection."""

    __slots__ = (
        "_body_framing", "_changed", "_disconnect_callback", "_end_received", "_head", "_held_head", "body", "complete",
        "connection", "gone", "keep_alive", "more", "received_bytes", "started", "task",
    )  # fmt: skip

    def __init__(self, connection: HttpConnection, head: RequestHead) -> None:
        self.connection = connection
        self._head = head
        self.keep_alive = head.keep_alive  # whether the connection stays open afterwards
        self.body: bytes | bytearray = b""  # received data that the application has not received
        self.more = True  # the body is not complete
        self.received_bytes = 0  # of the body
        self.started = False  # the head of the response was written
        self.complete = False  # the response was written
        self._body_framing: BodyFraming = "none"
        self._held_head = b""  # of the response, until its first body message (ASGI, Response Start)
        self.gone = False  # the client disconnected
        self.task: asyncio.Task[None] | None = None
        self._end_received = False  # the application has received the whole body
        self._changed: asyncio.Event | None = None  # set when body data arrives, or the client disconnects
        self._disconnect_callback: Callable[[], None] | None = None

    async def run(self, app: AsgiApp) -> None:
        try:
            await app(self.make_scope(), self.receive, self.send)
        except Exception:
            _log.exception("The application raised an exception.")
        finally:
            self._close()

    def make_scope(self) -> dict[str, Any]:
        connection, head = self.connection, self._head
        path = head.path.decode("ascii")
        return {
            "type": "http",
            "asgi": _ASGI,
            "http_version": head.version,
            "server": connection.server,
            "client": connection.client,
            "scheme": "http",
            "method": head.method,
            "root_path": "",
            "path": unquote(path) if "%" in path else path,
            "raw_path": head.path,
            "query_string": head.query,
            "headers": head.headers,
            "state": connection.app_state.copy(),
            "extensions": {DIRECT: self},
        }

    # ASGI messages.

    async def receive(self) -> Message:
        if not self._end_received and not self.gone and not self.complete:
            if self.more and not self.body:
                await self._wait_for_body()
            if not self.gone:
                return self._take_body()
        while not self.gone and not self.complete:
            await self._wait_for_change()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if self.connection.write_paused and not self.gone:
            await self.connection.drain()
        if self.gone:
            return
        kind = message["type"]
        if kind == "http.response.start":
            self._start(message["status"], message.get("headers", ()))
        elif kind == "http.response.body":
            self._continue(message.get("body", b""), message.get("more_body", False))
        else:
            raise RuntimeError(f"An HTTP response has no message {kind!r}.")

    # The direct extension.

    def write(self, data: bytes) -> None:
        """Write a piece of the body of a response that has started; nothing once the client is gone."""
        if not data or self._body_framing == "none":  # an empty chunk would end the body
            data = b""
        elif self._body_framing == "chunked":
            data = b"%x\r\n%b\r\n" % (len(data), data)
        if self._held_head:
            data, self._held_head = self._held_head + data, b""
        if data and not self.gone and not self.connection.transport.is_closing():
            self.connection.transport.write(data)

    @property
    def write_paused(self) -> bool:
        """Whether the client has too much unread data: await `drain` before the next write."""
        return self.connection.write_paused

    def drain(self) -> Awaitable[None]:
        """Wait until the client has read enough, or is gone."""
        return self.connection.drain()

    def on_disconnect(self, callback: Callable[[], None] | None) -> None:
        """Set the callback for a disconnect before the end of the response; it is called soon if there was one."""
        self._disconnect_callback = callback
        if callback is not None and self.connection.read_paused:  # a disconnect is only noticed while reading
            self.connection.resume_reading()
        if callback is not None and self.gone:
            asyncio.get_running_loop().call_soon(self._notify_disconnect)

    # Called by the connection.

    def receive_body(self, piece: bytes) -> int:
        """Append received body data. Returns how many bytes wait for the application."""
        self.received_bytes += len(piece)
        if self.body:
            # a client may send it byte by byte, and appending to bytes copies them each time
            if isinstance(self.body, bytes):
                self.body = bytearray(self.body)
            self.body += piece
        else:
            self.body = piece
        self._signal_change()
        return len(self.body)

    def finish_body(self) -> None:
        """Called when the body is complete."""
        self.more = False
        self._signal_change()

    def disconnect(self) -> None:
        """Called when the client disconnects before its response is complete."""
        self.gone = True
        self._signal_change()
        self._notify_disconnect()

    def _take_body(self) -> Message:
        body, self.body = self.body, b""
        self._end_received = not self.more
        if self.connection.read_paused:
            self.connection.resume_reading()
        return {"type": "http.request", "body": bytes(body), "more_body": self.more}

    def _start(self, status: int, headers: Iterable[Header]) -> None:
        if self.started:
            raise RuntimeError("A response was started twice.")
        sent = [*headers]
        fields = dict(sent)
        if self._head.method == "HEAD" or status in _NO_BODY_STATUSES:
            self._body_framing = "none"
        elif b"content-length" in fields or self._head.version == "1.0":
            # HTTP/1.0 does not know chunks (RFC 9112 §6.1): without a length, the end of the connection ends the body
            self._body_framing = "plain"
        else:
            self._body_framing = "chunked"
            sent.append(_CHUNKED)
        if fields.get(b"connection") == b"close":
            self.keep_alive = False
        elif not self.keep_alive:
            sent.append(CLOSE)
        connection = self.connection
        self._held_head = connection.heads.render(status, connection.state.default_headers, sent)
        self.started = True

    def _continue(self, data: bytes, more: bool) -> None:
        if not self.started or self.complete:
            raise RuntimeError("A response has no body before its start or after its end.")
        if more or self._body_framing != "chunked":
            self.write(data)
        else:
            chunk = b"%x\r\n%b\r\n" % (len(data), data) if data else b""
            self.connection.transport.write(self._held_head + chunk + _LAST_CHUNK)
            self._held_head = b""
        if more:
            return
        self.complete = True
        self._signal_change()
        self.connection.finish_exchange(self)

    def _close(self) -> None:
        if self.task is not None:
            self.connection.state.tasks.discard(self.task)
            self.task = None
        if not self.complete and not self.gone:
            self.connection.abandon_exchange(self)

    def _notify_disconnect(self) -> None:
        callback, self._disconnect_callback = self._disconnect_callback, None
        if callback is not None:
            callback()

    def _signal_change(self) -> None:
        if self._changed is not None:
            self._changed.set()

    async def _wait_for_body(self) -> None:
        """Wait for body data. Sends `100 Continue` first if the client expects it (RFC 9110 §10.1.1)."""
        expects = self._changed is None and any(
            name == b"expect" and value.lower() == b"100-continue" for name, value in self._head.headers
        )
        if expects and not self.connection.transport.is_closing():
            self.connection.transport.write(_CONTINUE)
        while self.more and not self.body and not self.gone:
            await self._wait_for_change()

    async def _wait_for_change(self) -> None:
        if self._changed is None:
            self._changed = asyncio.Event()
        self._changed.clear()
        self.connection.resume_reading()
        await self._changed.wait()
