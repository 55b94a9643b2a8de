"""The HTTP/1.1 request by which a connection to a sandbox worker becomes one of frames (RFC 9110, section 7.8)."""

import asyncio
import socket
from http import HTTPStatus

from msgspec import Struct

PATH = "/sandbox"
PROTOCOL = "antiphon-sandbox/1"
_MAX_HEAD = 16 * 1024
_MAX_REASON = 1000
# Both ends notice within a minute that the other one is gone, or the network between them.
_TCP_OPTIONS = {"TCP_KEEPIDLE": 20, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 50_000}


class InvalidHead(Exception):
    """The received bytes are not the head of an HTTP message."""


class MessageHead(Struct, frozen=True):
    """The head of a request or a response; names of headers are in lower case."""

    first_line: tuple[str, ...]  # its three parts
    headers: dict[str, str]

    @property
    def is_upgrade(self) -> bool:
        tokens = {token.strip().lower() for token in self.headers.get("connection", "").split(",")}
        return "upgrade" in tokens and self.headers.get("upgrade", "").lower() == PROTOCOL


async def read_head(reader: asyncio.StreamReader) -> MessageHead:
    """Read a head, whose size is limited. Raises InvalidHead and ConnectionError."""
    try:
        data = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        raise InvalidHead("the head of the message is not complete")
    first, *lines = data[:-4].decode("latin-1").split("\r\n")
    parts = first.split(" ", 2)
    if len(data) > _MAX_HEAD or len(parts) < 2 or not all(":" in line for line in lines):
        raise InvalidHead("the head of the message is not HTTP, or too long")
    pairs = [line.partition(":") for line in lines]
    return MessageHead((*parts,), {name.lower(): value.strip() for name, _, value in pairs})


def write_request(host: str, key: str) -> bytes:
    return _join(f"GET {PATH} HTTP/1.1", f"Host: {host}", *_UPGRADE, f"Authorization: Bearer {key}")


def write_switch() -> bytes:
    return _join("HTTP/1.1 101 Switching Protocols", *_UPGRADE)


def write_response(status: HTTPStatus, reason: str) -> bytes:
    """Return a response with a text, after which the connection is closed."""
    body = f"{reason}\n".encode()
    length = f"Content-Length: {len(body)}"
    return _join(f"HTTP/1.1 {status} {status.phrase}", "Content-Type: text/plain", length, "Connection: close") + body


async def read_reason(reader: asyncio.StreamReader) -> str:
    """Read the text of a response."""
    return " ".join((await reader.read(_MAX_REASON)).decode("ascii", "replace").split())


def keep_alive(writer: asyncio.StreamWriter) -> None:
    """Let the kernel end a connection whose other end does not answer."""
    endpoint = writer.get_extra_info("socket")
    endpoint.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _TCP_OPTIONS.items():
        if (option := getattr(socket, name, None)) is not None:  # not all systems have all of them
            endpoint.setsockopt(socket.IPPROTO_TCP, option, value)


_UPGRADE = ("Connection: Upgrade", f"Upgrade: {PROTOCOL}")


def _join(*lines: str) -> bytes:
    return "\r\n".join((*lines, "", "")).encode("latin-1")
