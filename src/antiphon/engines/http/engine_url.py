"""`vllm+https://host:8000/team` → where an engine is and what stands before its paths.

Schemes: NAME:// speaks HTTP in the clear, NAME+https:// with TLS, NAME+unix:///path/to/socket over a unix socket.
A key is never a part of it: URLs end up in logs.
"""

import ssl
from ipaddress import IPv6Address
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from msgspec import Struct

from antiphon.engines.connection import Address, TcpAddress, UnixAddress, trusted
from antiphon.errors import StartupError

HTTPS_PORT = 443


class Place(Struct, frozen=True, kw_only=True):
    host: str  # as it stands in the Host header
    shown: str  # as it stands in logs: the host, or the socket
    address: Address
    path: str  # begins with a slash, or is empty


def place(url: str, port: int, authorities: Path | None = None) -> Place:
    """`port` is the engine's usual one; `authorities` a file of certificates to trust instead of the system's."""
    parts = _split(url)
    _, _, way = parts.scheme.partition("+")
    if way == "unix":
        if parts.netloc or not parts.path:
            raise StartupError("An engine on a unix socket is named with three slashes: NAME+unix:///path/to/socket.")
        return Place(host="localhost", shown=parts.path, address=UnixAddress(parts.path), path="")
    if way not in ("", "https", "http"):
        raise StartupError(
            f"The scheme {parts.scheme!r} of an engine is unknown; expected NAME, NAME+https or NAME+unix."
        )
    return _tcp(parts, way == "https", port, authorities)


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        if parts.port == 0:
            raise ValueError("Port 0 is no port to connect to")
    except ValueError as error:
        raise StartupError(f"The URL of the engine cannot be read: {error}.")
    if parts.username is not None or parts.password is not None:
        raise StartupError(
            "A key does not belong into the URL of an engine: give it as --engine-key, its variable or `key`."
        )
    if parts.query or parts.fragment or any(not "!" <= character <= "~" for character in url):
        raise StartupError("The URL of the engine has a host, a port and a path, and nothing else.")
    return parts


def _tcp(parts: SplitResult, secure: bool, port: int, authorities: Path | None) -> Place:
    if not parts.hostname:
        raise StartupError("The URL of the engine names no host; expected NAME://HOST:PORT.")
    number = parts.port or (HTTPS_PORT if secure else port)
    host = f"{_bracketed(parts.hostname)}:{number}"
    return Place(
        host=host,
        shown=host,
        address=TcpAddress(parts.hostname, number, _trust(authorities) if secure else None),
        path=parts.path.rstrip("/"),
    )


def _trust(authorities: Path | None) -> ssl.SSLContext:
    try:
        return trusted(None if authorities is None else str(authorities))
    except (OSError, ssl.SSLError) as error:
        raise StartupError(
            f"--engine-ca (or `ca` of its table) names {authorities}, which cannot be used: {error.strerror or error}."
        )


def _bracketed(host: str) -> str:
    try:
        IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    return f"[{host}]"
