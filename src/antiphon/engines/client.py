"""HTTP client for engines: JSON requests and responses, server-sent events, and connection reuse.

Events that arrived in one read are returned in one list. Closing a stream closes its connection at once. Every failure
is an EngineFailed or Unavailable, raised within a timeout. A client talks to one address only and follows no redirects,
so its key cannot leak to another host.
"""

import asyncio
import socket
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from time import monotonic
from typing import Generic, TypeVar

from msgspec import MsgspecError, Struct
from msgspec.json import Decoder, decode, encode

from antiphon.engines.base import JSON_MEDIA_TYPE
from antiphon.engines.connection import ConnectionLost, EngineAddress, EngineConnection, HttpRequest, WaitPolicy
from antiphon.errors import EngineFailed, Unavailable
from antiphon.observe.spans import CURRENT_SPAN, make_trace_headers

T = TypeVar("T")

MAX_BODY_BYTES = 64 * 1024 * 1024
_MAX_JOINED_BYTES = 64 * 1024  # of a body that is sent in one write with its headers
MAX_ERROR_BODY_BYTES = 64 * 1024
MAX_EVENT_BYTES = 4 * 1024 * 1024
MAX_STREAM_BYTES = 512 * 1024 * 1024  # about two million tokens as most engines send them
DECODE_ERRORS = (MsgspecError, UnicodeDecodeError, RecursionError)  # raised for invalid JSON
REDACTED = b"***"
MAX_IDLE_SECONDS = 4.0  # llama.cpp and uvicorn close connections that were idle for 5 seconds
_CONNECT_ERRORS: tuple[tuple[type[Exception], str], ...] = (
    (ssl.SSLError, "the TLS handshake failed"),
    (TimeoutError, "the connection attempt timed out"),
    (socket.gaierror, "its host name cannot be resolved"),
    (ConnectionRefusedError, "the connection was refused"),
    (FileNotFoundError, "the socket does not exist"),
    (PermissionError, "permission was denied"),
)
DONE = b"[DONE]"
_LINE, _NEXT, _END = b"data: ", b"\n\ndata: ", b"\n\n"
_PAYLOADS = slice(len(_LINE), -len(_END))
_ERRORS = frozenset({b"event: error", b"event:error"})
# An awaited read, such as that of the first tokens, is not bounded by turns (engines/turn_scheduler.py). It returns
# some twenty tokens; the rest is pushed when the stream has its turn.
AWAITED_BYTES = 4096
DRAIN_SECONDS = 1.0  # between the last event of a stream and the end of its response


class EngineTimeouts(Struct, frozen=True, kw_only=True):
    """Timeouts in seconds: to connect, from the request to the end of the response headers, and between two reads."""

    connect: float = 5.0
    first_byte: float = 60.0
    idle: float = 60.0


class EngineHttpError(EngineFailed):
    """Response with a status other than 2xx. The engine's adapter maps it to a more specific error."""

    def __init__(self, label: str, status: int, body: bytes, retry_after: float | None = None) -> None:
        redirects = "; redirects are not followed" if 300 <= status < 400 else ""
        super().__init__(f"{label} returned HTTP status {status}{redirects}.", retry_after=retry_after)
        self.status_code = status
        self.body = body


class NotAStream(EngineFailed):
    """Successful response that is no event stream. Its body may report an error."""

    def __init__(self, label: str, body: bytes) -> None:
        super().__init__(f"{label} did not respond with an event stream.")
        self.body = body


