"""A forward proxy for code in containers: plain HTTP and CONNECT (RFC 9110, section 9.3.6), to some domains only.

    head of a request ──▶ domain in the list? ──▶ resolve, vet, connect ──▶ bytes in both directions, counted

A tunnel has to begin with TLS for the domain that was requested, so that it cannot lead to another host of the same
address. What is said in it is not seen. A plain request is rendered anew, and is the only one of its connection.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from typing import Any, Final, Protocol

import httptools
from msgspec import Struct

from antiphon.egress.client import EgressClient, Streams
from antiphon.egress.client_hello import HEADER, measure_record, read_server_name
from antiphon.egress.domains import DomainList
from antiphon.egress.urls import Url, normalise_host, parse_url
from antiphon.errors import FetchFailed, UrlRefused

_PARAM: Final = "network_policy"
_HEAD_END: Final = b"\r\n\r\n"
_MAX_HEAD: Final = 64 * 1024
_PIECE: Final = 256 * 1024
_ESTABLISHED: Final = b"HTTP/1.1 200 Connection established\r\n\r\n"
# Headers for one hop (RFC 9110, section 7.6.1), and Host, which is that of the URL.
_HOP_HEADERS: Final = frozenset({
    b"connection", b"host", b"keep-alive", b"proxy-authorization", b"proxy-connection", b"te", b"trailer", b"upgrade",
})  # fmt: skip


class ByteStream(Protocol):
    """A connection of code. Both methods raise OSError if it is lost."""

    async def receive(self) -> bytes:
        """Return the next bytes; none at the end."""

    async def send(self, data: bytes) -> None:
        """Send bytes, and wait until there is room for more."""


class ProxyLimits(Struct, frozen=True, kw_only=True):
    """Limits of one proxy."""

    connections: int = 16  # at a time
    bytes: int = 256 * 1024 * 1024  # of all connections, in both directions
    head_seconds: float = 10.0
    idle_seconds: float = 60.0  # until the next bytes of the host


class ProxyRefusal(Exception):
    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status

    def render(self) -> bytes:
        """Return the response. Its status line has the reason too: clients show only this line of a failed CONNECT."""
        reason = " ".join(str(self).split()).encode("ascii", "replace")
        head = f"Content-Type: text/plain\r\nContent-Length: {len(reason) + 1}\r\nConnection: close\r\n\r\n"
        return b"HTTP/1.1 %d %b\r\n%b%b\n" % (self.status, reason, head.encode(), reason)


class ProxyRequest:
    """The head of a request, filled by the parser."""

    def __init__(self, head: bytes) -> None:
        """Raises ProxyRefusal."""
        self._target, self._headers = b"", list[tuple[bytes, bytes]]()
        parser: Any = httptools.HttpRequestParser(self)
        try:
            parser.feed_data(head)
        except httptools.HttpParserUpgrade:  # CONNECT, or an offer of another protocol, which is not passed on
            pass
        except httptools.HttpParserError:
            raise ProxyRefusal(HTTPStatus.BAD_REQUEST, "This is not a well-formed HTTP request.") from None
        self._method = parser.get_method()
        self.is_tunnel = self._method == b"CONNECT"
        self.length = 0  # of the body
        prefix = b"http://" if self.is_tunnel else b""
        try:
            self.url = parse_url((prefix + self._target).decode(), _PARAM)
        except (UrlRefused, UnicodeDecodeError) as error:
            raise ProxyRefusal(HTTPStatus.BAD_REQUEST, f"This is a proxy: {error}") from None
        if self.url.scheme != "http":
            raise ProxyRefusal(HTTPStatus.BAD_REQUEST, "A URL of https is requested through CONNECT.")

    def on_url(self, data: bytes) -> None:
        self._target += data

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def render(self) -> bytes:
        """Return the head of the request for the host, and set the length of the body. Raises ProxyRefusal."""
        tokens = b",".join(value for name, value in self._headers if name == b"connection").split(b",")
        dropped = _HOP_HEADERS | {token.strip().lower() for token in tokens}
        lines = [b"%b %b HTTP/1.1" % (self._method, self.url.target.encode()), b"Host: " + self.url.authority.encode()]
        for name, value in self._headers:
            if name == b"transfer-encoding":  # behind such a body another request could follow
                raise ProxyRefusal(HTTPStatus.LENGTH_REQUIRED, "A body needs a Content-Length.")
            if name == b"content-length":
                self.length = int(value)
            if name not in dropped:
                lines.append(b"%b: %b" % (name, value))
        return b"\r\n".join((*lines, b"Connection: close", b"", b""))


class ForwardProxy:
    """The connections of one call of code."""

    def __init__(self, egress: EgressClient, allowed: DomainList, limits: ProxyLimits | None = None) -> None:
        self._egress = egress
        self._allowed = allowed
        self._limits = limits or ProxyLimits()
        self._open = self._bytes = 0

    async def serve(self, client: ByteStream) -> None:
        """Serve a connection until one of its ends closes it, or a limit is reached."""
        self._open += 1
        try:
            if self._open <= self._limits.connections:
                await self._serve(client)
        except ProxyRefusal as refusal:
            with suppress(OSError):
                await client.send(refusal.render())
        except OSError:  # either end is gone, was silent for too long, or has sent too much
            pass
        finally:
            self._open -= 1

    async def _serve(self, client: ByteStream) -> None:
        async with asyncio.timeout(self._limits.head_seconds):
            head, _, remainder = (await self._read_head(client)).partition(_HEAD_END)
        request = ProxyRequest(head + _HEAD_END)
        first = b"" if request.is_tunnel else request.render()
        async with self._connect(request.url) as upstream:
            if request.is_tunnel:
                await client.send(_ESTABLISHED)
                async with asyncio.timeout(self._limits.head_seconds):
                    remainder = await self._read_hello(client, remainder, request.url.host)
                await self._copy(client, upstream, remainder, None)
            else:
                body = remainder[: request.length]
                await self._copy(client, upstream, first + body, request.length - len(body))

    async def _read_head(self, client: ByteStream) -> bytes:
        data = b""
        while _HEAD_END not in data:
            if len(data) > _MAX_HEAD or not (piece := await self._receive(client)):
                raise ProxyRefusal(HTTPStatus.BAD_REQUEST, "The head of the request is incomplete, or too long.")
            data += piece
        return data

    async def _read_hello(self, client: ByteStream, data: bytes, host: str) -> bytes:
        """Return the first bytes of a tunnel, which are TLS for the host. Raises ConnectionAbortedError."""
        try:
            while len(data) < HEADER or len(data) < measure_record(data):
                if not (piece := await self._receive(client)):
                    raise ValueError("the beginning of TLS is incomplete")
                data += piece
            if normalise_host(read_server_name(data[: measure_record(data)])) != host:
                raise ValueError("the server name is another one")
        except ValueError as error:
            raise ConnectionAbortedError(str(error)) from None
        return data

    @asynccontextmanager
    async def _connect(self, url: Url) -> AsyncIterator[Streams]:
        """Connect to an allowed host. Raises ProxyRefusal."""
        if url.address is not None or not self._allowed.covers(url.host):
            self._egress.outcomes["refused"] += 1
            raise ProxyRefusal(HTTPStatus.FORBIDDEN, f"{url.host} is not among the allowed domains of this container.")
        try:
            streams = await self._egress.connect(await self._egress.vet(str(url), _PARAM), _PARAM)
        except UrlRefused as error:
            raise ProxyRefusal(HTTPStatus.FORBIDDEN, error.message) from None
        except FetchFailed as error:
            raise ProxyRefusal(HTTPStatus.BAD_GATEWAY, error.message) from None
        try:
            yield streams
        finally:
            streams[1].transport.abort()

    async def _copy(self, client: ByteStream, upstream: Streams, first: bytes, length: int | None) -> None:
        """Send the first bytes and `length` more, or all, and return all bytes of the host."""
        reader, writer = upstream
        writer.write(first)
        upload = asyncio.get_running_loop().create_task(self._upload(client, writer, length))
        try:
            while True:
                async with asyncio.timeout(self._limits.idle_seconds):
                    data = await reader.read(_PIECE)
                if not data:
                    return
                self._count(data)
                await client.send(data)
        finally:
            upload.cancel()
            await asyncio.gather(upload, return_exceptions=True)

    async def _upload(self, client: ByteStream, writer: asyncio.StreamWriter, length: int | None) -> None:
        try:
            while length != 0:
                data = (await self._receive(client))[:length]
                if not data:
                    break
                length = None if length is None else length - len(data)
                writer.write(data)
                await writer.drain()
        except OSError:
            writer.transport.abort()  # which ends the other direction
        else:
            if length is None:
                with suppress(OSError):
                    writer.write_eof()

    async def _receive(self, client: ByteStream) -> bytes:
        data = await client.receive()
        self._count(data)
        return data

    def _count(self, data: bytes) -> None:
        self._bytes += len(data)
        if self._bytes > self._limits.bytes:
            raise ConnectionAbortedError(f"more than {self._limits.bytes} bytes")
