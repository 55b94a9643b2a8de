"""Events → frames: one JSON object in each text frame, tagged with the lane if it has a name.

Those that are ready together go in one write, as in a stream of server-sent events.
"""

import msgspec
from msgspec import Struct

_lines = msgspec.json.Encoder().encode_lines

_FIN_TEXT = 0x81
_SHORT = 126
_MIDDLE = 1 << 16
_KEPT = 1 << 10  # bytes: most events are shorter


class _Heads(dict[int, bytes]):
    """The bytes before a whole message of so many, which a server does not mask. Those of short ones are made once."""

    def __missing__(self, size: int) -> bytes:
        head = _head(size)
        if size < _KEPT:
            self[size] = head
        return head


_heads = _Heads()


def texts(told: list[Struct], lane: str | None) -> list[bytes]:
    """The JSON of each. JSON has no line ends of its own, so all of them are encoded in one go."""
    lines = _lines(told)[:-1].split(b"\n")
    if lane is None:
        return lines
    tag = b',"stream_id":"%b"}' % lane.encode()
    return [line[:-1] + tag for line in lines]


def frames(told: list[Struct], lane: str | None) -> bytes:
    if lane is None and len(told) == 1:
        text = _lines(told)[:-1]
        return _heads[len(text)] + text
    pieces: list[bytes] = []
    for text in texts(told, lane):
        pieces.append(_heads[len(text)])
        pieces.append(text)
    return b"".join(pieces)


def _head(size: int) -> bytes:
    if size < _SHORT:
        return bytes((_FIN_TEXT, size))
    if size < _MIDDLE:
        return b"\x81\x7e" + size.to_bytes(2, "big")
    return b"\x81\x7f" + size.to_bytes(8, "big")