class EngineClient:
    """HTTP/1.1 client for one engine address."""

    def __init__(
        self,
        address: EngineAddress,
        label: str,
        timeouts: EngineTimeouts | None = None,
        max_idle: int = 4,
        host: str = "engine",
        key: str | None = None,
        base_path: str = "",
    ) -> None:
        """`label` is the subject of error messages ("The engine"); `host` and `key` go into the request headers;
        `base_path` is the prefix of all paths.
        """
        self._address = address
        self.label = label
        self.timeouts = timeouts or EngineTimeouts()
        self._max_idle = max_idle
        self._headers = f"Host: {host}\r\nUser-Agent: antiphon\r\n" + (
            f"Authorization: Bearer {key}\r\n" if key else ""
        )
        self._base_path = base_path
        self._key = key.encode() if key else b""
        self._idle: list[EngineConnection] = []
        self._connections: set[EngineConnection] = set()  # idle and busy connections

    async def get(self, path: str, decoder: Decoder[T]) -> T:
        head = f"GET {self._base_path}{path} HTTP/1.1\r\n{self._headers}\r\n"
        return await self._send_and_decode((head.encode(),), decoder)

    async def post(self, path: str, body: bytes, decoder: Decoder[T]) -> T:
        return await self._send_and_decode(self.build_request(path, body), decoder)

    def decode_error(self, error: Exception) -> EngineFailed:
        """Return the error for a response that raised one of DECODE_ERRORS."""
        return EngineFailed(f"{self.label} sent a response that cannot be decoded: {error}.")

    async def post_raw(self, path: str, body: bytes, media_type: str) -> tuple[bytes, str, bytes]:
        """POST a body and return the response undecoded: its body, content type and `metadata` header."""
        connection = await self._open(self.build_request(path, body, media_type=media_type))
        return await self._read_body(connection, MAX_BODY_BYTES), connection.content_type, connection.metadata

    async def open_raw(self, path: str, body: bytes) -> EngineConnection:
        """POST a body and return the connection once the response has begun; the caller releases it."""
        return await self._open(self.build_request(path, body))

    async def read_pieces(self, connection: EngineConnection) -> AsyncGenerator[bytes, None]:
        """Yield the body of a response as it arrives."""
        size = 0
        while piece := await connection.read(self.timeouts.idle):
            size += len(piece)
            if size > MAX_STREAM_BYTES:
                raise self._size_error()
            yield piece

    async def post_stream(self, path: str, body: bytes, decoder: Decoder[T]) -> "EventStream[T]":
        """POST a body and return the event stream once the response has begun; the caller closes it."""
        connection = await self._open(self.build_request(path, body))
        if connection.is_sse:
            return EventStream(self, connection, decoder)
        raise NotAStream(self.label, self.redact_key(await self._read_body(connection, MAX_ERROR_BODY_BYTES)))

    def build_request(self, path: str, *body: bytes, media_type: str = JSON_MEDIA_TYPE) -> HttpRequest:
        """Build a POST request for `send` from the pieces of its body. Large ones are not copied: they may be images of
        a hundred megabytes.
        """
        trace = ""
        if CURRENT_SPAN.get() is not None:
            trace = "".join([f"{name}: {value}\r\n" for name, value in make_trace_headers()])
        head = f"POST {self._base_path}{path} HTTP/1.1\r\n{self._headers}Content-Type: {media_type}\r\n{trace}"
        size = sum(map(len, body))
        pieces = (b"%bContent-Length: %d\r\n\r\n" % (head.encode(), size), *body)
        return pieces if size > _MAX_JOINED_BYTES else (b"".join(pieces),)

    def redact_key(self, data: bytes) -> bytes:
        """Remove the engine's key from its output, in case the engine repeats it: clients must not see it."""
        return data.replace(self._key, REDACTED) if self._key else data

    def close(self) -> None:
        for connection in [*self._connections]:
            connection.close()
        self._connections.clear()
        self._idle.clear()

    async def _send_and_decode(self, request: HttpRequest, decoder: Decoder[T]) -> T:
        data = await self._read_body(await self._open(request), MAX_BODY_BYTES)
        try:
            return decoder.decode(data)
        except DECODE_ERRORS as error:
            raise self.decode_error(error) from None

    async def send(
        self, request: HttpRequest, max_bytes: int, policy: WaitPolicy | None = None
    ) -> bytes | EngineConnection:
        """Send a request and return the body of its response, or the connection if that is an event stream.

        The caller releases the connection.
        """
        connection = await self._open(request, policy)
        return connection if connection.is_sse else await self._read_body(connection, max_bytes)

    async def _read_body(self, connection: EngineConnection, limit: int) -> bytes:
        """Read the rest of a response and release its connection."""
        try:
            data = connection.take_data(limit + 1) if connection.complete else await self._read_all(connection, limit)
        finally:
            self.release(connection)
        if len(data) > limit:
            raise self._size_error()
        return data

    async def _open(self, request: HttpRequest, policy: WaitPolicy | None = None) -> EngineConnection:
        """Send a request and return its connection once a 2xx response has begun; the caller releases it.

        `policy` may extend the timeout for the first byte. An idle connection may have been closed by the engine in the
        meantime: then the request is sent once more on a new one.
        """
        if (idle := self._take_idle()) is not None:
            with suppress(ConnectionLost):
                return await self._exchange(idle, request, policy)
        return await self._exchange(await self._connect(), request, policy)

    async def _exchange(
        self, connection: EngineConnection, request: HttpRequest, policy: WaitPolicy | None
    ) -> EngineConnection:
        is_open = False
        try:
            await connection.send_request(request, self.timeouts.first_byte, policy)
            is_open = 200 <= connection.status < 300
            if is_open:
                return connection
            body = await self._read_all(connection, MAX_ERROR_BODY_BYTES)
            raise EngineHttpError(self.label, connection.status, self.redact_key(body), connection.retry_after)
        finally:
            if not is_open:
                self.release(connection)

    async def _connect(self) -> EngineConnection:
        try:
            async with asyncio.timeout(self.timeouts.connect):
                connection = await self._address.connect(self.label)
        except ssl.SSLCertVerificationError as error:
            reason, owner = error.verify_message.rstrip("."), self.label[:1].lower() + self.label[1:]
            raise Unavailable(f"The certificate of {owner} is not trusted: {reason}.", retry_after=30.0)
        except (OSError, UnicodeError) as error:  # an invalid host name raises UnicodeError
            # The text of the error itself is left out because it may contain an address.
            cause = next((f": {cause}" for kind, cause in _CONNECT_ERRORS if isinstance(error, kind)), "")
            raise Unavailable(f"{self.label} cannot be reached{cause}.", retry_after=1.0) from None
        self._connections.add(connection)
        return connection

    async def _read_all(self, connection: EngineConnection, max_bytes: int) -> bytes:
        """Read the rest of a response within one timeout: an engine that sends single bytes is never idle."""
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(max(self.timeouts.first_byte, self.timeouts.idle)):
                while data := await connection.read(self.timeouts.idle):
                    parts.append(data)
                    size += len(data)
                    if size > max_bytes:
                        raise self._size_error()
        except TimeoutError:
            raise EngineFailed(f"{self.label} did not answer in time.") from None
        return b"".join(parts)

    def _size_error(self) -> EngineFailed:
        return EngineFailed(f"{self.label} sent a response that exceeds the size limit.")

    def _take_idle(self) -> EngineConnection | None:
        idle = self._idle
        while idle:
            connection = idle.pop()
            if connection.reusable and monotonic() - connection.idle_since < MAX_IDLE_SECONDS:
                return connection
            self._drop(connection)
        return None

    def drain(self, connection: EngineConnection) -> None:
        """Discard the rest of a response that is about to end, so that its connection can be reused."""
        connection.drain(DRAIN_SECONDS, self.release)

    def release(self, connection: EngineConnection) -> None:
        if connection.reusable and len(self._idle) < self._max_idle:
            connection.idle_since = monotonic()
            self._idle.append(connection)
        else:
            self._drop(connection)

    def _drop(self, connection: EngineConnection) -> None:
        self._connections.discard(connection)
        connection.close()


