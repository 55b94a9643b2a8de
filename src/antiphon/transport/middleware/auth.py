"""Access checks: Host and Origin on loopback, API keys everywhere, and no new work during shutdown.

Every path that is not public by exact match needs a key, also paths that do not exist; of the page, the files and the
links into it (`/ui/…`) are public. No decision is based on a URL
that is assembled from headers. Known keys resolve by digest in memory; unknown keys are looked up in the store.
"""

from collections.abc import Awaitable, Iterable

from antiphon.config import Config
from antiphon.config.key_settings import load_configured_keys
from antiphon.errors import BadRequest, Forbidden, NotAuthenticated, Unavailable
from antiphon.service.access.api_keys import DEFAULT_TENANT, INFERENCE, KEY_PREFIX, ApiKeys, Principal
from antiphon.service.access.load_monitor import LoadMonitor
from antiphon.transport.http.channel import WEBSOCKET, Header
from antiphon.transport.http.request import Request
from antiphon.transport.http.websocket_upgrade import read_protocol_key

PUBLIC = frozenset({b"/health", b"/ready", b"/version"})
PAGE = frozenset({b"/", b"/ui"})  # public while the page is served, with everything below /ui/

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")

ANONYMOUS = Principal(tenant=DEFAULT_TENANT)  # used while no keys are configured

_NAME_BYTES = b"abcdefghijklmnopqrstuvwxyz0123456789.-_"
_ADDRESS_BYTES = b"abcdef0123456789:."
_MAX_HOST_BYTES = 261
_MAX_ACCEPTED_HOSTS = 64


class Authenticator:
    def __init__(self, config: Config, keys: ApiKeys | None = None) -> None:
        self.closed = False
        self.load_monitor: LoadMonitor | None = None  # rejects work under overload; None: no load shedding
        self._keys = keys or ApiKeys(load_configured_keys(config))
        self._hosts = frozenset(_normalise_hosts((*LOOPBACK, config.server.host, *config.server.allow_host)))
        self._any_host = "*" in config.server.allow_host
        self._on_loopback = config.server.on_loopback
        self._serves_page = config.server.serves_page
        self._origins = frozenset(origin.rstrip("/").lower().encode() for origin in config.server.allow_origin)
        # exact Host values that were accepted, so that the usual one costs a look-up
        self._accepted_hosts: set[bytes] = set()

    def close(self) -> None:
        """Reject new work while the server drains; running requests may finish."""
        self.closed = True

    def require_keys(self, host: str) -> None:
        """Raise StartupError if no keys are configured: other machines can reach the server at `host`."""
        self._keys.require_for(host)

    def check(self, request: Request) -> Awaitable[None] | None:
        """Set the principal, or raise. Returns an awaitable if the key has to be looked up in the store."""
        headers = request.headers
        host = request.get_single_header(b"host") if request.repeated else headers.get(b"host")
        if host not in self._accepted_hosts:
            self._check_host(host)
        if b"origin" in headers:
            self._check_origin(request)
        elif b"sec-fetch-site" in headers:
            self._check_fetch_site(request)
        if self._is_public(request.path) or (request.method == "OPTIONS" and self._is_preflight(request)):
            return None
        principal: Principal | None = ANONYMOUS
        # A value that looks like a stored key is looked up even while keys are optional: it may be the first one.
        if (
            self._keys.required
            or (b"authorization" in headers and KEY_PREFIX in headers[b"authorization"])
            or (b"x-api-key" in headers and KEY_PREFIX in headers[b"x-api-key"])
            or (request.method == WEBSOCKET and KEY_PREFIX in read_protocol_key(request))
        ):
            principal = self._find_principal(request)
        if principal is None:
            return self._authenticate(request)
        request.principal, request.tenant = principal, principal.tenant
        return None

    async def recheck(self, request: Request) -> None:
        """Check the key again for a later message of the same client. It must still belong to the same tenant."""
        previous = request.principal
        if previous is ANONYMOUS and not self._keys.required:
            return
        current = self._find_principal(request) or await self._load_principal(request)
        if current.tenant != previous.tenant or INFERENCE not in current.scopes:
            raise _authentication_error()

    def check_websocket_origin(self, request: Request) -> None:
        """Check the Origin of a WebSocket that passed `check` (RFC 6455 §10.2).

        Browsers let any page open a WebSocket and read from it. So the page must be ours or allowed, whatever address
        the server listens on.
        """
        if b"origin" not in request.headers or self._is_host_restricted():
            return
        origin = (request.get_single_header(b"origin") or b"").lower()
        scheme, _, authority = origin.partition(b"://")
        is_own = scheme in (b"http", b"https") and _parse_host(authority) == _parse_host(
            request.headers.get(b"host", b"")
        )
        if not is_own and origin not in self._origins:
            raise Forbidden("This origin may not connect. Start the server with --allow-origin to change that.")

    def check_new_work(self) -> None:
        """Raise Unavailable during shutdown and under overload."""
        if self.closed:
            raise Unavailable("The server is shutting down and takes no new work.", retry_after=2.0)
        if self.load_monitor is not None and self.load_monitor.is_full:
            raise self.load_monitor.make_refusal()

    def preflight_headers(self, request: Request) -> list[Header] | None:
        """Return the headers for a CORS preflight of an allowed origin; None for all other requests."""
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
        name = _parse_host(value) if value else None
        if name is None or value is None:
            raise BadRequest("The request needs one well-formed Host header.")
        if self._is_host_restricted() and name not in self._hosts:
            raise Forbidden(
                f"This server listens on loopback and does not answer to the host {name.decode()}. "
                "Start it with --allow-host to change that."
            )
        if len(self._accepted_hosts) < _MAX_ACCEPTED_HOSTS:
            self._accepted_hosts.add(value)

    def _check_origin(self, request: Request) -> None:
        """Check the page that a browser names as the source of a request. On loopback, foreign pages are rejected."""
        origin = (request.get_single_header(b"origin") or b"").lower()
        if origin in self._origins:
            request.reply_headers += [(b"access-control-allow-origin", origin), (b"vary", b"origin")]
        elif self._is_host_restricted():
            scheme, _, authority = origin.partition(b"://")
            if scheme not in (b"http", b"https") or _parse_host(authority) not in self._hosts:
                raise Forbidden("This origin may not call the server. Start it with --allow-origin to change that.")

    def _check_fetch_site(self, request: Request) -> None:
        """Check a browser's request without an Origin: on loopback, foreign pages may link here and load nothing."""
        is_link = request.method == "GET" and request.headers.get(b"sec-fetch-mode") == b"navigate"
        if request.headers[b"sec-fetch-site"] == b"cross-site" and not is_link and self._is_host_restricted():
            raise Forbidden("Pages of other sites may not load anything from this server.")

    def _is_public(self, path: bytes) -> bool:
        return path in PUBLIC or (self._serves_page and (path in PAGE or path.startswith(b"/ui/")))

    def _is_host_restricted(self) -> bool:
        """Return whether hosts and origins are restricted.

        Off loopback a host name proves nothing, and a key is required there. A name may resolve to loopback without
        being recognised, in which case no key is required: so the restriction depends on the key, too.
        """
        return not self._any_host and (self._on_loopback or not self._keys.required)

    def _find_principal(self, request: Request) -> Principal | None:
        """Return the principal, or None if a key has to be looked up in the store.

        Missing, repeated, malformed and wrong keys are indistinguishable for a client. Of two keys one must be valid;
        if both are, they must belong to one tenant.
        """
        principals: list[Principal] = []
        for key in _read_keys(request):
            if (principal := self._keys.find(key)) is not None:
                principals.append(principal)
            elif self._keys.can_look_up(key):
                return None
        return self._choose_principal(principals)

    async def _authenticate(self, request: Request) -> None:
        request.principal = principal = await self._load_principal(request)
        request.tenant = principal.tenant

    async def _load_principal(self, request: Request) -> Principal:
        principals: list[Principal] = []
        for key in _read_keys(request):
            principal = self._keys.find(key)
            if principal is None and self._keys.can_look_up(key):
                principal = await self._keys.look_up(key)
            if principal is not None:
                principals.append(principal)
        return self._choose_principal(principals)

    def _choose_principal(self, principals: list[Principal]) -> Principal:
        if principals and principals[0].tenant == principals[-1].tenant:
            return principals[0]
        if principals or self._keys.required:
            raise _authentication_error()
        return ANONYMOUS


