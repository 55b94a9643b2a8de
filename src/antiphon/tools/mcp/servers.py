"""The operator's settings for MCP, and the server of a declaration with its headers and credentials, without I/O.

An operator's server is identified by its label; it may have any address, or be a program. A client's server is
identified by its URL.
"""

import re
from base64 import b64decode
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Final, Literal, TypeVar

import msgspec
from msgspec import UNSET, Struct

from antiphon.config import Config
from antiphon.config.tool_settings import McpServerSpec
from antiphon.egress import EgressClient
from antiphon.errors import InvalidValue, MissingParameter, MutuallyExclusive, UnsupportedParameter
from antiphon.limits import Limits
from antiphon.protocol.types.tools import Credentials, McpTool

T = TypeVar("T")

TIMED_OUT: Final = -32001  # code of the MCP SDKs for a request without a response in time
_MIB = 1024 * 1024

# Headers that the transport sets itself, and headers that concern the connection rather than the server.
_RESERVED_HEADERS: Final = frozenset({
    "host", "content-length", "content-type", "content-encoding", "transfer-encoding", "connection", "keep-alive",
    "upgrade", "te", "trailer", "expect", "accept", "accept-encoding", "mcp-session-id", "mcp-protocol-version",
    "mcp-method", "mcp-name", "last-event-id",
})  # fmt: skip
_RESERVED_PREFIXES: Final = ("proxy-", "mcp-param-", "sec-")
_TOKEN_CHARS: Final = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz")
_MAX_HEADERS: Final = 64
_MAX_HEADER_BYTES: Final = 16 * 1024
_MIN_SECRET_LENGTH: Final = 8  # shorter values are likely to occur in other text
_MIN_PART_LENGTH: Final = 16
_SEPARATORS: Final = re.compile(r"[\s;,=]+")
_SCHEMES: Final = ("bearer ", "basic ", "digest ", "token ", "apikey ")


class McpSettings(Struct, frozen=True, kw_only=True):
    """Settings of the MCP client."""

    servers: Mapping[str, McpServerSpec] = {}  # by label
    require_approval: Literal["never", "always"] = "never"
    at_home: bool = False  # a server_url may name a loopback address,
    keyed: Callable[[], bool] = bool  # as long as there are no API keys

    list_seconds: float = 30.0  # to connect, and to list tools
    call_seconds: float = 60.0  # without a response or progress
    longest_seconds: float = 600.0  # of a call, regardless of progress
    check_seconds: float = 30.0  # a session that was idle for longer is pinged before a call
    session_idle_seconds: float = 300.0
    list_ttl_seconds: float = 300.0

    tools: int = 512  # per server
    list_bytes: int = 4 * _MIB
    answer_bytes: int = 8 * _MIB  # everything received for one call
    output_bytes: int = _MIB  # output of a call; longer output is truncated
    sessions: int = 512
    tenant_sessions: int = 64
    calls_at_once: int = 16  # per session
    limits: Limits = Limits()

    @property
    def loopback(self) -> bool:
        """Whether a server_url may name a loopback address. Evaluated each time, since keys may be added later."""
        return self.at_home and not self.keyed()


def make_mcp_settings(config: Config, keyed: Callable[[], bool] = bool) -> McpSettings:
    return McpSettings(
        servers=config.tools.mcp_servers,
        require_approval=config.tools.mcp_require_approval,
        at_home=config.server.allow_loopback_urls,
        keyed=keyed,
        list_seconds=config.tools.tool_list_timeout,
        call_seconds=config.tools.tool_timeout,
        longest_seconds=10 * config.tools.tool_timeout,
        tools=config.limits.mcp_tools,
        output_bytes=config.limits.tool_output_bytes,
        limits=config.limits,
    )


class McpServer(Struct, frozen=True, kw_only=True):
    """One server, as seen by one tenant with one credential."""

    label: str
    url: str = ""
    command: tuple[str, ...] = ()
    env: Mapping[str, str] = {}
    headers: Mapping[str, str] = {}
    is_configured: bool = False  # by the operator
    param: str = "tools"

    def __repr__(self) -> str:
        return f"Server(label={self.label!r})"

    @property
    def name(self) -> str:
        """The name in error messages."""
        return f"The MCP server {self.label!r}"

    @property
    def key(self) -> tuple[str, bytes]:
        """Servers with equal keys are the same: equal address and equal credential."""
        address = f"label {self.label}" if self.is_configured else f"url {self.url}"
        digest = blake2b(digest_size=16)
        for name, value in sorted(self.headers.items()):
            digest.update(f"{len(name)}:{name}{len(value)}:{value}".encode())
        return address, digest.digest()

    @property
    def secrets(self) -> list[str]:
        """Secrets for this server only: header values and their long parts (`session=…; …`), longest first."""
        found: set[str] = set()
        for value in self.headers.values():
            secret = value.partition(" ")[2] if value.lower().startswith(_SCHEMES) else value
            found.update(part for part in _SEPARATORS.split(secret) if len(part) >= _MIN_PART_LENGTH)
            password = _decode_password(secret) if value.lower().startswith("basic ") else ""
            found.update(candidate for candidate in (secret, password) if len(candidate) >= _MIN_SECRET_LENGTH)
        return sorted(found, key=len, reverse=True)

    def scrub(self, text: str) -> str:
        """Remove the secrets from a text, since servers may echo them."""
        for secret in self.secrets:
            text = text.replace(secret, "…")
        return text

    def scrub_json(self, value: T) -> T:
        """Remove the secrets from all strings of a JSON value."""
        if not self.headers:
            return value
        text = msgspec.json.encode(value).decode()
        for secret in self.secrets:
            text = text.replace(msgspec.json.encode(secret).decode()[1:-1], "…")
        found: T = msgspec.json.decode(text)
        return found