class EventSplitter:
    """Splits a byte stream into server-sent events (WHATWG HTML, "Server-sent events") and returns their data up to
    `[DONE]`.

    The input may be cut anywhere. An event of type `error` becomes an object with the single key "error", as other
    engines send it.
    """

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_event_bytes = max_event_bytes
        self._buffer = bytearray()  # start of an incomplete event
        self.done = False  # `[DONE]` has arrived; later data is ignored

    def feed(self, data: bytes) -> list[bytes]:
        """Return the data of the events that are complete now."""
        return self.split(self.take(data))

    def take(self, data: bytes) -> bytes:
        """Return the bytes of the events that are complete now, for `split`."""
        if self._buffer:
            data = self._join_buffer(data)
        return data if data.endswith(_END) else self._take_complete(data)

    def finish(self) -> list[bytes]:
        """Return a last event that lacks its terminating empty line."""
        return self.feed(_END)

    def split(self, data: bytes) -> list[bytes]:
        """Return the data of complete events in any form that the format allows, up to `[DONE]`."""
        events: list[bytes] = []
        for block in data.replace(b"\r", b"").split(_END) if not self.done else ():
            payload = _event_data(block) if block else b""
            if payload == DONE:
                self.done = True
                break
            if payload:
                events.append(payload)
        return events

    def _take_complete(self, data: bytes) -> bytes:
        """Return the events that are complete with their empty lines, and buffer the others."""
        data = data.replace(b"\r", b"")  # only in line ends: JSON escapes it within strings
        end = data.rfind(_END) + len(_END)
        complete = data[:end] if end >= len(_END) else b""
        self._append(data[len(complete) :])
        return complete

    def _join_buffer(self, data: bytes) -> bytes:
        """Return the buffer and the data if they contain the end of an event; else buffer the data."""
        data = data.replace(b"\r", b"")
        if _END not in data and not (data.startswith(b"\n") and self._buffer.endswith(b"\n")):
            self._append(data)
            return b""
        joined = bytes(self._buffer) + data
        self._buffer.clear()
        return joined

    def _append(self, data: bytes) -> None:
        self._buffer += data
        if len(self._buffer) > self._max_event_bytes:
            raise EngineFailed("The engine sent an event that exceeds the size limit.")