def _read_keys(request: Request) -> list[bytes]:
    scheme, _, bearer = (request.get_single_header(b"authorization") or b"").partition(b" ")
    key = request.get_single_header(b"x-api-key")
    keys = [bearer] if bearer and scheme.lower() == b"bearer" else []
    protocol_key = read_protocol_key(request) if request.method == WEBSOCKET else b""
    return [one for one in (*keys, key, protocol_key) if one]


def _authentication_error() -> NotAuthenticated:
    return NotAuthenticated(
        "The API key is missing or wrong. Send it as Authorization: Bearer KEY or as x-api-key: KEY."
    )


def _normalise_hosts(hosts: Iterable[str]) -> Iterable[bytes]:
    for host in hosts:
        value = f"[{host}]" if host.count(":") > 1 and not host.startswith("[") else host
        yield _parse_host(value.encode()) or value.encode()


def _parse_host(value: bytes) -> bytes | None:
    """Return the name in `name`, `name:port`, `[address]` or `[address]:port` (RFC 9110 §7.2); else None."""
    value = value.lower()
    if value.startswith(b"["):
        address, bracket, port = value[1:].partition(b"]")
        is_valid = bracket and address and not address.translate(None, _ADDRESS_BYTES)
        name = b"[%b]" % address
    else:
        name, colon, port = value.partition(b":")
        is_valid = name and not name.translate(None, _NAME_BYTES)
        port = colon + port
    return name if is_valid and len(value) <= _MAX_HOST_BYTES and _is_port(port) else None


def _is_port(value: bytes) -> bool:
    """Return whether `value` is empty, or a colon and an optional number."""
    number = value.removeprefix(b":")
    if number == value or not number:
        return not number
    return number.isdigit() and len(number) <= 5 and int(number) <= 65535
