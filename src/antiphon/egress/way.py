"""The way itself: a URL is read, its name resolved once, every address vetted, and one of these connected to.

    read_url ──▶ resolve ──▶ vet all ──▶ connect to a vetted address ──▶ answer ──▶ body
       ▲                                                                   │
       └──────────────────────── redirect (counted) ◀──────────────────────┘

No proxy, no cookie, no header of ours beyond what a GET needs. All of it within one deadline.
"""

import asyncio
import logging
import ssl

from msgspec import Struct

from antiphon.egress.addresses import read_address
from antiphon.egress.answers import Answer
from antiphon.egress.names import Resolver, SystemResolver
from antiphon.egress.policy import Policy
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


class Target(Struct, frozen=True):
    """Where a URL leads. Whoever connects, connects to one of the addresses, and to nothing else."""

    url: Url
    addresses: tuple[str, ...]


class Fetched(Struct, frozen=True, kw_only=True):
    body: bytes
    media_type: str  # as declared, to be believed by nobody
    url: str  # after redirects


class Egress:
    def __init__(
        self, policy: Policy | None = None, resolve: Resolver | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self._policy = policy or Policy()
        self._resolve = resolve or SystemResolver()
        self._tls = tls

    async def vetted(self, url: str, param: str, *, at_home: bool = False) -> Target:
        """Raises UrlRefused, naming `param`, for what may not be connected to.

        `at_home`: loopback may be named too. That is for what a person asks of the server on their own machine.
        """
        return await self._vet(read_url(url, param), param, at_home)

    async def connect(self, target: Target, param: str, seconds: float = Caps().connect_seconds) -> Streams:
        """To a vetted address; with TLS the name in the URL has to be the certificate's."""
        secure = await self._context() if target.url.scheme == "https" else None
        for address in target.addresses[:_TRIED]:
            try:
                async with asyncio.timeout(seconds):
                    name = target.url.host if secure else None
                    return await asyncio.open_connection(address, target.url.port, ssl=secure, server_hostname=name)
            except ssl.SSLCertVerificationError:
                raise FetchFailed(f"The certificate of {target.url.host} is not trusted.", param=param)
            except OSError:  # TimeoutError and SSLError are such
                continue
        raise FetchFailed(f"{target.url.host} cannot be reached.", param=param)

    async def fetch(self, url: str, param: str, caps: Caps | None = None) -> Fetched:
        """GET it. Raises UrlRefused for what may not be fetched, FetchFailed for what could not be."""
        caps = caps or Caps()
        first = read_url(url, param)
        try:
            async with asyncio.timeout(caps.seconds):
                return await self._follow(first, param, caps)
        except TimeoutError:
            raise FetchFailed(f"{first.host} took longer than {caps.seconds:g} seconds.", param=param)

    async def _follow(self, url: Url, param: str, caps: Caps) -> Fetched:
        for _ in range(caps.redirects + 1):
            answer = await self._get(await self._vet(url, param), param, caps)
            location = answer.location
            if location is None:
                return Fetched(body=answer.body(), media_type=answer.media_type, url=str(url))
            led = read_redirect(url, location, param)
            if url.scheme == "https" and led.scheme == "http":
                raise UrlRefused(f"{url.host} redirects from https to http.", param=param)
            url = led
        raise FetchFailed(f"{url.host} redirects more than {caps.redirects} times.", param=param)

    async def _vet(self, url: Url, param: str, at_home: bool = False) -> Target:
        """All addresses of a name have to be fit: one that leads here and there is up to something."""
        addresses = await self._addresses(url, param)
        home = at_home and (url.address is not None or _is_localhost(url.host))
        for address in addresses:
            objection = None if home and address.is_loopback else self._policy.objection(url, address)
            if objection is not None:
                log.info("Egress for %s refused: %s.", param, objection)
                raise UrlRefused(
                    f"{objection}, and this server does not connect to that. Its operator can change it with"
                    f" --allow-egress {url.authority}.",
                    param=param,
                )
        return Target(url, tuple(map(str, addresses)))

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

    async def _get(self, target: Target, param: str, caps: Caps) -> Answer:
        reader, writer = await self.connect(target, param, caps.connect_seconds)
        answer = Answer(target.url.host, caps.bytes, param)
        try:
            writer.write(_request(target.url, caps.accept))
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

    async def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = await asyncio.to_thread(ssl.create_default_context)  # reads all of the system's certificates
        return self._tls


async def _read(reader: asyncio.StreamReader, answer: Answer) -> None:
    if data := await reader.read(_READ):
        answer.feed(data)
    else:
        answer.end()


def _request(url: Url, accept: str) -> bytes:
    lines = [
        f"GET {url.target} HTTP/1.1",
        f"Host: {url.authority}",
        "User-Agent: antiphon",
        f"Accept: {accept}",
        "Accept-Encoding: gzip, deflate",
        "Connection: close",
    ]
    return "\r\n".join([*lines, "", ""]).encode("ascii")


def _check_type(answer: Answer, url: Url, param: str, caps: Caps) -> None:
    declared = answer.media_type
    if declared and caps.types and not declared.startswith(caps.types):
        raise FetchFailed(f"{url.host} sent {declared[:64]!r}, which is not what was asked for.", param=param)


def _is_localhost(name: str) -> bool:
    """It is loopback by definition (RFC 6761), whatever a name server says."""
    return name == "localhost" or name.endswith(".localhost")
