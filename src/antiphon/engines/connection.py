"""One HTTP/1.1 connection to an engine: small requests are sent in one write, responses are read in pieces.

    idle ──send──▶ waiting ──headers──▶ reading ──last byte──▶ idle (or closed, without keep-alive)
                      └────────── lost, invalid data, timeout ──────────▶ closed

Data of one read is delivered together, up to SLICE_BYTES: to the caller of `read`, or while pushing, to a callback, at
once or when the connection's turn has come (engines/turn_scheduler.py). Unread data is bounded: reading pauses until it
is consumed. Bytes that belong to no request make the connection unusable for the next one.

Addresses: a unix socket, or a host and a port with or without TLS.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Coroutine
from time import monotonic
from typing import Protocol, cast

from msgspec import Struct

from antiphon.engines.turn_scheduler import get_scheduler
from antiphon.errors import EngineFailed
from antiphon.http1 import HttpResponseReader, InvalidResponse

MAX_UNREAD_BYTES = 256 * 1024
SLICE_BYTES = 64 * 1024  # delivered at a time: some hundred tokens, which take about a millisecond
MAX_RETRY_AFTER = 600.0

HttpRequest = tuple[bytes, ...]  # written one after the other
DataSink = Callable[[bytes], Awaitable[None] | None]  # returns what must finish before the next call, or None
WaitPolicy = Callable[[float], bool]  # given the time of the request, whether to wait once more for a silent engine


class ConnectionLost(EngineFailed):
    """The engine closed the connection before the first byte of a response: it may not have seen the request."""


class ResponseInterrupted(EngineFailed):
    """The engine closed the connection or stopped sending in the middle of a response."""


class EngineConnection(HttpResponseReader, asyncio.Protocol):
    """Client side of one connection.

    `is_sse`: the current response is an event stream. `received` counts bytes that are not consumed, headers included.
    """

    __slots__ = (
        "_deadline", "_due_at", "_error", "_label", "_loop", "_on_drained", "_parts", "_paused", "_pending", "_policy",
        "_queued", "_scheduler", "_sent_at", "_sink", "_timeout", "_timer", "_transport", "_waiter", "idle_since",
        "is_sse", "on_body", "on_header",
    )  # fmt: skip

    def __init__(self, label: str) -> None:
        self._label = label
        self._loop = asyncio.get_running_loop()
        self._scheduler = get_scheduler(self._loop)
        self._queued = False  # waits for its turn to push
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._deadline = self._due_at = self._sent_at = 0.0
        self._error: EngineFailed | None = None
        self._sink: DataSink | None = None  # set while pushing
        self._pending: Awaitable[None] | None = None  # result of the sink that must be awaited before its next call
        self._timeout = 0.0  # seconds without data before the wait fails
        self._policy: WaitPolicy | None = None
        self._on_drained: Callable[[EngineConnection], None] | None = None
        self._paused = self.is_sse = False
        self.idle_since = 0.0
        # Parser callbacks that are bound methods of containers: a Python function would cost more than its work.
        self._parts: list[bytes] = []
        self.on_body = self._parts.append
        headers: dict[bytes, bytes] = {}  # names as they were sent
        self.on_header = headers.setdefault
        super().__init__(headers)

    # Called by the client.

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def content_type(self) -> str:
        return self.get_header(b"content-type").decode("latin-1")

    @property
    def metadata(self) -> bytes:
        return self.get_header(b"metadata")

    @property
    def retry_after(self) -> float | None:
        """Seconds from the Retry-After header, bounded; None without a number of seconds."""
        value = self.get_header(b"retry-after").strip()
        return min(max(float(value), 1.0), MAX_RETRY_AFTER) if value.isdigit() else None

    def send_request(
        self, request: HttpRequest, timeout: float, wait_policy: WaitPolicy | None = None
    ) -> "asyncio.Future[None]":
        """Send a request; the future is done once all response headers have arrived.

        `timeout` bounds the wait for all headers, however slowly they arrive, unless `wait_policy` extends it.
        """
        self.expect_response()
        self._parts.clear()
        self._policy, self._timeout = wait_policy, timeout
        self._sent_at = self._loop.time()
        waiting = self._wait(self._sent_at + timeout)
        if self._transport is not None:
            for piece in request:
                self._transport.write(piece)
        return waiting

    async def read(self, seconds: float, max_bytes: int = SLICE_BYTES) -> bytes:
        """Return data that was not returned yet, waiting for at least one byte; empty at the end of the response."""
        while not self._parts and not self.complete:
            await self._wait(self._loop.time() + seconds)
        if self._paused:
            self._resume()
        return self.take_data(max_bytes)

    def take_data(self, max_bytes: int = SLICE_BYTES) -> bytes:
        """Return data that was not returned yet, without waiting."""
        parts = self._parts
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        self.received = 0
        if len(data) > max_bytes:
            parts.append(data[max_bytes:])
            self.received = len(data) - max_bytes
            return data[:max_bytes]
        return data

    async def push_to(self, sink: DataSink, seconds: float) -> None:
        """Call `sink` with data from the callback that received it, and await what `sink` returns before its next call.

        Returns at the end of the response, after a failure, or after `stop_pushing`; remaining data and the error are
        left for `read`. `seconds` bounds the time without data.
        """
        self._sink, self._timeout = sink, seconds
        try:
            while True:
                if self._pending is not None:
                    await self._pending
                    self._pending = None
                    self._resume()
                elif self._sink is None or (self.complete and not self._parts):
                    return
                elif self._parts and not self._queued:
                    self._push_or_queue()
                else:
                    await self._wait(self._loop.time() + self._timeout)
        except EngineFailed:
            if self._error is None:
                raise
        finally:
            pending, self._sink, self._pending = self._pending, None, None
            if isinstance(pending, Coroutine):
                pending.close()

    def stop_pushing(self) -> None:
        """Stop pushing; further data is left for `read`."""
        self._sink = None
        self._wake()

    def shorten_timeout(self, timeout: float) -> None:
        """While pushing: replace the timeout, starting now."""
        self._timeout, self._deadline = timeout, self._loop.time() + timeout
        if self._timer is not None and self._deadline < self._due_at:
            self._schedule_timer()

    def drain(self, timeout: float, on_drained: "Callable[[EngineConnection], None]") -> None:
        """Discard the last bytes of a response, then call `on_drained`; close after `timeout` seconds."""
        if self.complete or not self.is_open:
            on_drained(self)
            return
        self._on_drained = on_drained
        self._stop_timer()
        self._timer = self._loop.call_later(timeout, self.close)
        self._resume()

    def close(self) -> None:
        """Abort the connection at once. Engines treat that as cancellation of the request in flight."""
        self.reusable = False
        self._stop_timer()
        if self._transport is not None:
            self._transport.abort()

    def _push_or_queue(self) -> None:
        """Push a slice now, or when the turn of this connection has come."""
        if self._scheduler.is_free and not self._queued:
            self._push()
        else:
            self._queue_push()
            self._pause_if_full()

    def _queue_push(self) -> None:
        if not self._queued:
            self._queued = True
            self._scheduler.enqueue(self._push_in_turn)

    def _push_in_turn(self) -> None:
        self._queued = False
        if self._sink is not None and self._pending is None and self._parts:  # else the task has taken the data
            self._push()

    def _push(self) -> None:
        """Push a slice. Then queue for the next one, or wake the task if it has something to do."""
        assert self._sink is not None
        started = monotonic()
        self._deadline = started + self._timeout
        self._pending = self._sink(self.take_data())
        self._scheduler.spend(monotonic() - started)
        if self._pending is not None:
            self._wake()
        elif self._parts:
            self._queue_push()
        else:
            if self._paused:
                self._resume()
            if self.complete:
                self._wake()

    def _pause_if_full(self) -> None:
        if self.received > MAX_UNREAD_BYTES and not (self._paused or self.complete) and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def _resume(self) -> None:
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self, deadline: float) -> "asyncio.Future[None]":
        """Return a future for new data. One timer serves many waits, because a timeout object per wait is expensive."""
        if self._error is not None:
            raise self._error
        self._deadline = deadline
        if self._timer is None or deadline < self._due_at:
            self._schedule_timer()
        self._waiter = waiter = self._loop.create_future()
        return waiter

    def _schedule_timer(self) -> None:
        self._stop_timer()
        self._due_at = self._deadline
        self._timer = self._loop.call_at(self._deadline, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self._waiter is None or self._waiter.done():
            return
        if self._loop.time() < self._deadline or self._extend_wait():
            self._schedule_timer()
        elif self.status:
            self._fail(ResponseInterrupted(f"{self._label} stopped sending in the middle of its response."))
        else:
            self._fail(EngineFailed(f"{self._label} did not answer in time."))

    def _extend_wait(self) -> bool:
        if self.status or self._policy is None or not self._policy(self._sent_at):
            return False
        self._deadline = self._loop.time() + self._timeout
        return True

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, error: EngineFailed) -> None:
        """Fail the pending wait and close; data that arrived before is delivered first."""
        self._error = self._error or error
        if self._parts:
            self._wake()
        elif self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(self._error)
        self.close()

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self.complete:
            self._fail(EngineFailed(f"{self._label} sent data with no request pending."))
            return
        try:
            self.feed(data)
        except InvalidResponse as error:
            self._fail(EngineFailed(f"{self._label} {error}."))
            return
        if self._sink is not None and self._pending is None and self._parts:
            self._push_or_queue()
        elif self.status:  # no wait depends on incomplete headers
            self._pause_if_full()
            self._wake()

    def eof_received(self) -> None:
        self.reusable = False

    def connection_lost(self, error: Exception | None) -> None:
        if not self.status and not self.received:
            self._fail(ConnectionLost(f"{self._label} closed the connection."))
        elif self.complete or (error is None and self.end()):
            self._wake()
            self.close()
        else:
            self._fail(ResponseInterrupted(f"{self._label} closed the connection in the middle of its response."))
        self._notify_drained()

    def _notify_drained(self) -> None:
        on_drained, self._on_drained = self._on_drained, None
        if on_drained is not None:
            self._stop_timer()
            self._parts.clear()
            on_drained(self)

    # Called by the parser.

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        headers = self.headers
        content_type = headers.get(b"content-type") or headers.get(b"Content-Type") or self.get_header(b"content-type")
        self.is_sse = content_type.lower().startswith(b"text/event-stream")

    def on_message_complete(self) -> None:
        super().on_message_complete()
        if self.complete and self._on_drained is not None:
            self._notify_drained()


class EngineAddress(Protocol):
    async def connect(self, label: str) -> EngineConnection:
        """Open a new connection; raise OSError if that fails. `label` is the subject of its error messages."""


class UnixAddress(Struct, frozen=True):
    path: str

    async def connect(self, label: str) -> EngineConnection:
        _, connection = await asyncio.get_running_loop().create_unix_connection(
            lambda: EngineConnection(label), self.path
        )
        return connection


class TcpAddress(Struct, frozen=True):
    """`tls` holds the trusted certificates; None for an unencrypted connection."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None

    async def connect(self, label: str) -> EngineConnection:
        loop = asyncio.get_running_loop()
        name = None if self.tls is None else self.host
        _, connection = await loop.create_connection(
            lambda: EngineConnection(label), self.host, self.port, ssl=self.tls, server_hostname=name
        )
        return connection


def create_tls_context(ca_file: str | None = None) -> ssl.SSLContext:
    """Create a context that verifies certificates and host names, by the system's authorities or those in a file."""
    context = ssl.create_default_context(cafile=ca_file)
    context.set_alpn_protocols(["http/1.1"])
    return context
