"""Which server a declaration means, and what it is told of who asks. Nothing is asked of anybody here.

An operator's server is named by its label and may be anywhere, or a program. A client's is named by its URL.
"""

import re
from base64 import b64decode
from collections.abc import Mapping
from hashlib import blake2b
from typing import Final, TypeVar

import msgspec
from msgspec import UNSET, Struct

from antiphon.config.mcp import McpServerSpec
from antiphon.egress import Egress
from antiphon.errors import InvalidValue, MissingParameter, MutuallyExclusive, UnsupportedParameter
from antiphon.protocol.types.tools import Credentials, McpTool
from antiphon.tools.mcp.settings import McpSettings

T = TypeVar("T")

# What the transport itself says, and what speaks about a connection and not to the server.
_OURS: Final = frozenset({
    "host", "content-length", "content-type", "content-encoding", "transfer-encoding", "connection", "keep-alive",
    "upgrade", "te", "trailer", "expect", "accept", "accept-encoding", "mcp-session-id", "mcp-protocol-version",
    "mcp-method", "mcp-name", "last-event-id",
})  # fmt: skip
_OUR_BEGINNINGS: Final = ("proxy-", "mcp-param-", "sec-")
_TOKEN: Final = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz")
_MOST_HEADERS: Final = 64
_MOST_HEADER_BYTES: Final = 16 * 1024
_SECRET_LENGTH: Final = 8  # shorter ones are words that occur anyway
_WORD_LENGTH: Final = 16
_BETWEEN: Final = re.compile(r"[\s;,=]+")
_SCHEMES: Final = ("bearer ", "basic ", "digest ", "token ", "apikey ")


class Server(Struct, frozen=True, kw_only=True):
    """One server, as one tenant with one credential sees it."""

    label: str
    url: str = ""
    command: tuple[str, ...] = ()
    env: Mapping[str, str] = {}
    headers: Mapping[str, str] = {}
    named: bool = False  # by the operator
    param: str = "tools"

    def __repr__(self) -> str:
        return f"Server(label={self.label!r})"

    @property
    def name(self) -> str:
        """In sentences."""
        return f"The MCP server {self.label!r}"

    @property
    def key(self) -> tuple[str, bytes]:
        """Two that have the same are one: the same place, and the same credential."""
        place = f"label {self.label}" if self.named else f"url {self.url}"
        digest = blake2b(digest_size=16)
        for name, value in sorted(self.headers.items()):
            digest.update(f"{len(name)}:{name}{len(value)}:{value}".encode())
        return place, digest.digest()

    @property
    def secrets(self) -> list[str]:
        """What we tell it and nobody else: values, and the long words in them (`session=…; …`). Longest first."""
        found: set[str] = set()
        for value in self.headers.values():
            secret = value.partition(" ")[2] if value.lower().startswith(_SCHEMES) else value
            found.update(word for word in _BETWEEN.split(secret) if len(word) >= _WORD_LENGTH)
            password = _password(secret) if value.lower().startswith("basic ") else ""
            found.update(whole for whole in (secret, password) if len(whole) >= _SECRET_LENGTH)
        return sorted(found, key=len, reverse=True)

    def scrub(self, text: str) -> str:
        """Without the secrets: servers repeat what they were sent."""
        for secret in self.secrets:
            text = text.replace(secret, "…")
        return text

    def scrubbed(self, value: T) -> T:
        """Likewise, wherever they are in what is to become JSON."""
        if not self.headers:
            return value
        text = msgspec.json.encode(value).decode()
        for secret in self.secrets:
            text = text.replace(msgspec.json.encode(secret).decode()[1:-1], "…")
        found: T = msgspec.json.decode(text)
        return found


def _password(encoded: str) -> str:
    """Of `user:password` in Base64."""
    try:
        return b64decode(encoded, validate=True).decode().partition(":")[2]
    except ValueError:
        return ""


