"""HTTP/1.1 on one client connection: one request after the other, within size limits and timeouts.

    idle ──first byte──► head ──blank line──► body ──last byte──► answering ──► idle
           header_bytes, header_seconds    body_seconds         stall_seconds: unread     keepalive_seconds

Malformed, oversized and slow requests are answered here and never reach the application. The server checks the timeouts
of all connections twice a second, so a request that starts and ends between two checks costs nothing. The size of a
body is for the application to check. RequestParser does the parsing, HttpExchange the ASGI messages.

A client that offers another protocol (RFC 9110 §7.8) gets a WebSocket, or is answered in HTTP/1.1 as if it had offered
none.

Pipelined requests (RFC 9112 §9.3.2): up to MAX_PIPELINED are parsed and wait for the responses before theirs. The bytes
behind them are held back unparsed until all of those are answered: one read may contain thousands of requests, and
creating all of them at once would block the event loop.
"""

import asyncio
import logging
from collections import deque
from contextvars import Context
from typing import Any, Final, Literal

from uvicorn.protocols.utils import get_local_addr, get_remote_addr
from uvicorn.server import ServerState

from antiphon.http_server.http_exchange import CLOSE, HttpExchange
from antiphon.http_server.request_parser import (
    MALFORMED,
    MAX_BATCH,
    EndOfRequest,
    RequestHead,
    RequestParser,
    RequestRefusal,
    WebSocketOffer,
)
from antiphon.http_server.response_head import ResponseHeads
from antiphon.http_server.settings import HttpServerSettings
from antiphon.http_server.slow_client import SlowClient
from antiphon.http_server.ws_protocol import WebSocketProtocol

MAX_PIPELINED: Final = MAX_BATCH  # requests that wait for the responses before theirs; no more are parsed
WRITE_BUFFER = 64 * 1024  # bytes that a client may leave unread before writes have to wait
READ_BUFFER = 64 * 1024  # bytes of a body, or behind it, that may wait unread before reading is paused
MIN_BODY_RATE = 64 * 1024  # bytes per second that extend body_seconds, so that a large body may take longer
LINGER_SECONDS = 2.0  # seconds in which a rejected client may go on sending, so that it can read the error
_log = logging.getLogger(__name__)

ExpectedInput = Literal["head", "body", "request", "nothing"]


