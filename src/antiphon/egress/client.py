"""The egress client: parses a URL, resolves its name once, vets every address, and connects to one of them.

    parse_url ──▶ resolve ──▶ vet all ──▶ connect to a vetted address ──▶ response ──▶ body
       ▲                                                                     │
       └───────────────────────── redirect (counted) ◀───────────────────────┘

It uses no proxy and no cookies, and sends only the headers that a GET needs, plus those of the caller, which go to
their intended origin only. Everything happens within one deadline.
"""

import asyncio
import logging
import ssl
from collections import Counter
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address

from msgspec import Struct

from antiphon.egress.http import NO_HEADERS, HttpResponse, RequestHeaders, render_request
from antiphon.egress.policy import EgressPolicy, Resolver, SystemResolver, is_loopback, parse_address
from antiphon.egress.urls import Address, Url, parse_redirect, parse_url
from antiphon.errors import FetchFailed, UrlRefused

log = logging.getLogger(__name__)

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

_READ_BYTES = 64 * 1024
_MAX_ADDRESSES = 4  # attempts per host
_LOCALHOST = (IPv4Address("127.0.0.1"), IPv6Address("::1"))


class FetchLimits(Struct, frozen=True, kw_only=True):
    """Limits of one fetch, including its redirects."""

    bytes: int = 20 * 1024 * 1024  # of the decoded body
    seconds: float = 10.0
    connect_seconds: float = 4.0  # per address
    first_byte_seconds: float = 8.0  # from the request to the response headers
    redirects: int = 5
    media_types: tuple[str, ...] = ()  # allowed prefixes of the declared media type; empty: any
    accept: str = "*/*"
    expected: str = "what was asked for"  # describes the allowed types in an error message


class VettedTarget(Struct, frozen=True):
    """A URL with its vetted addresses. Callers must connect to one of these addresses only."""

    url: Url
    addresses: tuple[str, ...]


class FetchResult(Struct, frozen=True, kw_only=True):
    body: bytes
    media_type: str  # as declared by the server; not trustworthy
    charset: str = ""  # likewise
    url: str  # after redirects


