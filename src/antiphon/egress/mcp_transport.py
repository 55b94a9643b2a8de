"""Egress for the mcp package, which uses httpx2: one origin, every connection vetted again, nothing decompressed.

An exception from the transport would end all calls of an MCP session at once. Failures are therefore turned into an
error response, and the caller's WireNotes hold the reason. The notes are found by context: every task started for the
caller inherits them.
"""

import asyncio
import re
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable
from contextvars import ContextVar
from typing import Any, Final

import httpcore2
import httpx2
import msgspec
from msgspec import Struct

from antiphon.egress.client import EgressClient
from antiphon.egress.urls import Url, parse_url
from antiphon.errors import AntiphonError, FetchFailed
from antiphon.token_bucket import TokenBucket

# A body of nothing but brackets takes some twenty times its size in memory, and as much time to process, so structural
# characters are counted separately. A string may be cut off at the end of a part and never contains a line break.
_STRUCTURE: Final = (b"[", b"{", b",", b":")
_STRING: Final = re.compile(rb'"[^"\\\n]*(?:\\.[^"\\\n]*)*(["\n]|\\?\Z)', re.DOTALL)


class JsonMeter:
    """Counts received bytes, and the structural characters of JSON outside of strings ("pieces")."""

    def __init__(self, max_bytes: int, max_pieces: int) -> None:
        self.received = 0
        self._pieces = 0
        self._open_string = b""  # start of a string that continues in the next part
        self._max_bytes = max_bytes
        self._max_pieces = max_pieces

    def add(self, part: bytes) -> str:
        """Count a part. Returns "" or, above a limit, the reason as the end of a sentence about the sender."""
        self.received += len(part)
        structure = (
            _STRING.sub(self._skip_string, self._open_string + part) if b'"' in part or self._open_string else part
        )
        self._pieces += sum(structure.count(character) for character in _STRUCTURE)
        if self.received > self._max_bytes:
            return f"sent more than the {self._max_bytes:,} bytes that are allowed"
        return "sent JSON that is made of too many pieces" if self._pieces > self._max_pieces else ""

    def start_message(self) -> None:
        """Reset the piece count for the next message."""
        self._pieces, self._open_string = 0, b""

    def _skip_string(self, string: re.Match[bytes]) -> bytes:
        """Remove a string, and remember it if it continues in the next part."""
        is_closed = string[1] in (b'"', b"\n")
        self._open_string = b"" if is_closed else b'"\\' if string[1] else b'"'
        return b""


class WireNotes:
    """Status and faults of one caller's requests."""

    def __init__(self, max_bytes: int, max_pieces: int) -> None:
        self.status = 0  # of the last response
        # why no response will come: the end of a sentence about the host, or a full one if `is_sentence`
        self.fault = ""
        self.is_sentence = False
        self.abandoned = False  # the caller no longer waits
        self.meter = JsonMeter(max_bytes, max_pieces)
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def fail(self, fault: str, is_sentence: bool = False) -> None:
        """Record the first fault and wake the caller."""
        if not self.fault:
            self.fault, self.is_sentence = fault, is_sentence
        if not self.failed.done():
            self.failed.set_result(None)


CURRENT_NOTES: ContextVar[WireNotes | None] = ContextVar("exchange", default=None)

_MAX_ADDRESSES: Final = 4  # attempts per host
_FIRST_REDIRECT: Final = 300
_BAD_GATEWAY: Final = 502
_SIDE_EFFECT_METHODS: Final = frozenset({"tools/call"})
_TIMEOUT_SLACK: Final = 5.0  # seconds by which a connection outlives the caller's timeout
# timeout of messages without a waiting caller: notifications, replies to the server, session ends
_UNAWAITED_SECONDS: Final = 5.0
_STREAMS_PER_MINUTE: Final = 20  # event streams that may be opened, all of them at once
_EVENT_LIMITS: Final = (1024 * 1024, 64 * 1024)  # bytes and JSON pieces of an event in a stream of no call
_CONNECTION_ERRORS: Final = (httpcore2.NetworkError, httpcore2.TimeoutException, httpcore2.ProtocolError)


class McpHttpSettings(Struct, frozen=True, kw_only=True):
    """Address and connection settings of one MCP server."""

    egress: EgressClient
    url: str
    param: str
    allow_loopback: bool = False  # the URL may name loopback
    idle_timeout: float = 60.0  # seconds without data that a caller tolerates
    connect_seconds: float = 5.0
    make_headers: Callable[[], Iterable[tuple[str, str]]] = list  # headers per request, from its context