def _event_data(block: bytes) -> bytes:
    if b"data" not in block and b"event" not in block:
        return b""  # no fields, or only comments
    lines = block.split(b"\n")
    values = [line[5:] for line in lines if line.startswith(b"data:")]
    data = b"\n".join(line[1:] if line.startswith(b" ") else line for line in values)
    return data if _ERRORS.isdisjoint(lines) else _wrap_error(data)


def _wrap_error(data: bytes) -> bytes:
    try:
        error = decode(data)
    except DECODE_ERRORS:
        error = data.decode(errors="replace")
    return data if isinstance(error, dict) and "error" in error else encode({"error": error})


class EventDecoder(EventSplitter, Generic[T]):
    """Decodes the events of a stream. Those before one that cannot be decoded are returned, and `fault` is set."""

    def __init__(self, label: str, decoder: Decoder[T]) -> None:
        super().__init__()
        self._label = label
        self._decode = decoder.decode
        self._bytes = 0
        self.fault: EngineFailed | None = None

    def decode(self, data: bytes) -> list[T]:
        """Decode the events that are complete now. Empty data marks the end of the response."""
        self._bytes += len(data)
        if self._bytes > MAX_STREAM_BYTES:
            raise EngineFailed(f"{self._label} sent a response that exceeds the size limit.")
        data = self.take(data or _END)
        # Engines send an event as one data line. Such events are split by one call, which takes a third of the time.
        # `test_events_of_one_line_are_decoded_like_others` compares both branches.
        texts, decode = data[_PAYLOADS].split(_NEXT), self._decode
        if data.count(b"\n") == 2 * len(texts) and data.startswith(_LINE) and not self.done:
            if texts[-1] == DONE:
                self.done = True
                texts.pop()
            try:
                return [decode(text) for text in texts]
            except DECODE_ERRORS:
                self.done = False
        return self._decode_until_error(self.split(data))

    def _decode_until_error(self, events: list[bytes]) -> list[T]:
        """Decode the events before the first invalid one."""
        decoded: list[T] = []
        try:
            for event in events:
                decoded.append(self._decode(event))
        except DECODE_ERRORS as error:
            self.fault = EngineFailed(f"{self._label} sent an event that cannot be decoded: {error}.")
        return decoded


class EventStream(Generic[T]):
    """Async iterator over lists of decoded events.

    Events before one that cannot be decoded are returned before the error is raised.
    """

    def __init__(self, client: EngineClient, connection: EngineConnection, decoder: Decoder[T]) -> None:
        self._client = client
        self._connection: EngineConnection | None = connection
        self._decoder = EventDecoder(client.label, decoder)
        self._started = False
        self._timeout = client.timeouts.first_byte  # until the first event

    def __aiter__(self) -> "EventStream[T]":
        return self

    async def __anext__(self) -> list[T]:
        while self._connection is not None and self._decoder.fault is None:
            data = await self._connection.read(self._timeout, AWAITED_BYTES)
            events = self._decoder.decode(data)
            if not data or self._decoder.done:
                self.drain()
            if events:
                if not self._started:
                    self._started, self._timeout = True, self._client.timeouts.idle
                return events
        raise self._decoder.fault or StopAsyncIteration

    async def push_to(self, sink: Callable[[list[T]], Awaitable[None] | None]) -> None:
        """Call `sink` with each list from the callback that received it, and await what `sink` returns.

        Returns after `stop_pushing` or at the end; continue to iterate for remaining events and for errors.
        """
        connection, decoder = self._connection, self._decoder
        if connection is None or decoder.done or decoder.fault is not None:
            return

        def push(data: bytes) -> Awaitable[None] | None:
            try:
                events = decoder.decode(data)
            except EngineFailed as error:
                decoder.fault, events = error, []
            if decoder.fault is not None or decoder.done:
                connection.stop_pushing()
            return sink(events) if events else None

        await connection.push_to(push, self._timeout)
        if decoder.done:
            self.drain()

    def stop_pushing(self) -> None:
        if self._connection is not None:
            self._connection.stop_pushing()

    def shorten_timeout(self, timeout: float) -> None:
        """Allow at most `timeout` seconds until the next data."""
        self._timeout = min(self._timeout, timeout)
        if self._connection is not None:
            self._connection.shorten_timeout(self._timeout)

    def drain(self) -> None:
        """Stop reading; the connection is reused if the response ends by itself very soon."""
        if self._connection is not None:
            self._client.drain(self._connection)
            self._connection = None

    def close(self) -> None:
        """Cancel the request; after the last event there is nothing to cancel."""
        if self._connection is not None:
            self._client.release(self._connection)
            self._connection = None