class HttpProtocol(asyncio.Protocol):
    """The asyncio protocol of one HTTP/1.1 connection."""

    __slots__ = (
        "_active", "_observed", "_observed_at", "_parser", "_receiving", "_refused_at", "_settings", "_slow_client",
        "_writable", "app_state", "client", "exchange", "heads", "loop", "read_paused", "server", "state", "transport",
        "waiting", "write_paused",
    )  # fmt: skip

    transport: asyncio.Transport

    def __init__(self, settings: HttpServerSettings, state: ServerState, app_state: dict[str, Any]) -> None:
        self.loop = asyncio.get_running_loop()
        self.exchange: HttpExchange | None = None  # the newest one
        self.write_paused = False
        self._active: HttpExchange | None = None  # the one that is being answered, or was answered last
        self._settings = settings
        self.state = state
        self.app_state = app_state
        self.client: tuple[str, int] | None = None
        self.server: tuple[str, int | None] | None = None
        self.heads = settings.heads
        self._parser = RequestParser(settings.limits.header_bytes, accept_websockets=settings.limits.websockets)
        self._receiving: HttpExchange | None = None  # the exchange whose body is being read
        self.waiting: deque[HttpExchange] = deque()  # pipelined exchanges behind the active one
        # state at the last check of the timeouts, and when that state was first observed
        self._observed: tuple[HttpExchange | None, ExpectedInput] = (None, "head")
        self._observed_at = self.loop.time()
        self._refused_at = 0.0
        self.read_paused = False
        self._writable: asyncio.Event | None = None
        self._slow_client: SlowClient | None = None

    # Called by the transport.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # always a Transport
        self.transport = transport
        self.client, self.server = get_remote_addr(transport), get_local_addr(transport)
        transport.set_write_buffer_limits(high=WRITE_BUFFER)
        self.state.connections.add(self)  # type: ignore[arg-type]  # uvicorn lists its own classes only

    def connection_lost(self, error: Exception | None) -> None:
        self.state.connections.discard(self)
        self._drop_exchanges()
        self.resume_writing()
        self._parser.close()
        self.exchange = self._active = self._receiving = None  # break reference cycles
        self._observed = (None, "nothing")

    def data_received(self, data: bytes) -> None:
        if not self._refused_at:
            self._parser.receive(data)
            self._parse()
            if len(self._parser.unparsed) > READ_BUFFER:
                self._pause_reading()

    def pause_writing(self) -> None:
        self.write_paused = True
        self._slow_client = SlowClient(self.transport, self.loop.time())

    def resume_writing(self) -> None:
        self.write_paused = False
        self._slow_client = None
        if self._writable is not None:
            self._writable.set()
            self._writable = None

    # Called by an exchange.

    def finish_exchange(self, exchange: HttpExchange) -> None:
        if not exchange.keep_alive:
            self.transport.close()
        elif (self.read_paused or self.waiting) and not self.transport.is_closing():
            if self.waiting:  # not in the context of this exchange, whose variables are its own
                Context().run(self._start, self.waiting.popleft())
            if not self.waiting:
                self._parse()
            self.resume_reading()

    def abandon_exchange(self, exchange: HttpExchange) -> None:
        if exchange.started:
            exchange.write(b"")  # the head, if it is still held back
            self.transport.close()
        else:
            self._refuse(RequestRefusal(500, "The server ended this request without an answer."))

    async def drain(self) -> None:
        if self.write_paused:
            self._writable = self._writable or asyncio.Event()
            await self._writable.wait()

    def resume_reading(self) -> None:
        if self.read_paused and len(self._parser.unparsed) <= READ_BUFFER:
            self.read_paused = False
            self.transport.resume_reading()

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
            self._slow_client.check(now, self._settings.limits.stall_seconds)

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
        if self.read_paused or self._parser.unparsed:
            return "nothing"
        # the remaining body of a complete exchange is not needed
        if exchange is None or (exchange.complete and (self._parser.is_in_head or exchange.more)):
            return "head"
        if exchange.complete:
            return "request"
        return "body" if exchange.more else "nothing"

    def _check_timeout(self, expected: ExpectedInput, elapsed: float) -> None:
        limits = self._settings.limits
        if expected == "head" and elapsed > limits.header_seconds:
            self._refuse(RequestRefusal(408, f"The headers did not arrive within {limits.header_seconds:g} seconds."))
        elif expected == "body" and self.exchange is not None:
            body_seconds = limits.body_seconds + self.exchange.received_bytes / MIN_BODY_RATE
            if elapsed > body_seconds:
                self._refuse(RequestRefusal(408, f"The body did not arrive within {body_seconds:.3g} seconds."))
        elif expected == "request" and elapsed > limits.keepalive_seconds:
            self.transport.close()

    def _parse(self) -> None:
        """Parse received data until it is used up, or enough requests wait."""
        parser = self._parser
        while parser.unparsed and len(self.waiting) < MAX_PIPELINED and not self._refused_at:
            if parser.is_between_requests and self.exchange is not None and not self.exchange.keep_alive:
                parser.unparsed = b""  # data behind the last request is ignored
                return
            for event in parser.next_events():
                if isinstance(event, RequestHead):
                    self._enqueue(HttpExchange(self, event))
                elif isinstance(event, bytes):
                    exchange = self._receiving
                    if exchange is not None and not exchange.complete and exchange.receive_body(event) > READ_BUFFER:
                        self._pause_reading()
                elif isinstance(event, EndOfRequest):
                    assert self._receiving is not None
                    self._receiving.finish_body()
                elif isinstance(event, WebSocketOffer):
                    self._upgrade(event)
                else:
                    self._refuse(event)

    def _enqueue(self, exchange: HttpExchange) -> None:
        """Make `exchange` the newest: answered now, or after those before it."""
        previous, self.exchange, self._receiving = self.exchange, exchange, exchange
        if previous is None or previous.complete:
            self._start(exchange)
        else:
            self.waiting.append(exchange)

    def _start(self, exchange: HttpExchange) -> None:
        self._active = exchange
        # Naming the task and bypassing loop.create_task makes it a fifth cheaper.
        exchange.task = task = asyncio.Task(exchange.run(self._settings.asgi_app), loop=self.loop, name="request")
        self.state.tasks.add(task)

    def _pause_reading(self) -> None:
        if not self.read_paused and not self.transport.is_closing():
            self.read_paused = True
            self.transport.pause_reading()

    def _drop_exchanges(self) -> None:
        """Report a disconnect to the active exchange and drop the waiting ones."""
        if self._active is not None and not self._active.complete:
            self._active.disconnect()
        self.waiting.clear()
        self._parser.unparsed = b""

    def _upgrade(self, offer: WebSocketOffer) -> None:
        """Hand the connection over to the WebSocket protocol, and drop the parser, which references us.

        Refused while a response is incomplete: the disconnect of its client would no longer be noticed.
        """
        if self.exchange is not None and not self.exchange.complete:
            self._refuse(RequestRefusal(400, MALFORMED))
            return
        self.state.connections.discard(self)
        protocol = WebSocketProtocol(self._settings, self.state, self.app_state)
        protocol.connection_made(self.transport)
        protocol.data_received(offer.head)
        self.transport.set_protocol(protocol)
        self._parser.close()
        self.exchange = self._active = None

    def _refuse(self, refusal: RequestRefusal) -> None:
        """Reply in place of the application, and close the connection."""
        if self._refused_at or self.transport.is_closing():
            return
        _log.debug("A request was refused with status %d.", refusal.status)
        self._settings.on_refusal(refusal.status)
        self._refused_at = self.loop.time()
        exchange = self._active
        if exchange is not None and exchange.started and (not exchange.complete or exchange.more):
            self.transport.abort()  # a part of an unfinished exchange was sent: there is no room for another response
            return
        self._drop_exchanges()
        headers, body = self._settings.render_refusal(refusal.status, refusal.message)
        length = (b"content-length", b"%d" % len(body))
        self.transport.write(ResponseHeads().render(refusal.status, (), [*headers, length, CLOSE]) + body)
        self.transport.write_eof()
        self.resume_reading()