class EgressClient:
    """Fetches and connects to URLs under an egress policy."""

    def __init__(
        self, policy: EgressPolicy | None = None, resolve: Resolver | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self._policy = policy or EgressPolicy()
        self._resolve = resolve or SystemResolver()
        self._tls = tls
        self.outcomes: Counter[str] = Counter({"connected": 0, "failed": 0, "refused": 0})

    def allow_operator_url(self, url: str, param: str) -> "EgressClient":
        """Return a client that may also connect to the host and port of this URL, whatever its address.

        Only for URLs from the operator, never from a client.
        """
        parsed = parse_url(url, param)
        host = f"[{parsed.host}]" if ":" in parsed.host else parsed.host
        client = EgressClient(self._policy.extend(f"{host}:{parsed.port}"), self._resolve, self._tls)
        client.outcomes = self.outcomes
        return client

    async def vet(self, url: str, param: str, *, allow_loopback: bool = False) -> VettedTarget:
        """Resolve and vet a URL. Raises UrlRefused, naming `param`, if the server may not connect to it.

        `allow_loopback`: the URL may name loopback, for a server on the user's own machine.
        """
        return await self._resolve_target(parse_url(url, param), param, allow_loopback)

    def check(self, url: str, param: str, *, allow_loopback: bool = False) -> Url:
        """Check a URL without I/O. Raises UrlRefused if it is rejected whatever its name resolves to."""
        parsed = parse_url(url, param)
        self._check_addresses(parsed, _fixed_addresses(parsed), param, allow_loopback)
        return parsed

    async def connect(
        self, target: VettedTarget, param: str, seconds: float = FetchLimits().connect_seconds
    ) -> Streams:
        """Connect to a vetted address. With TLS, the certificate must match the name in the URL."""
        tls_context = await self.load_tls_context() if target.url.scheme == "https" else None
        for address in target.addresses[:_MAX_ADDRESSES]:
            try:
                async with asyncio.timeout(seconds):
                    name = target.url.host if tls_context else None
                    port = target.url.port
                    streams = await asyncio.open_connection(address, port, ssl=tls_context, server_hostname=name)
                self.outcomes["connected"] += 1
                return streams
            except ssl.SSLCertVerificationError:
                self.outcomes["failed"] += 1
                raise FetchFailed(f"The certificate of {target.url.host} is not trusted.", param=param)
            except OSError:  # includes TimeoutError and SSLError
                continue
        self.outcomes["failed"] += 1
        raise FetchFailed(f"{target.url.host} cannot be reached.", param=param)

    async def fetch(
        self, url: str, param: str, limits: FetchLimits | None = None, request_headers: RequestHeaders | None = None
    ) -> FetchResult:
        """Fetch a URL. Raises UrlRefused if it may not be fetched, FetchFailed if fetching failed."""
        limits = limits or FetchLimits()
        first = parse_url(url, param)
        try:
            async with asyncio.timeout(limits.seconds):
                return await self._follow(first, param, limits, request_headers)
        except TimeoutError:
            raise FetchFailed(f"{first.host} took longer than {limits.seconds:g} seconds.", param=param)

    async def _follow(
        self, url: Url, param: str, limits: FetchLimits, request_headers: RequestHeaders | None
    ) -> FetchResult:
        for _ in range(limits.redirects + 1):
            response = await self._send_request(await self._resolve_target(url, param), param, limits, request_headers)
            if (location := response.location) is None:
                return FetchResult(
                    body=response.body(), media_type=response.media_type, charset=response.charset, url=str(url)
                )
            next_url = parse_redirect(url, location, param)
            if request_headers is not None and (request_headers.body is not None or next_url.origin != url.origin):
                raise UrlRefused(f"{url.host} redirects what is meant for it alone.", param=param)
            if url.scheme == "https" and next_url.scheme == "http":
                raise UrlRefused(f"{url.host} redirects from https to http.", param=param)
            url = next_url
        raise FetchFailed(f"{url.host} redirects more than {limits.redirects} times.", param=param)

    async def _resolve_target(self, url: Url, param: str, allow_loopback: bool = False) -> VettedTarget:
        """Resolve and vet a URL. All addresses of a name must be allowed: mixed results indicate an attack."""
        addresses = await self._resolve_addresses(url, param)
        self._check_addresses(url, addresses, param, allow_loopback)
        return VettedTarget(url, tuple(map(str, addresses)))

    def _check_addresses(self, url: Url, addresses: Sequence[Address], param: str, allow_loopback: bool) -> None:
        loopback_allowed = allow_loopback and (url.address is not None or _is_localhost(url.host))
        for address in addresses:
            objection = None if loopback_allowed and is_loopback(address) else self._policy.find_objection(url, address)
            if objection is not None:
                self.outcomes["refused"] += 1
                log.info("Egress for %s refused: %s.", param, objection)
                raise UrlRefused(
                    f"{objection}, and this server does not connect to that. Its operator can change it with"
                    f" --allow-egress {url.authority}.",
                    param=param,
                )

    async def _resolve_addresses(self, url: Url, param: str) -> list[Address]:
        if fixed := _fixed_addresses(url):
            return fixed
        try:
            addresses = [parse_address(text) for text in await self._resolve(url.host, url.port)]
        except OSError:
            addresses = []
        if not addresses:
            raise FetchFailed(f"There is no host {url.host}.", param=param)
        valid = [address for address in addresses if address is not None]
        if len(valid) < len(addresses):
            raise UrlRefused(f"{url.host} leads to no address that can be vetted.", param=param)
        return valid

    async def _send_request(
        self, target: VettedTarget, param: str, limits: FetchLimits, request_headers: RequestHeaders | None
    ) -> HttpResponse:
        reader, writer = await self.connect(target, param, limits.connect_seconds)
        response = HttpResponse(target.url.host, limits.bytes, param)
        try:
            writer.write(render_request(target.url, limits.accept, request_headers or NO_HEADERS))
            async with asyncio.timeout(limits.first_byte_seconds):
                while not response.status:
                    await _read_chunk(reader, response)
            if response.location is None:
                _check_media_type(response, target.url, param, limits)
                while not response.complete:
                    await _read_chunk(reader, response)
        except TimeoutError:
            raise FetchFailed(f"{target.url.host} does not answer.", param=param)
        except OSError:
            raise FetchFailed(f"{target.url.host} closed the connection in the middle of its response.", param=param)
        finally:
            writer.transport.abort()
        return response

    async def load_tls_context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = await asyncio.to_thread(ssl.create_default_context)  # reads all certificates of the system
        return self._tls


async def _read_chunk(reader: asyncio.StreamReader, response: HttpResponse) -> None:
    if data := await reader.read(_READ_BYTES):
        response.feed(data)
    else:
        response.require_end()


def _check_media_type(response: HttpResponse, url: Url, param: str, limits: FetchLimits) -> None:
    declared = response.media_type
    if declared and limits.media_types and not declared.startswith(limits.media_types):
        raise FetchFailed(f"{url.host} sent {declared[:64]!r}, which is not {limits.expected}.", param=param)


def _fixed_addresses(url: Url) -> list[Address]:
    """Return the addresses of a host that is not looked up: an address, or localhost."""
    return [*_LOCALHOST] if _is_localhost(url.host) else [] if url.address is None else [url.address]


def _is_localhost(name: str) -> bool:
    """Return whether a name is loopback by definition (RFC 6761 §6.3), whatever a name server returns."""
    return name == "localhost" or name.endswith(".localhost")