async def make_http_client(
    settings: McpHttpSettings, headers: dict[str, str], separate_replies: bool = False
) -> httpx2.AsyncClient:
    """Create a client for this origin only: no proxy, no netrc, no redirect to another origin, no authentication.

    `separate_replies`: replies arrive in another stream than the request's own, as in MCP's deprecated HTTP+SSE.
    """
    url = parse_url(settings.url, settings.param)
    tls = await settings.egress.load_tls_context() if url.scheme == "https" else None
    pool = httpcore2.AsyncConnectionPool(
        ssl_context=tls,
        max_connections=64,
        max_keepalive_connections=16,
        # many servers close idle connections after five seconds, and a request that meets the close is lost
        keepalive_expiry=4.0,
        network_backend=_VettedBackend(settings, url),
    )
    return httpx2.AsyncClient(
        transport=_SingleOriginTransport(settings, url, pool, separate_replies),
        headers={"User-Agent": "antiphon", **headers, "Accept-Encoding": "identity"},
        trust_env=False,
        follow_redirects=False,
        max_redirects=3,
        timeout=None,  # the transport sets timeouts per request
    )


class _VettedBackend(httpcore2.AsyncNetworkBackend):
    """Opens connections to vetted addresses only."""

    def __init__(self, settings: McpHttpSettings, url: Url) -> None:
        self._settings = settings
        self._url = url
        self._backend = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore2's signature
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Connect to the configured origin, whatever `host` is, at an address that was vetted just now."""
        target = await self._settings.egress.vet(
            self._settings.url, self._settings.param, allow_loopback=self._settings.allow_loopback
        )
        for address in target.addresses[:_MAX_ADDRESSES]:
            try:
                stream = await self._backend.connect_tcp(address, self._url.port, self._settings.connect_seconds)
                self._settings.egress.outcomes["connected"] += 1
                return stream
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout):
                continue
        self._settings.egress.outcomes["failed"] += 1
        raise FetchFailed(f"{self._url.host} cannot be reached.", param=self._settings.param)


class _JsonRpcMessage(Struct):
    """The relevant fields of a JSON-RPC message."""

    method: str | None = None
    id: int | str | None = None


class _SingleOriginTransport(httpx2.AsyncBaseTransport):
    """Sends requests to one origin and limits what comes back."""

    def __init__(
        self, settings: McpHttpSettings, url: Url, pool: httpcore2.AsyncConnectionPool, separate_replies: bool
    ) -> None:
        self._settings = settings
        self._separate_replies = separate_replies
        self._url = url
        self._pool = pool
        self._original_path = httpx2.URL(settings.url).raw_path
        self._redirected_path = b""  # path after a redirect, if any
        self._stream_limit = TokenBucket(_STREAMS_PER_MINUTE, time.monotonic())

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        method = _request_method(await request.aread())
        notes = self._find_notes(request, method)
        if request.method == "GET" and not self._stream_limit.try_take(1, time.monotonic()):
            return _reject(notes, "breaks off its stream again and again")
        try:
            if parse_url(str(request.url), self._settings.param).origin != self._url.origin:
                return _reject(notes, "leads to another origin, and that is not followed")
            response = await self._pool.handle_async_request(self._to_core_request(request, notes))
        except AntiphonError as error:
            return _reject(notes, error.message, is_sentence=True)
        except httpcore2.TimeoutException:
            return _reject(notes, "does not answer")
        except _CONNECTION_ERRORS:
            return _reject(notes, "does not speak HTTP, or closed the connection before it responded")
        if method:
            self._remember_redirect(request, method, response)
        return await self._to_response(response, request, notes)

    async def aclose(self) -> None:
        await self._pool.aclose()

    def _find_notes(self, request: httpx2.Request, method: str) -> WireNotes | None:
        """Return the caller's notes if this is its own request; other streams and messages belong to no caller."""
        notes = CURRENT_NOTES.get()
        if notes is None or notes.abandoned:
            return None
        is_reply_stream = request.method == "GET" and self._separate_replies
        return notes if method or is_reply_stream else None

    def _remember_redirect(self, request: httpx2.Request, method: str, response: httpcore2.Response) -> None:
        """Remember a redirect within the origin, which is followed once, by a request without side effects.

        A request with side effects is never redirected, because it would be sent twice.
        """
        if method in _SIDE_EFFECT_METHODS:
            response.headers = [(name, value) for name, value in response.headers if name.lower() != b"location"]
        elif response.status < _FIRST_REDIRECT:
            self._redirected_path = request.url.raw_path

    def _to_core_request(self, request: httpx2.Request, notes: WireNotes | None) -> httpcore2.Request:
        path = request.url.raw_path
        if path == self._original_path and self._redirected_path:
            path = self._redirected_path
        url = httpcore2.URL(
            scheme=request.url.raw_scheme, host=request.url.raw_host, port=request.url.port, target=path
        )
        timeout = self._settings.idle_timeout + _TIMEOUT_SLACK if notes is not None else _UNAWAITED_SECONDS
        read_timeout = None if request.method == "GET" else timeout
        timeouts = {"connect": self._settings.connect_seconds, "read": read_timeout, "write": timeout, "pool": timeout}
        assert isinstance(request.stream, AsyncIterable)
        extra_headers = [
            (name.encode(), value.encode())
            for name, value in self._settings.make_headers()
            if name not in request.headers
        ]
        return httpcore2.Request(
            method=request.method,
            url=url,
            headers=[*request.headers.raw, *extra_headers],
            content=request.stream,
            extensions={"timeout": timeouts},
        )

    async def _to_response(
        self, response: httpcore2.Response, request: httpx2.Request, notes: WireNotes | None
    ) -> httpx2.Response:
        assert isinstance(response.stream, AsyncIterable)
        headers = httpx2.Headers(response.headers)
        if notes is not None:
            notes.status = response.status
        if headers.get("content-encoding", "identity").strip().lower() != "identity":
            await response.aclose()
            return _reject(notes, "sent a body in an encoding that was not asked for")
        if self._separate_replies and notes is not None and response.status >= _FIRST_REDIRECT:
            notes.fail(f"answered with the HTTP status {response.status}")
        owner = None if request.method == "GET" else notes
        is_event_stream = headers.get("content-type", "").startswith("text/event-stream")
        body = _MeteredStream(response.stream, owner, is_event_stream)
        return httpx2.Response(response.status, headers=headers, stream=body)


