"""Who may come in: Host and Origin on loopback, API keys everywhere, nobody new once the doors are closed.

What is not public by exact path needs a key, also what does not exist. Nothing is decided on a URL that
was put together from headers. Keys are compared as hashes, in constant time.
"""

import hmac
from collections.abc import Iterable
from hashlib import sha256

from antiphon.config import Config
from antiphon.errors import BadRequest, Forbidden, NotAuthenticated, Unavailable
from antiphon.service.salting import TENANT
from antiphon.transport.http import Header, Request

PUBLIC = frozenset({b"/health", b"/ready", b"/version"})

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")

_NAME_BYTES = b"abcdefghijklmnopqrstuvwxyz0123456789.-_"
_ADDRESS_BYTES = b"abcdef0123456789:."
_LONGEST_KEY = 4096
_LONGEST_HOST = 261
_REMEMBERED = 64


class Guard:
    def __init__(self, config: Config) -> None:
        self.closed = False
        self._keys = tuple(sha256(key.encode()).digest() for key in config.api_key)
        self._hosts = _allowed_hosts(config)
        self._origins = frozenset(origin.rstrip("/").lower().encode() for origin in config.allow_origin)
        self._known_hosts: set[bytes] = set()  # exact values found good, so that the usual one costs a look-up

    def close(self) -> None:
        """The server drains: what runs may end, nothing new begins."""
        self.closed = True

    def check(self, request: Request) -> None:
        """Raises for a request that may not come in; says whose it is."""
        host = request.header_once(b"host")
        if host not in self._known_hosts:
            self._check_host(host)
        if b"origin" in request.headers:
            self._check_origin(request)
        if self._keys and request.path not in PUBLIC and not self._is_preflight(request):
            self._check_key(request.header_once(b"authorization"), request.header_once(b"x-api-key"))
        request.tenant = TENANT

    def check_socket(self, request: Request) -> None:
        """A WebSocket that passed `check`. Browsers let any page open one, and read what comes back: so the page has to
        be ours or allowed, wherever the server listens."""
        if b"origin" not in request.headers or self._hosts is not None:
            return
        origin = (request.header_once(b"origin") or b"").lower()
        scheme, _, authority = origin.partition(b"://")
        own = scheme in (b"http", b"https") and _host_name(authority) == _host_name(request.headers.get(b"host", b""))
        if not own and origin not in self._origins:
            raise Forbidden("This origin may not connect. Start the server with --allow-origin to change that.")

    def key_of(self, request: Request) -> bytes:
        """What tells the key of a request that passed `check` from others; nothing, where there are none."""
        if not self._keys:
            return b""
        bearer = (request.header_once(b"authorization") or b"").partition(b" ")[2]
        return sha256(bearer if self._is_known(bearer) else request.header_once(b"x-api-key") or b"").digest()

    def check_new_work(self) -> None:
        if self.closed:
            raise Unavailable("The server is shutting down and takes no new work.", retry_after=2.0)

    def preflight(self, request: Request) -> list[Header] | None:
        """What a browser asks before it lets a page of an allowed origin call us; None for all other requests."""
        if not self._is_preflight(request):
            return None
        return [
            (b"access-control-allow-methods", b"GET, POST, DELETE"),
            (b"access-control-allow-headers", request.headers.get(b"access-control-request-headers", b"")),
            (b"access-control-max-age", b"600"),
        ]

    def _is_preflight(self, request: Request) -> bool:
        return (
            request.method == "OPTIONS"
            and b"access-control-request-method" in request.headers
            and request.headers.get(b"origin", b"").lower() in self._origins
        )

    def _check_host(self, value: bytes | None) -> None:
        name = _host_name(value) if value else None
        if name is None or value is None:
            raise BadRequest("The request needs one well-formed Host header.")
        if self._hosts is not None and name not in self._hosts:
            raise Forbidden(
                f"This server listens on loopback and does not answer to the host {name.decode()}. "
                "Start it with --allow-host to change that."
            )
        if len(self._known_hosts) < _REMEMBERED:
            self._known_hosts.add(value)

    def _check_origin(self, request: Request) -> None:
        """A browser says here which page a request comes from. Pages of others have no business on loopback."""
        origin = (request.header_once(b"origin") or b"").lower()
        if origin in self._origins:
            request.reply_headers += [(b"access-control-allow-origin", origin), (b"vary", b"origin")]
        elif self._hosts is not None:
            scheme, _, authority = origin.partition(b"://")
            if scheme not in (b"http", b"https") or _host_name(authority) not in self._hosts:
                raise Forbidden("This origin may not call the server. Start it with --allow-origin to change that.")

    def _check_key(self, authorization: bytes | None, key: bytes | None) -> None:
        """A missing, doubled, malformed or wrong key all look the same from outside. Of two, one has to be right."""
        scheme, _, bearer = (authorization or b"").partition(b" ")
        known = self._is_known(bearer if scheme.lower() == b"bearer" else b"") | self._is_known(key or b"")
        if not known:
            raise NotAuthenticated(
                "The API key is missing or wrong. Send it as Authorization: Bearer KEY or as x-api-key: KEY."
            )

    def _is_known(self, key: bytes) -> bool:
        known = False
        if 0 < len(key) <= _LONGEST_KEY:
            digest = sha256(key).digest()
            for one in self._keys:  # all of them, whichever fits
                known |= hmac.compare_digest(digest, one)
        return known


def _allowed_hosts(config: Config) -> frozenset[bytes] | None:
    """None: any. Beyond loopback a name says nothing, and a key is needed there. A name that happens to mean
    loopback needs none, so it is the key that decides."""
    if (config.api_key and not config.on_loopback) or "*" in config.allow_host:
        return None
    return frozenset(_names((*LOOPBACK, config.host, *config.allow_host)))


def _names(hosts: Iterable[str]) -> Iterable[bytes]:
    for host in hosts:
        value = f"[{host}]" if host.count(":") > 1 and not host.startswith("[") else host
        yield _host_name(value.encode()) or value.encode()


def _host_name(value: bytes) -> bytes | None:
    """The name in `name`, `name:port`, `[address]` or `[address]:port`; None for anything else."""
    value = value.lower()
    if value.startswith(b"["):
        address, bracket, port = value[1:].partition(b"]")
        good = bracket and address and not address.translate(None, _ADDRESS_BYTES)
        name = b"[%b]" % address
    else:
        name, colon, port = value.partition(b":")
        good = name and not name.translate(None, _NAME_BYTES)
        port = colon + port
    return name if good and len(value) <= _LONGEST_HOST and _is_port(port) else None


def _is_port(value: bytes) -> bool:
    """Nothing, or a colon and a number, which may be missing."""
    number = value.removeprefix(b":")
    if number == value or not number:
        return not number
    return number.isdigit() and len(number) <= 5 and int(number) <= 65535
