"""HTTP/1.1 on one client connection, parsed by httptools: one request after the other, within size limits and timeouts.

    idle ──first byte──► head ──blank line──► body ──last byte──► answering ──► idle
           header_bytes, header_seconds    body_seconds         stall_seconds: unread     keepalive_seconds

Malformed, oversized and slow requests are answered here, in the standard error format, and never reach the application.
The server checks the timeouts of all connections twice a second, so a request that starts and ends between two checks
costs nothing. The size of a body is checked by the application (transport/http/request.py).

A client that offers another protocol (RFC 9110 §7.8) gets a WebSocket, or is answered in HTTP/1.1 as if it had offered
none.

Pipelined requests (RFC 9112 §9.3.2): up to MAX_PIPELINED are parsed and wait for the replies before theirs. The bytes
behind them are held back unparsed until all of those are answered: one read may contain thousands of requests, and
creating all of them at once would block the event loop.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextvars import Context
from typing import Any, Final, Literal

import httptools
from uvicorn.server import ServerState

from antiphon.errors import AntiphonError, BadRequest, HeadersTooLarge, Internal, TooSlow
from antiphon.ids import new_id
from antiphon.transport.http import error_responses
from antiphon.transport.http.channel import CLOSE, Header, find_repeated
from antiphon.transport.http.request import JSON, Request, build_request
from antiphon.transport.server.http_exchange import HttpExchange
from antiphon.transport.server.response_head import ResponseHeads
from antiphon.transport.server.settings import HttpServerSettings
from antiphon.transport.server.slow_client import SlowClient

MAX_PIPELINED: Final = 8  # requests that wait for the replies before theirs; no more are parsed
_EMPTY_LINE: Final = b"\r\n\r\n"


def find_batch_end(data: bytes, end: int) -> int:
    """Return where to stop parsing for now: at most MAX_PIPELINED requests end between `end` and there.

    Each request contains an empty line (RFC 9112 §2.1).
    """
    for _ in range(MAX_PIPELINED):
        found = data.find(_EMPTY_LINE, end)
        if found < 0:
            return len(data)
        end = found + len(_EMPTY_LINE)
    return end


def is_websocket_upgrade(headers: Sequence[Header]) -> bool:
    """Whether the head requests a WebSocket (RFC 6455 §4.2.1), whatever other protocols it offers."""
    tokens = dict(headers).get(b"connection", b"").lower().split(b",")
    offered = [value.lower() for name, value in headers if name == b"upgrade"]
    return b"websocket" in offered and b"upgrade" in map(bytes.strip, tokens)


def make_framing_head(fields: dict[bytes, bytes]) -> bytes:
    """Build a minimal head that makes the parser read the body of a request with these fields; empty if it has no body.

    Clients that offer another protocol, as Java's HttpClient does on every request, are answered in HTTP/1.1. But the
    parser takes all bytes behind such a head for the other protocol, and would take a body for the next request.
    """
    names = (b"content-length", b"transfer-encoding")
    lines = [b"%b: %b\r\n" % (name, fields[name]) for name in names if name in fields]
    return b"POST / HTTP/1.1\r\n%b\r\n" % b"".join(lines) if lines else b""


WRITE_BUFFER = 64 * 1024  # bytes that a client may leave unread before writes have to wait
READ_BUFFER = 64 * 1024  # bytes of a body, or behind it, that may wait unread before reading is paused
LINGER_SECONDS = 2.0  # seconds in which a rejected client may go on sending, so that it can read the error
_SLASH = ord("/")
_log = logging.getLogger(__name__)

ExpectedInput = Literal["head", "body", "request", "nothing"]


class HttpProtocol(asyncio.Protocol):
    """The asyncio protocol of one HTTP/1.1 connection."""

    __slots__ = (
        "_active",
        "_answer",
        "_backlog",
        "_between_requests",
        "_body_remaining",
        "_framing",
        "_head_bytes",
        "_headers",
        "_max_head_bytes",
        "_observed",
        "_observed_at",
        "_parse_error",
        "_receiving",
        "_refused_at",
        "_settings",
        "_slow_client",
        "_url",
        "_writable",
        "exchange",
        "heads",
        "loop",
        "parser",
        "read_paused",
        "state",
        "transport",
        "waiting",
        "write_paused",
    )

    transport: asyncio.Transport

    def __init__(
        self,
        config: HttpServerSettings,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.loop = _loop or asyncio.get_running_loop()
        self.parser: Any = httptools.HttpRequestParser(self)
        # Data behind the last request of a connection is ignored and is no error (RFC 9112 §9.6).
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self.exchange: HttpExchange | None = None  # the newest one
        self.write_paused = False
        self._active: HttpExchange | None = None  # the one that is being answered, or was answered last
        self._settings = config
        self.state = server_state
        self.heads = config.heads
        app: Any = config.app
        self._answer: Callable[[Request], Coroutine[Any, Any, None]] = app.answer
        self._max_head_bytes = config.limits.header_bytes
        self._head_bytes = 0  # bytes received of an incomplete head, or of anything else incomplete that is no body
        self._url = b""
        self._headers: list[Header] = []
        self._receiving: HttpExchange | None = None  # the exchange whose body is being read
        self.waiting: deque[HttpExchange] = deque()  # pipelined exchanges behind the active one
        self._parse_error: AntiphonError = BadRequest("This is not a well-formed HTTP request.")
        self._observed: tuple[HttpExchange | None, ExpectedInput] = (
            None,
            "head",
        )  # state at the last check of the timeouts
        self._observed_at = self.loop.time()  # when that state was first observed
        self._refused_at = 0.0
        self.read_paused = False
        self._between_requests = True  # no byte of the next request has arrived
        self._body_remaining = 0  # missing bytes of the body; 0 if it is chunked
        self._backlog = b""  # unparsed bytes behind MAX_PIPELINED requests
        self._framing = b""  # the head that `make_framing_head` made for a body that is still to be parsed
        self._writable: asyncio.Event | None = None
        self._slow_client: SlowClient | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # always a Transport
        self.transport = transport
        transport.set_write_buffer_limits(high=WRITE_BUFFER)
        self.state.connections.add(self)  # type: ignore[arg-type]  # uvicorn lists its own classes only

    def connection_lost(self, error: Exception | None) -> None:
        self.state.connections.discard(self)
        self._drop_exchanges()
        self.resume_writing()
        self.parser = self.exchange = self._active = self._receiving = None  # break reference cycles
        self._observed = (None, "nothing")

    def data_received(self, data: bytes) -> None:
        if self._refused_at:
            return
        while data:
            if self.waiting and self._hold_back(data):
                return
            data = self._parse(data)

    def _parse(self, data: bytes) -> bytes:
        """Feed the parser. Returns the bytes that have to be parsed later, or again."""
        if self._between_requests and self.exchange is not None and not self.exchange.keep_alive:
            return b""  # data behind the last request is ignored
        self._between_requests = False
        view, start, end = memoryview(data), 0, 0
        try:
            while (
                end < len(data)
                and not self._between_requests
                and len(self.waiting) < MAX_PIPELINED
                and not self._refused_at
            ):
                start, end = end, find_batch_end(data, end + self._body_remaining)
                self._head_bytes += end - start
                self.parser.feed_data(view[start:end])
                if self._head_bytes > self._max_head_bytes:
                    self._refuse(self._too_large_error())
        except httptools.HttpParserUpgrade as offer:
            if self._receiving is None:
                self._upgrade()
                return b""
            return self._framing + data[start + offer.args[0] :]
        except httptools.HttpParserError:
            _log.debug("Received malformed HTTP, or a head that exceeds the size limit.")
            self._refuse(self._parse_error)
        return b"" if self._refused_at else data[end:]

    # Called by the parser.

    def on_message_begin(self) -> None:
        self._url = b""
        self._between_requests = False
        self._headers = []  # drops the trailers of the previous request
        self._head_bytes = self._head_bytes or 1

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self._framing:  # the head is our own, from `make_framing_head`
            self._framing, self._head_bytes = b"", 0
            return
        if self._head_bytes > self._max_head_bytes and self._head_size() > self._max_head_bytes:
            self._parse_error = self._too_large_error()
            raise self._parse_error
        path, _, query = self._url.partition(b"#")[0].partition(b"?")
        if path[0] != _SLASH or not path.isascii():  # rejects absolute-form, `GET http://other.host/` (RFC 9112 §3.2.2)
            raise self._parse_error
        self._head_bytes = 0
        is_upgrade = self.parser.should_upgrade()
        if is_upgrade and is_websocket_upgrade(self._headers) and self._settings.ws_protocol_class is not None:
            self._receiving = None
            return
        # trailers follow; they must not be taken for headers (RFC 9110 §6.5.1)
        headers, self._headers = self._headers, []
        fields = dict(headers)
        if is_upgrade:
            self._framing = make_framing_head(fields)
        exchange = HttpExchange(self, self.parser.get_method().decode("ascii"), path, query, fields)
        if len(fields) != len(headers):
            exchange.repeated = find_repeated(headers)
        exchange.keep_alive = self.parser.should_keep_alive() and not self._is_http_1_0(exchange)
        self._body_remaining = int(fields.get(b"content-length", 0))  # the parser has validated it
        self._enqueue(exchange)

    def on_body(self, piece: bytes) -> None:
        self._head_bytes, self._body_remaining = 0, max(0, self._body_remaining - len(piece))
        exchange = self._receiving
        if exchange is not None and not exchange.complete and exchange.receive_body(piece) > READ_BUFFER:
            self._pause_reading()

    def on_message_complete(self) -> None:
        self._head_bytes = 0
        if self._framing:  # its body is still to be parsed
            return
        self._between_requests = True
        if self._receiving is not None:
            self._receiving.finish_body()

    # Called by an exchange.

    def finish_exchange(self, exchange: HttpExchange) -> None:
        if not exchange.keep_alive:
            self.transport.close()
        elif (self.read_paused or self.waiting) and not self.transport.is_closing():
            if self.waiting:  # not in the context of this exchange: its trace and its charge are its own
                Context().run(self._start, self.waiting.popleft())
            if self._backlog and not self.waiting:
                backlog, self._backlog = self._backlog, b""
                self.data_received(backlog)
            self.resume_reading()

    def abandon_exchange(self, exchange: HttpExchange) -> None:
        if exchange.started:
            exchange.send_head()
            self.transport.close()
        else:
            self._refuse(Internal("The server ended this request without an answer."))

    async def drain(self) -> None:
        if self.write_paused:
            self._writable = self._writable or asyncio.Event()
            await self._writable.wait()

    def resume_reading(self) -> None:
        if self.read_paused and len(self._backlog) <= READ_BUFFER:
            self.read_paused = False
            self.transport.resume_reading()

    # Called by the transport.

    def pause_writing(self) -> None:
        self.write_paused = True
        self._slow_client = SlowClient(self.transport, self.loop.time())

    def resume_writing(self) -> None:
        self.write_paused = False
        self._slow_client = None
        if self._writable is not None:
            self._writable.set()
            self._writable = None

    # Called by the server.

    def check(self, now: float) -> None:
        """Check the timeouts. Each starts with the first check that finds the client due to send something."""
        if self._refused_at:
            if now - self._refused_at > LINGER_SECONDS:
                self.transport.abort()
            return
        observed = (self.exchange, self._get_expected_input())
        if observed != self._observed:
            self._observed, self._observed_at = observed, now
        else:
            self._check_timeout(observed[1], now - self._observed_at)
        if self._slow_client is not None:
            self._slow_client.check(now, self._settings.stall_seconds)

    def shutdown(self) -> None:
        if self._refused_at:
            self.transport.abort()
        elif self.exchange is None or self.exchange.complete:
            self.transport.close()
        else:
            self.exchange.keep_alive = False

    def _get_expected_input(self) -> ExpectedInput:
        """Return what the client has to send next."""
        exchange = self.exchange
        if self.read_paused or self._backlog:
            return "nothing"
        if exchange is None or (
            exchange.complete and (self._head_bytes or exchange.more)
        ):  # the remaining body is not needed
            return "head"
        if exchange.complete:
            return "request"
        return "body" if exchange.more else "nothing"

    def _check_timeout(self, expected: ExpectedInput, elapsed: float) -> None:
        limits = self._settings.limits
        if expected == "head" and elapsed > limits.header_seconds:
            self._refuse(TooSlow(f"The headers did not arrive within {limits.header_seconds:g} seconds."))
        elif expected == "body" and elapsed > limits.body_seconds:
            self._refuse(TooSlow(f"The body did not arrive within {limits.body_seconds:g} seconds."))
        elif expected == "request" and elapsed > self._settings.timeout_keep_alive:
            self.transport.close()

    def _enqueue(self, exchange: HttpExchange) -> None:
        """Make `exchange` the newest: answered now, or after those before it."""
        previous, self.exchange, self._receiving = self.exchange, exchange, exchange
        if previous is None or previous.complete:
            self._start(exchange)
        else:
            self.waiting.append(exchange)

    def _hold_back(self, data: bytes) -> bool:
        """Hold `data` back unparsed if MAX_PIPELINED requests wait already. Returns whether it does."""
        if not self._backlog and len(self.waiting) < MAX_PIPELINED:
            return False
        self._backlog += data
        if len(self._backlog) > READ_BUFFER:
            self._pause_reading()
        return True

    def _start(self, exchange: HttpExchange) -> None:
        self._active = exchange
        # Naming the task and bypassing loop.create_task makes it a fifth cheaper.
        exchange.task = task = asyncio.Task(
            self._answer(build_request(exchange, Request)), loop=self.loop, name="request"
        )
        self.state.tasks.add(task)

    def _is_http_1_0(self, exchange: HttpExchange) -> bool:
        """Whether an HTTP/1.0 client requests keep-alive by a Connection header, which is not granted."""
        return b"connection" in exchange.fields and self.parser.get_http_version() == "1.0"

    def _pause_reading(self) -> None:
        if not self.read_paused and not self.transport.is_closing():
            self.read_paused = True
            self.transport.pause_reading()

    def _drop_exchanges(self) -> None:
        """Report a disconnect to the active exchange and drop the waiting ones."""
        if self._active is not None and not self._active.complete:
            self._active.disconnect()
        self.waiting.clear()
        self._backlog = b""

    def _upgrade(self) -> None:
        """Hand the connection over to the WebSocket protocol, and drop the parser, which references us.

        Refused while a reply is incomplete: the disconnect of its client would no longer be noticed.
        """
        if self.exchange is not None and not self.exchange.complete:
            self._refuse(self._parse_error)
            return
        self.state.connections.discard(self)
        lines = [b"%b: %b\r\n" % header for header in self._headers if header[0] != b"upgrade"]
        lines.append(b"upgrade: websocket\r\n")  # the one protocol chosen of those offered
        head = b"%b %b HTTP/1.1\r\n%b\r\n" % (self.parser.get_method(), self._url, b"".join(lines))
        websocket_protocol: Any = self._settings.ws_protocol_class
        protocol = websocket_protocol(config=self._settings, server_state=self.state, app_state={})
        protocol.connection_made(self.transport)
        protocol.data_received(head)
        self.transport.set_protocol(protocol)
        self.parser = self.exchange = self._active = None

    def _refuse(self, error: AntiphonError) -> None:
        """Reply with `error` in place of the application, and close the connection."""
        if self._refused_at or self.transport.is_closing():
            return
        self._settings.count_refusal(error.status)
        self._refused_at = self.loop.time()
        if self._has_open_reply():
            self.transport.abort()
            return
        self._drop_exchanges()
        self.transport.write(_render_error(error))
        self.transport.write_eof()
        self.resume_reading()

    def _has_open_reply(self) -> bool:
        """Whether a part of an unfinished exchange was sent, which leaves no room for another reply."""
        exchange = self._active
        return exchange is not None and exchange.started and (not exchange.complete or exchange.more)

    def _head_size(self) -> int:
        return len(self._url) + sum(len(name) + len(value) + 4 for name, value in self._headers)

    def _too_large_error(self) -> HeadersTooLarge:
        return HeadersTooLarge(f"The request line and headers are larger than {self._max_head_bytes} bytes together.")


def _render_error(error: AntiphonError) -> bytes:
    body = error_responses.render_body(error)
    headers = [
        JSON,
        (b"content-length", b"%d" % len(body)),
        CLOSE,
        (b"x-request-id", new_id("req").encode()),
        (b"openai-processing-ms", b"0"),
    ]
    return ResponseHeads().render(error.status, (), headers) + body