def _request_method(content: bytes) -> str:
    """Return the method of a JSON-RPC request that expects a reply; "" for anything else."""
    try:
        message = msgspec.json.decode(content, type=_JsonRpcMessage) if content else _JsonRpcMessage()
    except msgspec.DecodeError:
        return ""
    return message.method if message.method is not None and message.id is not None else ""


def _reject(notes: WireNotes | None, fault: str, is_sentence: bool = False) -> httpx2.Response:
    """Record the fault and return an empty error response."""
    if notes is not None:
        notes.fail(fault, is_sentence)
    return httpx2.Response(_BAD_GATEWAY, content=b"")


class _MeteredStream(httpx2.AsyncByteStream):
    """A response body that is metered. In an event stream, JSON pieces are counted per event.

    In a stream that belongs to no call (`notes` is None), each event is limited instead of the whole stream.
    """

    def __init__(self, stream: AsyncIterable[bytes], notes: WireNotes | None, is_event_stream: bool) -> None:
        self._stream = stream
        self._notes = notes
        self._is_event_stream = is_event_stream
        self._event_meter = JsonMeter(*_EVENT_LIMITS)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the body. It ends early instead of raising, so only its own reader fails, on an incomplete message."""
        try:
            async for part in self._stream:
                if not self._accepts(part):
                    return
                yield part
                await asyncio.sleep(0)  # a server that sends without pause must not monopolise the event loop
        except _CONNECTION_ERRORS:
            if self._notes is not None and not self._notes.abandoned:
                self._notes.fail("closed the connection in the middle of its response")

    def _accepts(self, part: bytes) -> bool:
        ends_event = b"\n\n" in part or b"\n\r\n" in part
        if self._notes is None:
            if ends_event:
                self._event_meter = JsonMeter(*_EVENT_LIMITS)
            return not self._event_meter.add(part)
        if ends_event and self._is_event_stream:
            self._notes.meter.start_message()
        if fault := self._notes.meter.add(part):
            self._notes.fail(fault)
        return not (self._notes.fault or self._notes.abandoned)

    async def aclose(self) -> None:
        if (close := getattr(self._stream, "aclose", None)) is not None:
            await close()
