"""Egress for the mcp package, which speaks through httpx2: one origin, every connection vetted anew, nothing inflated.

What fails on the wire is not raised into that package, where it would end all calls of a session at once: it becomes an
answer that says no, and the caller's exchange has the reason.
"""

import asyncio
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable
from typing import Any, Final

import httpcore2
import httpx2
import msgspec
from msgspec import Struct

from antiphon.egress.client import Egress
from antiphon.egress.urls import Url, read_url
from antiphon.egress.wire_notes import CURRENT, Exchange, Measure
from antiphon.errors import AntiphonError, FetchFailed

_TRIED: Final = 4  # addresses of one host
_MOVED: Final = 300
_BAD_GATEWAY: Final = 502
_EFFECTIVE: Final = frozenset({"tools/call"})
_SLACK: Final = 5.0  # seconds that a wire outlives the caller's patience
_ASIDE_SECONDS: Final = 5.0  # for what nobody waits for: notifications, answers, goodbyes
_STREAMS: Final = 20  # event streams that are opened anew at once, and one more every so many seconds
_STREAM_SECONDS: Final = 5.0
_EVENT: Final = (1024 * 1024, 64 * 1024)  # bytes and pieces of an event in a stream that belongs to no call
_BROKEN: Final = (httpcore2.NetworkError, httpcore2.TimeoutException, httpcore2.ProtocolError)


class Wire(Struct, frozen=True, kw_only=True):
    """How one server is spoken to."""

    egress: Egress
    url: str
    param: str
    at_home: bool = False  # loopback may be named
    patience: float = 60.0  # seconds of silence that a caller bears
    connect_seconds: float = 5.0
    told: Callable[[], Iterable[tuple[str, str]]] = list  # headers that each request has of its own, by its context


async def http_client(wire: Wire, headers: dict[str, str], answers_apart: bool = False) -> httpx2.AsyncClient:
    """For this origin alone. No proxy, no netrc, no redirect beyond the origin, no authentication but the headers.

    `answers_apart`: they come in another stream than the request's own, as they once did.
    """
    url = read_url(wire.url, wire.param)
    tls = await wire.egress.tls() if url.scheme == "https" else None
    pool = httpcore2.AsyncConnectionPool(
        ssl_context=tls,
        max_connections=64,
        max_keepalive_connections=16,
        keepalive_expiry=4.0,  # many servers hang up after five seconds, and a request that meets that is lost
        network_backend=_Vetted(wire, url),
    )
    return httpx2.AsyncClient(
        transport=_OneOrigin(wire, url, pool, answers_apart),
        headers={"User-Agent": "antiphon", **headers, "Accept-Encoding": "identity"},
        trust_env=False,
        follow_redirects=False,
        max_redirects=3,
        timeout=None,  # the transport knows better
    )