def server_of(declared: McpTool, settings: McpSettings, param: str = "tools") -> Server:
    """Of a declaration that was checked."""
    own = _headers(declared.credentials)
    if declared.server_url is not UNSET:
        return Server(label=declared.server_label, url=declared.server_url, headers=own, param=param)
    spec = settings.servers[declared.server_label]
    command = (spec.command, *spec.args) if spec.command is not None else ()
    theirs = _headers(Credentials(headers=spec.headers, authorization=spec.authorization))
    # The operator's word goes first, in whatever letters it is spelled.
    kept = {name: value for name, value in own.items() if name not in theirs}
    return Server(
        label=spec.label, url=spec.url or "", command=command, env=spec.env, headers={**kept, **theirs}, named=True
    )


def check(declared: McpTool, param: str, settings: McpSettings, egress: Egress) -> None:
    for name in ("connector_id", "tunnel_id"):
        if getattr(declared, name) is not UNSET:
            raise UnsupportedParameter(
                f"This server has no connectors or tunnels: name the MCP server by server_url, or by the label of one"
                f" of its own ({_known(settings)}).",
                param=f"{param}.{name}",
            )
    _check_headers(declared.credentials, param)
    if declared.server_url is not UNSET:
        egress.check(declared.server_url, f"{param}.server_url", at_home=settings.loopback)
        return
    spec = settings.servers.get(declared.server_label)
    if spec is None:
        raise MissingParameter(
            f"There is no server_url, and no MCP server with the label {declared.server_label[:64]!r} is set up here"
            f" ({_known(settings)}).",
            param=f"{param}.server_url",
        )
    _check_program(spec, declared.credentials, param)


def _known(settings: McpSettings) -> str:
    return ", ".join(sorted(settings.servers)[:20]) or "there are none"


def _check_program(spec: McpServerSpec, given: Credentials, param: str) -> None:
    if spec.command is not None and (given.headers or given.authorization):
        field = "headers" if given.headers else "authorization"
        raise InvalidValue(
            f"The MCP server {spec.label!r} is a program and takes no {field}.", param=f"{param}.{field}"
        )


def _check_headers(given: Credentials, param: str) -> None:
    place = f"{param}.headers"
    if len(given.headers) > _MOST_HEADERS:
        raise InvalidValue(f"There are more than {_MOST_HEADERS} headers.", param=place)
    if sum(len(name) + len(value) for name, value in given.headers.items()) > _MOST_HEADER_BYTES:
        raise InvalidValue(f"The headers have more than {_MOST_HEADER_BYTES:,} bytes.", param=place)
    for name, value in given.headers.items():
        _check_header(name, value, place)
    if len({name.lower() for name in given.headers}) < len(given.headers):
        raise InvalidValue("A header is given twice.", param=place)
    if given.authorization is None:
        return
    if any(name.lower() == "authorization" for name in given.headers):
        raise MutuallyExclusive("Authorization is given twice: in headers, and by itself.", param=place)
    if not _fits(given.authorization) or len(given.authorization) > _MOST_HEADER_BYTES:
        raise InvalidValue("The token does not fit into a header.", param=f"{param}.authorization")


def _check_header(name: str, value: str, place: str) -> None:
    """No sentence repeats a value: it is a secret."""
    lower = name.lower()
    if not lower or not _TOKEN.issuperset(lower):
        raise InvalidValue(f"{name[:64]!r} is no name of a header.", param=place)
    if lower in _OURS or lower.startswith(_OUR_BEGINNINGS):
        raise InvalidValue(f"The header {name[:64]} cannot be set: the connection needs it.", param=place)
    if not _fits(value):
        raise InvalidValue(f"The value of {name[:64]} does not fit into a header.", param=place)


def _fits(value: str) -> bool:
    return value.isascii() and value.isprintable() and value == value.strip()


def _headers(given: Credentials) -> dict[str, str]:
    headers = {name.lower(): value for name, value in given.headers.items()}
    if given.authorization:
        schemed = given.authorization.lower().startswith(_SCHEMES)
        headers["authorization"] = given.authorization if schemed else f"Bearer {given.authorization}"
    return headers
