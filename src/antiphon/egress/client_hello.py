"""The server name in the first message of a TLS client (RFC 8446, section 4.1.2; RFC 6066, section 3)."""

import struct
from collections.abc import Iterator
from typing import Final

HEADER: Final = 5  # bytes before the content of a record
MAX_RECORD: Final = HEADER + (1 << 14)
_HANDSHAKE, _CLIENT_HELLO, _HOST_NAME = 22, 1, 0
_RANDOM: Final = 2 + 32  # the version and the random bytes
_SERVER_NAME, _ENCRYPTED_HELLO = 0, 0xFE0D


def measure_record(data: bytes) -> int:
    """Return the length of the record that begins with these bytes, at least HEADER. Raises ValueError."""
    kind, _, length = struct.unpack_from(">BHH", data)
    if kind != _HANDSHAKE or length > MAX_RECORD - HEADER:
        raise ValueError("this is not the beginning of TLS")
    return HEADER + int(length)


def read_server_name(record: bytes) -> str:
    """Return the one server name of a message in one record, which hides no other one in it. Raises ValueError."""
    try:
        extensions = [*_split_extensions(record[HEADER:])]
        names = [data for kind, data in extensions if kind == _SERVER_NAME]
        if len(names) != 1 or any(kind == _ENCRYPTED_HELLO for kind, _ in extensions):
            raise ValueError("the message has not exactly one server name")
        length, kind, size = struct.unpack_from(">HBH", names[0])
    except (struct.error, IndexError):
        raise ValueError("the message is not a whole one of a TLS client") from None
    if kind != _HOST_NAME or length != size + 3 or len(names[0]) != length + 2:
        raise ValueError("the message has not exactly one server name")
    return names[0][5:].decode("ascii")


def _split_extensions(message: bytes) -> Iterator[tuple[int, bytes]]:
    if message[0] != _CLIENT_HELLO or int.from_bytes(message[1:4], "big") != len(message) - 4:
        raise ValueError("the message is not a whole one of a TLS client")
    position = 4 + _RANDOM
    for size in (1, 2, 1):  # the session, the cipher suites, the compression methods
        position += size + int.from_bytes(message[position : position + size], "big")
    position += 2
    while position < len(message):
        kind, length = struct.unpack_from(">HH", message, position)
        yield kind, message[position + 4 : position + 4 + length]
        position += 4 + length
