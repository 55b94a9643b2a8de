"""Parses engine URLs such as `vllm+https://host:8000/team`.

Schemes: NAME:// is unencrypted HTTP, NAME+https:// uses TLS, NAME+unix:///path/to/socket a unix socket. A key is never
part of the URL, because URLs end up in logs.
"""

import ssl
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from msgspec import Struct

from antiphon.engines.connection import EngineAddress, TcpAddress, UnixAddress, create_tls_context
from antiphon.errors import StartupError

HTTPS_PORT = 443


class EngineUrl(Struct, frozen=True, kw_only=True):
    host: str  # value of the Host header
    display: str  # host or socket path for logs
    address: EngineAddress
    path: str  # path prefix; begins with a slash, or is empty


def parse_engine_url(url: str, port: int, ca_file: Path | None = None) -> EngineUrl:
    """Parse a URL. `port` is the engine's default port; `ca_file` replaces the system's certificate authorities."""
    parts = _split(url)
    _, _, transport = parts.scheme.partition("+")
    if transport == "unix":
        if parts.netloc or not parts.path:
            raise StartupError("An engine on a unix socket is named with three slashes: NAME+unix:///path/to/socket.")
        return EngineUrl(host="localhost", display=parts.path, address=UnixAddress(parts.path), path="")
    if transport not in ("", "https", "http"):
        raise StartupError(
            f"The scheme {parts.scheme!r} of an engine is unknown; expected NAME, NAME+https or NAME+unix."
        )
    return _parse_tcp(parts, transport == "https", port, ca_file)


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        if parts.port == 0:
            raise ValueError("Port 0 cannot be connected to")
    except ValueError as error:
        raise StartupError(f"The URL of the engine cannot be read: {error}.")
    if parts.username is not None or parts.password is not None:
        raise StartupError("The URL of an engine must not contain a key: use --engine-key, its variable or `key`.")
    if parts.query or parts.fragment or any(not "!" <= character <= "~" for character in url):
        raise StartupError("The URL of the engine may only have a host, a port and a path.")
    return parts


def _parse_tcp(parts: SplitResult, secure: bool, port: int, ca_file: Path | None) -> EngineUrl:
    if not parts.hostname:
        raise StartupError("The URL of the engine names no host; expected NAME://HOST:PORT.")
    number = parts.port or (HTTPS_PORT if secure else port)
    host = f"[{parts.hostname}]:{number}" if ":" in parts.hostname else f"{parts.hostname}:{number}"
    return EngineUrl(
        host=host,
        display=host,
        address=TcpAddress(parts.hostname, number, _load_tls_context(ca_file) if secure else None),
        path=parts.path.rstrip("/"),
    )


def _load_tls_context(ca_file: Path | None) -> ssl.SSLContext:
    try:
        return create_tls_context(None if ca_file is None else str(ca_file))
    except (OSError, ssl.SSLError) as error:
        raise StartupError(
            f"--engine-ca (or `ca` of its table) names {ca_file}, which cannot be used: {error.strerror or error}."
        )
