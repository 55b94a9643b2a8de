"""The way itself: a URL is read, its name resolved once, every address vetted, and one of these connected to.

    read_url ──▶ resolve ──▶ vet all ──▶ connect to a vetted address ──▶ answer ──▶ body
       ▲                                                                   │
       └──────────────────────── redirect (counted) ◀──────────────────────┘

No proxy, no cookie, no header of ours beyond what a GET needs, but for what a caller has to send: that goes to the
origin it is meant for, and nowhere else. All of it within one deadline.
"""

import asyncio
import logging
import ssl
from collections import Counter
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address

from msgspec import Struct

from antiphon.egress.addresses import read_address
from antiphon.egress.http_response import Answer
from antiphon.egress.policy import Policy
from antiphon.egress.resolver import Resolver, SystemResolver
from antiphon.egress.urls import Address, Url, read_redirect, read_url
from antiphon.errors import FetchFailed, UrlRefused

log = logging.getLogger(__name__)

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

_READ = 64 * 1024
_TRIED = 4  # addresses of one host
_LOCALHOST = ("127.0.0.1", "::1")


class Caps(Struct, frozen=True, kw_only=True):
    """Bounds of one fetch, redirects included."""

    bytes: int = 20 * 1024 * 1024  # of the body, decoded
    seconds: float = 10.0
    connect_seconds: float = 4.0  # for each address
    first_seconds: float = 8.0  # from the request to the first byte
    redirects: int = 5
    types: tuple[str, ...] = ()  # how a declared media type may begin; none: any
    accept: str = "*/*"
    wanted: str = "what was asked for"  # in the sentence about any other type


class Sent(Struct, frozen=True, kw_only=True):
    """What goes along with a request to a host that the operator named. A redirect to another origin is not followed,
    nor is any that a POST gets."""

    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None  # JSON: then it is a POST

    def __repr__(self) -> str:
        return "Sent(…)"


class Target(Struct, frozen=True):
    """Where a URL leads. Whoever connects, connects to one of the addresses, and to nothing else."""

    url: Url
    addresses: tuple[str, ...]


_NOTHING = Sent()


class Fetched(Struct, frozen=True, kw_only=True):
    body: bytes
    media_type: str  # as declared, to be believed by nobody
    charset: str = ""  # likewise
    url: str  # after redirects


