"""Messages between the server, the sandbox process, its zygote and the kernels: a JSON header and bytes.

A frame is the length of the header, the length of the bytes (four bytes each, big-endian), the header, the bytes.
"""

import json
import socket
import struct
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import asyncio  # takes long to import in gVisor

Header = dict[str, Any]
Frame = tuple[Header, bytes]

_LENGTHS: Final = struct.Struct(">II")
MAX_HEADER = 4 * 1024 * 1024
MAX_PAYLOAD = 8 * 1024 * 1024


class InvalidFrame(Exception):
    """The other side does not follow the protocol, or sends more than it may."""


def pack(header: Header, payload: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return _LENGTHS.pack(len(text), len(payload)) + text + payload


def _unpack_lengths(data: bytes, max_header: int = MAX_HEADER, max_payload: int = MAX_PAYLOAD) -> tuple[int, int]:
    lengths = _LENGTHS.unpack(data)
    if lengths[0] > max_header or lengths[1] > max_payload:
        raise InvalidFrame("a frame is too large")
    return lengths


def _decode(text: bytes) -> Header:
    try:
        header = json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidFrame("a header is not JSON")
    if not isinstance(header, dict):
        raise InvalidFrame("a header is not an object")
    return header


def receive(channel: socket.socket) -> Frame | None:
    """Wait for a frame; None at the end of the connection."""
    if (prefix := _receive_exactly(channel, _LENGTHS.size)) is None:
        return None
    size, extra = _unpack_lengths(prefix)
    if (data := _receive_exactly(channel, size + extra)) is None:
        return None
    return _decode(data[:size]), data[size:]


def _receive_exactly(channel: socket.socket, count: int) -> bytes | None:
    pieces = []
    while count and (piece := channel.recv(min(count, 1 << 20))):
        pieces.append(piece)
        count -= len(piece)
    return b"".join(pieces) if not count else None


async def read(
    reader: "asyncio.StreamReader", max_header: int = MAX_HEADER, max_payload: int = MAX_PAYLOAD
) -> Frame | None:
    """Wait for a frame; None at the end of the connection."""
    try:
        size, extra = _unpack_lengths(await reader.readexactly(_LENGTHS.size), max_header, max_payload)
        header = _decode(await reader.readexactly(size))
        return header, await reader.readexactly(extra)
    except (EOFError, ConnectionError):  # EOFError: asyncio.IncompleteReadError
        return None