class _Vetted(httpcore2.AsyncNetworkBackend):
    def __init__(self, wire: Wire, url: Url) -> None:
        self._wire = wire
        self._url = url
        self._plain = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore2's signature
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Whatever is asked for, it is the one origin that is connected to, at an address that was vetted just now."""
        target = await self._wire.egress.vetted(self._wire.url, self._wire.param, at_home=self._wire.at_home)
        for address in target.addresses[:_TRIED]:
            try:
                stream = await self._plain.connect_tcp(address, self._url.port, self._wire.connect_seconds)
                self._wire.egress.outcomes["connected"] += 1
                return stream
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout):
                continue
        self._wire.egress.outcomes["failed"] += 1
        raise FetchFailed(f"{self._url.host} cannot be reached.", param=self._wire.param)


class _Message(Struct):
    """What is to be known of a JSON-RPC message."""

    method: str | None = None
    id: int | str | None = None


class _OneOrigin(httpx2.AsyncBaseTransport):
    def __init__(self, wire: Wire, url: Url, pool: httpcore2.AsyncConnectionPool, answers_apart: bool) -> None:
        self._wire = wire
        self._apart = answers_apart
        self._url = url
        self._pool = pool
        self._first = httpx2.URL(wire.url).raw_path
        self._target = b""  # where that led, if it led elsewhere
        self._streams = float(_STREAMS)
        self._opened = time.monotonic()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        method = _method(await request.aread())
        exchange = self._exchange(request, method)
        if request.method == "GET" and not self._may_stream():
            return _refused(exchange, "breaks off its stream again and again")
        try:
            if read_url(str(request.url), self._wire.param).origin != self._url.origin:
                return _refused(exchange, "leads to another origin, and that is not followed")
            answer = await self._pool.handle_async_request(self._core(request, exchange))
        except AntiphonError as error:
            return _refused(exchange, error.message, whole=True)
        except httpcore2.TimeoutException:
            return _refused(exchange, "does not answer")
        except _BROKEN:
            return _refused(exchange, "does not speak HTTP, or hung up before it answered")
        if method:
            self._note_move(request, method, answer)
        return self._answered(answer, request, exchange)

    async def aclose(self) -> None:
        await self._pool.aclose()

    def _exchange(self, request: httpx2.Request, method: str) -> Exchange | None:
        """The caller's, if it is the caller's own request: streams and what is said on the way belong to nobody."""
        exchange = CURRENT.get()
        if exchange is None or exchange.over:
            return None
        stream = request.method == "GET" and self._apart
        return exchange if method or stream else None

    def _note_move(self, request: httpx2.Request, method: str, answer: httpcore2.Response) -> None:
        """A redirect within the origin is followed once, before anything has an effect, and kept in mind: what has one
        is not sent to be sent again."""
        if method in _EFFECTIVE:
            answer.headers = [(name, value) for name, value in answer.headers if name.lower() != b"location"]
        elif answer.status < _MOVED:
            self._target = request.url.raw_path

    def _may_stream(self) -> bool:
        now = time.monotonic()
        self._streams = min(_STREAMS, self._streams + (now - self._opened) / _STREAM_SECONDS)
        self._opened = now
        if self._streams < 1:
            return False
        self._streams -= 1
        return True

    def _core(self, request: httpx2.Request, exchange: Exchange | None) -> httpcore2.Request:
        path = request.url.raw_path
        if path == self._first and self._target:
            path = self._target
        url = httpcore2.URL(
            scheme=request.url.raw_scheme, host=request.url.raw_host, port=request.url.port, target=path
        )
        patience = self._wire.patience + _SLACK if exchange is not None else _ASIDE_SECONDS
        read = None if request.method == "GET" else patience
        seconds = {"connect": self._wire.connect_seconds, "read": read, "write": patience, "pool": patience}
        assert isinstance(request.stream, AsyncIterable)
        own = [(name.encode(), value.encode()) for name, value in self._wire.told() if name not in request.headers]
        return httpcore2.Request(
            method=request.method,
            url=url,
            headers=[*request.headers.raw, *own],
            content=request.stream,
            extensions={"timeout": seconds},
        )

    def _answered(
        self, answer: httpcore2.Response, request: httpx2.Request, exchange: Exchange | None
    ) -> httpx2.Response:
        assert isinstance(answer.stream, AsyncIterable)
        headers = httpx2.Headers(answer.headers)
        if exchange is not None:
            exchange.status = answer.status
        swollen = headers.get("content-encoding", "identity").strip().lower() != "identity"
        if swollen and exchange is not None:
            exchange.fail("sent a body in an encoding that was not asked for")
        if self._apart and exchange is not None and answer.status >= _MOVED:
            exchange.fail(f"answered with the HTTP status {answer.status}")
        apart = exchange is None or request.method == "GET"
        streams = headers.get("content-type", "").startswith("text/event-stream")
        counting = _Stream() if apart or exchange is None else _Calls(exchange, streams)
        body = _Nothing(answer.stream) if swollen else _Bounded(answer.stream, counting)
        if swollen:
            headers = httpx2.Headers({"content-type": "text/plain"})
        return httpx2.Response(_BAD_GATEWAY if swollen else answer.status, headers=headers, stream=body)


def _method(content: bytes) -> str:
    """Of a request that wants an answer; "" for anything else."""
    try:
        message = msgspec.json.decode(content, type=_Message) if content else _Message()
    except msgspec.DecodeError:
        return ""
    return message.method if message.method is not None and message.id is not None else ""


def _refused(exchange: Exchange | None, fault: str, whole: bool = False) -> httpx2.Response:
    if exchange is not None:
        exchange.fail(fault, whole)
    return httpx2.Response(_BAD_GATEWAY, content=b"")


class _Calls:
    """The body of an answer that somebody waits for; if it is a stream, the pieces of each event are counted apart."""

    def __init__(self, exchange: Exchange, streams: bool) -> None:
        self._exchange = exchange
        self._streams = streams

    def takes(self, part: bytes) -> bool:
        if self._streams and _ends_event(part):
            self._exchange.measure.next()
        if fault := self._exchange.measure.take(part):
            self._exchange.fail(fault)
        return not (self._exchange.fault or self._exchange.over)

    def broke(self) -> None:
        if not self._exchange.over:
            self._exchange.fail("hung up in the middle of its answer")


class _Stream:
    """A stream of events that belongs to no call: each is bounded, not all of them together."""

    def __init__(self) -> None:
        self._event = Measure(*_EVENT)

    def takes(self, part: bytes) -> bool:
        if _ends_event(part):
            self._event = Measure(*_EVENT)
        return not self._event.take(part)

    def broke(self) -> None: ...


def _ends_event(part: bytes) -> bool:
    return b"\n\n" in part or b"\n\r\n" in part


class _Bounded(httpx2.AsyncByteStream):
    def __init__(self, stream: AsyncIterable[bytes], counting: _Calls | _Stream) -> None:
        self._stream = stream
        self._counting = counting

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """It ends early rather than raise: whoever reads it fails for want of an end, alone."""
        try:
            async for part in self._stream:
                if not self._counting.takes(part):
                    return
                yield part
                await asyncio.sleep(0)  # a server that sends without a pause does not have the loop to itself
        except _BROKEN:
            self._counting.broke()

    async def aclose(self) -> None:
        await _close(self._stream)


class _Nothing(httpx2.AsyncByteStream):
    """In place of a body that is not looked at."""

    def __init__(self, stream: AsyncIterable[bytes]) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        return
        yield b""

    async def aclose(self) -> None:
        await _close(self._stream)


async def _close(stream: AsyncIterable[bytes]) -> None:
    close = getattr(stream, "aclose", None)
    if close is not None:
        await close()
