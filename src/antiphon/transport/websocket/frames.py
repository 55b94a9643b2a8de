"""Encodes events as WebSocket text frames (RFC 6455 §5.6): one JSON object each, tagged with the name of the lane, if
any.

Events that are ready together go in one write, as in a stream of server-sent events.
"""

import msgspec
from msgspec import Struct

_encode_lines = msgspec.json.Encoder().encode_lines

_FIN_TEXT = 0x81
_EXTENDED_LENGTH = 126
_LONG_LENGTH = 1 << 16
_MAX_CACHED_SIZE = 1 << 10  # bytes; most events are shorter


class _FrameHeaders(dict[int, bytes]):
    """Headers of unmasked, unfragmented text frames, by payload length; those of short frames are cached (RFC 6455
    §5.2).
    """

    def __missing__(self, size: int) -> bytes:
        header = _make_header(size)
        if size < _MAX_CACHED_SIZE:
            self[size] = header
        return header


_headers = _FrameHeaders()


def encode_texts(events: list[Struct], lane: str | None) -> list[bytes]:
    """Encode each event as JSON. All of them are encoded in one call, since JSON lines contain no line breaks."""
    lines = _encode_lines(events)[:-1].split(b"\n")
    if lane is None:
        return lines
    tag = b',"stream_id":"%b"}' % lane.encode()
    return [line[:-1] + tag for line in lines]


def encode_frames(events: list[Struct], lane: str | None) -> bytes:
    if lane is None and len(events) == 1:
        text = _encode_lines(events)[:-1]
        return _headers[len(text)] + text
    pieces: list[bytes] = []
    for text in encode_texts(events, lane):
        pieces.append(_headers[len(text)])
        pieces.append(text)
    return b"".join(pieces)


def _make_header(size: int) -> bytes:
    if size < _EXTENDED_LENGTH:
        return bytes((_FIN_TEXT, size))
    if size < _LONG_LENGTH:
        return b"\x81\x7e" + size.to_bytes(2, "big")
    return b"\x81\x7f" + size.to_bytes(8, "big")
