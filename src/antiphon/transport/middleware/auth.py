"""Who may come in: Host and Origin on loopback, API keys everywhere, nobody new once the doors are closed.

What is not public by exact path needs a key, also what does not exist. Nothing is decided on a URL that
was put together from headers. Whose a known key is costs a look-up of its digest; others wait for the store.
"""

from collections.abc import Awaitable, Iterable

from antiphon.config import Config
from antiphon.config.key_settings import given_keys
from antiphon.errors import BadRequest, Forbidden, NotAuthenticated, Unavailable
from antiphon.service.access.api_key_format import MARK
from antiphon.service.access.api_keys import Keys
from antiphon.service.access.load_monitor import Pressure
from antiphon.service.access.principal import INFERENCE, Principal
from antiphon.service.encryption.cache_salt import TENANT
from antiphon.transport.http.request import Header, Request

PUBLIC = frozenset({b"/health", b"/ready", b"/version"})

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")

EVERYBODY = Principal(tenant=TENANT)  # where there are no keys

_NAME_BYTES = b"abcdefghijklmnopqrstuvwxyz0123456789.-_"
_ADDRESS_BYTES = b"abcdef0123456789:."
_LONGEST_HOST = 261
_REMEMBERED = 64


class Guard:
    def __init__(self, config: Config, keys: Keys | None = None) -> None:
        self.closed = False
        self.pressure: Pressure | None = None  # that the server is under
        self._keys = keys or Keys(given_keys(config))
        self._hosts = frozenset(_names((*LOOPBACK, config.host, *config.allow_host)))
        self._any_host = "*" in config.allow_host
        self._on_loopback = config.on_loopback
        self._origins = frozenset(origin.rstrip("/").lower().encode() for origin in config.allow_origin)
        self._known_hosts: set[bytes] = set()  # exact values found good, so that the usual one costs a look-up

    def close(self) -> None:
        """The server drains: what runs may end, nothing new begins."""
        self.closed = True

    def expose(self, host: str) -> None:
        """Others than this machine can reach the server there: raises StartupError if they would need no key."""
        self._keys.demand(host)

    def check(self, request: Request) -> Awaitable[None] | None:
        """Raises for a request that may not come in; says whose it is. What is given back has to be awaited: it is a
        key that the store has to be asked for."""
        headers = request.headers
        host = request.header_once(b"host") if request.repeated else headers.get(b"host")
        if host not in self._known_hosts:
            self._check_host(host)
        if b"origin" in headers:
            self._check_origin(request)
        if request.path in PUBLIC or (request.method == "OPTIONS" and self._is_preflight(request)):
            return None
        principal: Principal | None = EVERYBODY
        # What looks like a key of the store is asked for, though nobody needs one yet: it may be the first.
        if (
            self._keys.required
            or (b"authorization" in headers and MARK in headers[b"authorization"])
            or (b"x-api-key" in headers and MARK in headers[b"x-api-key"])
        ):
            principal = self._known(request)
        if principal is None:
            return self._ask(request)
        request.principal, request.tenant = principal, principal.tenant
        return None

    async def check_again(self, request: Request) -> None:
        """The same client says something more, later. Whoever it was then it has to be now."""
        before = request.principal
        if before is EVERYBODY and not self._keys.required:
            return
        now = self._known(request) or await self._asked(request)
        if now.tenant != before.tenant or INFERENCE not in now.scopes:
            raise _refusal()

    def check_socket(self, request: Request) -> None:
        """A WebSocket that passed `check`. Browsers let any page open one, and read what comes back: so the page has to
        be ours or allowed, wherever the server listens."""
        if b"origin" not in request.headers or self._is_choosy():
            return
        origin = (request.header_once(b"origin") or b"").lower()
        scheme, _, authority = origin.partition(b"://")
        own = scheme in (b"http", b"https") and _host_name(authority) == _host_name(request.headers.get(b"host", b""))
        if not own and origin not in self._origins:
            raise Forbidden("This origin may not connect. Start the server with --allow-origin to change that.")

    def check_new_work(self) -> None:
        if self.closed:
            raise Unavailable("The server is shutting down and takes no new work.", retry_after=2.0)
        if self.pressure is not None and self.pressure.full:
            raise self.pressure.refusal()

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
        if self._is_choosy() and name not in self._hosts:
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
        elif self._is_choosy():
            scheme, _, authority = origin.partition(b"://")
            if scheme not in (b"http", b"https") or _host_name(authority) not in self._hosts:
                raise Forbidden("This origin may not call the server. Start it with --allow-origin to change that.")

    def _is_choosy(self) -> bool:
        """About hosts. Beyond loopback a name says nothing, and a key is needed there. A name that happens to mean
        loopback needs none, so it is the key that decides."""
        return not self._any_host and (self._on_loopback or not self._keys.required)

    def _known(self, request: Request) -> Principal | None:
        """None: it has to be asked for. A missing, doubled, malformed or wrong key all look the same from outside. Of
        two, one has to be right, and if both are, they have to be one tenant's."""
        known: list[Principal] = []
        for key in _given(request):
            if (principal := self._keys.find(key)) is not None:
                known.append(principal)
            elif self._keys.may_ask(key):
                return None
        return self._one_of(known)

    async def _ask(self, request: Request) -> None:
        request.principal = principal = await self._asked(request)
        request.tenant = principal.tenant

    async def _asked(self, request: Request) -> Principal:
        known: list[Principal] = []
        for key in _given(request):
            principal = self._keys.find(key)
            if principal is None and self._keys.may_ask(key):
                principal = await self._keys.ask(key)
            if principal is not None:
                known.append(principal)
        return self._one_of(known)

    def _one_of(self, known: list[Principal]) -> Principal:
        if known and known[0].tenant == known[-1].tenant:
            return known[0]
        if known or self._keys.required:
            raise _refusal()
        return EVERYBODY


def _given(request: Request) -> list[bytes]:
    """The keys that were sent."""
    scheme, _, bearer = (request.header_once(b"authorization") or b"").partition(b" ")
    key = request.header_once(b"x-api-key")
    given = [bearer] if bearer and scheme.lower() == b"bearer" else []
    return [*given, key] if key else given


def _refusal() -> NotAuthenticated:
    return NotAuthenticated(
        "The API key is missing or wrong. Send it as Authorization: Bearer KEY or as x-api-key: KEY."
    )


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