def _decode_password(encoded: str) -> str:
    """Decode the password of `user:password` in Base64 (RFC 7617 §2)."""
    try:
        return b64decode(encoded, validate=True).decode().partition(":")[2]
    except ValueError:
        return ""


def resolve_server(declared: McpTool, settings: McpSettings, param: str = "tools") -> McpServer:
    """Resolve a declaration that was already checked."""
    client_headers = _build_headers(declared.credentials)
    if declared.server_url is not UNSET:
        return McpServer(label=declared.server_label, url=declared.server_url, headers=client_headers, param=param)
    spec = settings.servers[declared.server_label]
    command = (spec.command, *spec.args) if spec.command is not None else ()
    operator_headers = _build_headers(Credentials(headers=spec.headers, authorization=spec.authorization))
    # The operator's headers take precedence; header names are case-insensitive.
    added = {name: value for name, value in client_headers.items() if name not in operator_headers}
    return McpServer(
        label=spec.label,
        url=spec.url or "",
        command=command,
        env=spec.env,
        headers={**added, **operator_headers},
        is_configured=True,
    )


def check_declaration(declared: McpTool, param: str, settings: McpSettings, egress: EgressClient) -> None:
    """Check a declaration. Raises a BadRequest that names the field."""
    for name in ("connector_id", "tunnel_id"):
        if getattr(declared, name) is not UNSET:
            raise UnsupportedParameter(
                f"This server has no connectors or tunnels: name the MCP server by server_url, or by the label of one"
                f" of its own ({_list_labels(settings)}).",
                param=f"{param}.{name}",
            )
    check_headers(declared.credentials, param)
    if declared.server_url is not UNSET:
        egress.check(declared.server_url, f"{param}.server_url", allow_loopback=settings.loopback)
        return
    if (spec := settings.servers.get(declared.server_label)) is None:
        raise MissingParameter(
            f"There is no server_url, and no MCP server with the label {declared.server_label[:64]!r} is set up here"
            f" ({_list_labels(settings)}).",
            param=f"{param}.server_url",
        )
    check_program(spec, declared.credentials, param)


def _list_labels(settings: McpSettings) -> str:
    return ", ".join(sorted(settings.servers)[:20]) or "there are none"


def check_program(spec: McpServerSpec, credentials: Credentials, param: str) -> None:
    """Reject credentials for a server that is a program. Raises InvalidValue with the field."""
    if spec.command is not None and (credentials.headers or credentials.authorization):
        field = "headers" if credentials.headers else "authorization"
        raise InvalidValue(
            f"The MCP server {spec.label!r} is a program and takes no {field}.", param=f"{param}.{field}"
        )


def check_headers(credentials: Credentials, param: str) -> None:
    """Check the credentials of a client, which are at `param`. Raises a BadRequest that names the field."""
    field = f"{param}.headers"
    if len(credentials.headers) > _MAX_HEADERS:
        raise InvalidValue(f"There are more than {_MAX_HEADERS} headers.", param=field)
    if sum(len(name) + len(value) for name, value in credentials.headers.items()) > _MAX_HEADER_BYTES:
        raise InvalidValue(f"The headers have more than {_MAX_HEADER_BYTES:,} bytes.", param=field)
    for name, value in credentials.headers.items():
        _check_header(name, value, field)
    if len({name.lower() for name in credentials.headers}) < len(credentials.headers):
        raise InvalidValue("A header is given twice.", param=field)
    if credentials.authorization is None:
        return
    if any(name.lower() == "authorization" for name in credentials.headers):
        raise MutuallyExclusive("Authorization is given twice: in headers, and by itself.", param=field)
    if not _is_header_value(credentials.authorization) or len(credentials.authorization) > _MAX_HEADER_BYTES:
        raise InvalidValue("The token does not fit into a header.", param=f"{param}.authorization")


def _check_header(name: str, value: str, field: str) -> None:
    """Check one header. No message contains a value, since values are secrets."""
    lower = name.lower()
    if not lower or not _TOKEN_CHARS.issuperset(lower):
        raise InvalidValue(f"{name[:64]!r} is not a valid header name.", param=field)
    if lower in _RESERVED_HEADERS or lower.startswith(_RESERVED_PREFIXES):
        raise InvalidValue(f"The header {name[:64]} cannot be set: it is reserved for the connection.", param=field)
    if not _is_header_value(value):
        raise InvalidValue(f"The value of {name[:64]} does not fit into a header.", param=field)


def _is_header_value(value: str) -> bool:
    return value.isascii() and value.isprintable() and value == value.strip()


def _build_headers(credentials: Credentials) -> dict[str, str]:
    headers = {name.lower(): value for name, value in credentials.headers.items()}
    if credentials.authorization:
        has_scheme = credentials.authorization.lower().startswith(_SCHEMES)
        headers["authorization"] = credentials.authorization if has_scheme else f"Bearer {credentials.authorization}"
    return headers