class Egress:
    def __init__(
        self, policy: Policy | None = None, resolve: Resolver | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self._policy = policy or Policy()
        self._resolve = resolve or SystemResolver()
        self._tls = tls
        self.outcomes: Counter[str] = Counter({"connected": 0, "failed": 0, "refused": 0})

    def towards(self, url: str, param: str) -> "Egress":
        """The same way, which also leads to the host and port of this URL, whatever address that is: the operator's
        word, never a client's."""
        named = read_url(url, param)
        host = f"[{named.host}]" if ":" in named.host else named.host
        same = Egress(self._policy.opening(f"{host}:{named.port}"), self._resolve, self._tls)
        same.outcomes = self.outcomes
        return same

    async def vetted(self, url: str, param: str, *, at_home: bool = False) -> Target:
        """Raises UrlRefused, naming `param`, for what may not be connected to.

        `at_home`: loopback may be named too. That is for what a person asks of the server on their own machine.
        """
        return await self._vet(read_url(url, param), param, at_home)

    def check(self, url: str, param: str, *, at_home: bool = False) -> Url:
        """Without IO: raises UrlRefused for what is refused whatever a name server says."""
        read = read_url(url, param)
        if read.address is not None:
            self._allow(read, (read.address,), param, at_home)
        elif _is_localhost(read.host):
            self._allow(read, (IPv4Address(_LOCALHOST[0]), IPv6Address(_LOCALHOST[1])), param, at_home)
        return read

    async def connect(self, target: Target, param: str, seconds: float = Caps().connect_seconds) -> Streams:
        """To a vetted address; with TLS the name in the URL has to be the certificate's."""
        secure = await self.tls() if target.url.scheme == "https" else None
        for address in target.addresses[:_TRIED]:
            try:
                async with asyncio.timeout(seconds):
                    name = target.url.host if secure else None
                    port = target.url.port
                    streams = await asyncio.open_connection(address, port, ssl=secure, server_hostname=name)
                self.outcomes["connected"] += 1
                return streams
            except ssl.SSLCertVerificationError:
                self.outcomes["failed"] += 1
                raise FetchFailed(f"The certificate of {target.url.host} is not trusted.", param=param)
            except OSError:  # TimeoutError and SSLError are such
                continue
        self.outcomes["failed"] += 1
        raise FetchFailed(f"{target.url.host} cannot be reached.", param=param)

    async def fetch(self, url: str, param: str, caps: Caps | None = None, sent: Sent | None = None) -> Fetched:
        """GET it. Raises UrlRefused for what may not be fetched, FetchFailed for what could not be."""
        caps = caps or Caps()
        first = read_url(url, param)
        try:
            async with asyncio.timeout(caps.seconds):
                return await self._follow(first, param, caps, sent)
        except TimeoutError:
            raise FetchFailed(f"{first.host} took longer than {caps.seconds:g} seconds.", param=param)

    async def _follow(self, url: Url, param: str, caps: Caps, sent: Sent | None) -> Fetched:
        for _ in range(caps.redirects + 1):
            answer = await self._get(await self._vet(url, param), param, caps, sent)
            location = answer.location
            if location is None:
                return Fetched(body=answer.body(), media_type=answer.media_type, charset=answer.charset, url=str(url))
            led = read_redirect(url, location, param)
            if sent is not None and (sent.body is not None or led.origin != url.origin):
                raise UrlRefused(f"{url.host} redirects what is meant for it alone.", param=param)
            if url.scheme == "https" and led.scheme == "http":
                raise UrlRefused(f"{url.host} redirects from https to http.", param=param)
            url = led
        raise FetchFailed(f"{url.host} redirects more than {caps.redirects} times.", param=param)

    async def _vet(self, url: Url, param: str, at_home: bool = False) -> Target:
        """All addresses of a name have to be fit: one that leads here and there is up to something."""
        addresses = await self._addresses(url, param)
        self._allow(url, addresses, param, at_home)
        return Target(url, tuple(map(str, addresses)))

    def _allow(self, url: Url, addresses: Sequence[Address], param: str, at_home: bool) -> None:
        home = at_home and (url.address is not None or _is_localhost(url.host))
        for address in addresses:
            objection = None if home and address.is_loopback else self._policy.objection(url, address)
            if objection is not None:
                self.outcomes["refused"] += 1
                log.info("Egress for %s refused: %s.", param, objection)
                raise UrlRefused(
                    f"{objection}, and this server does not connect to that. Its operator can change it with"
                    f" --allow-egress {url.authority}.",
                    param=param,
                )

    async def _addresses(self, url: Url, param: str) -> list[Address]:
        if url.address is not None:
            return [url.address]
        try:
            found = _LOCALHOST if _is_localhost(url.host) else await self._resolve(url.host, url.port)
        except OSError:
            found = ()
        addresses = [read_address(each) for each in found]
        if not addresses:
            raise FetchFailed(f"There is no host {url.host}.", param=param)
        known = [address for address in addresses if address is not None]
        if len(known) < len(addresses):
            raise UrlRefused(f"{url.host} leads to no address that can be vetted.", param=param)
        return known

    async def _get(self, target: Target, param: str, caps: Caps, sent: Sent | None) -> Answer:
        reader, writer = await self.connect(target, param, caps.connect_seconds)
        answer = Answer(target.url.host, caps.bytes, param)
        try:
            writer.write(_request(target.url, caps.accept, sent or _NOTHING))
            async with asyncio.timeout(caps.first_seconds):
                while not (answer.begun or answer.complete):
                    await _read(reader, answer)
            if answer.location is None:
                _check_type(answer, target.url, param, caps)
                while not answer.complete:
                    await _read(reader, answer)
        except TimeoutError:
            raise FetchFailed(f"{target.url.host} does not answer.", param=param)
        except OSError:
            raise FetchFailed(f"{target.url.host} hung up in the middle of its answer.", param=param)
        finally:
            writer.transport.abort()
        return answer

    async def tls(self) -> ssl.SSLContext:
        """What certificates are checked with."""
        if self._tls is None:
            self._tls = await asyncio.to_thread(ssl.create_default_context)  # reads all of the system's certificates
        return self._tls


async def _read(reader: asyncio.StreamReader, answer: Answer) -> None:
    if data := await reader.read(_READ):
        answer.feed(data)
    else:
        answer.end()


def _request(url: Url, accept: str, sent: Sent) -> bytes:
    lines = [
        f"{'GET' if sent.body is None else 'POST'} {url.target} HTTP/1.1",
        f"Host: {url.authority}",
        "User-Agent: antiphon",
        f"Accept: {accept}",
        "Accept-Encoding: gzip, deflate",
        "Connection: close",
        *[f"{name}: {value}" for name, value in sent.headers],
    ]
    if sent.body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(sent.body)}"]
    return "\r\n".join([*lines, "", ""]).encode("ascii") + (sent.body or b"")


def _check_type(answer: Answer, url: Url, param: str, caps: Caps) -> None:
    declared = answer.media_type
    if declared and caps.types and not declared.startswith(caps.types):
        raise FetchFailed(f"{url.host} sent {declared[:64]!r}, which is not {caps.wanted}.", param=param)


def _is_localhost(name: str) -> bool:
    """It is loopback by definition (RFC 6761), whatever a name server says."""
    return name == "localhost" or name.endswith(".localhost")
