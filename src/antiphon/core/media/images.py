"""What a picture is, by its bytes and not by what it is called: kind, size and frames, read without decoding a pixel.

Only what the headers say is believed, and of several sizes the largest, since that is what a decoder has to make room
for. Time is linear; files that are cut into absurdly many pieces are refused.
"""

import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Final

from msgspec import Struct

from antiphon.core.media.data_urls import Unreadable

_MOST_BLOCKS: Final = 300_000  # a GIF of 20 MB has some 80,000
_MOST_CHUNKS: Final = 50_000  # of the others, which cut into larger pieces
_MOST_SCANS: Final = 256  # of a progressive JPEG; each costs a decoder a walk over the whole picture
_MOST_SIDE_DATA: Final = 8 * 1024 * 1024  # bytes that texts and colour profiles of a PNG may inflate to

_BIG: Final = struct.Struct(">I")
_BIG_TWO: Final = struct.Struct(">II")
_BIG_SIZE: Final = struct.Struct(">HH")
_SMALL_SIZE: Final = struct.Struct("<HH")
_FRAME: Final = struct.Struct("<HHHH")
_SMALL: Final = struct.Struct("<I")


class Picture(Struct, frozen=True):
    media_type: str
    width: int
    height: int
    frames: int = 1

    @property
    def pixels(self) -> int:
        return self.width * self.height * self.frames


def look(body: bytes) -> Picture:
    """Raises Unreadable for what is no picture of a known kind, or a broken one."""
    read = _reader(body)
    if read is None:
        raise Unreadable("It is no PNG, JPEG, GIF or WebP picture.")
    try:
        picture = read(body)
    except (LookupError, ValueError, struct.error):
        picture = None
    if picture is None or not (picture.width and picture.height):
        raise Unreadable("The picture is broken.")
    return picture


def _reader(body: bytes) -> Callable[[bytes], Picture] | None:
    if body.startswith(b"\x89PNG\r\n\x1a\n"):
        return _png
    if body.startswith(b"\xff\xd8\xff"):
        return _jpeg
    if body.startswith((b"GIF87a", b"GIF89a")):
        return _gif
    if body.startswith(b"RIFF") and body[8:12] == b"WEBP":
        return _webp
    return None


class _Broken(ValueError):
    """Found out while it is read."""


# PNG: chunks of length, name, data and checksum. The first one is the header.


def _png(body: bytes) -> Picture:
    if body[12:16] != b"IHDR":
        raise _Broken
    width, height = _BIG_TWO.unpack_from(body, 16)
    promised = frames = 0
    room, data = _MOST_SIDE_DATA, False
    for name, start, length in _png_chunks(body):
        frames += name == b"fcTL"
        data = data or name == b"IDAT"
        if name == b"acTL":
            promised = int.from_bytes(_whole(body, start, 4), "big")
        elif name in (b"iCCP", b"zTXt", b"iTXt"):
            room -= _inflated(body[start : start + length], name, room)
    if not data:
        raise _Broken
    return Picture("image/png", width, height, max(promised, frames, 1))


def _png_chunks(body: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Names, and where their data are; to the end of the picture, or of the file."""
    at, name = 8, b""
    for _ in range(_MOST_CHUNKS):
        if at + 8 > len(body) or name == b"IEND":
            return
        (length,), name = _BIG.unpack_from(body, at), body[at + 4 : at + 8]
        yield name, at + 8, length
        at += length + 12
    raise _Broken


def _inflated(data: bytes, name: bytes, room: int) -> int:
    """Bytes that a decoder would make of a text or a profile: after a keyword and the method, what is compressed.
    With iTXt a flag stands before the method, and two more texts behind it."""
    rest = data.partition(b"\0")[2]
    packed = rest[1:]
    if name == b"iTXt":
        if rest[:1] != b"\x01":
            return 0
        packed = rest[2:].partition(b"\0")[2].partition(b"\0")[2]
    try:
        size = len(zlib.decompressobj().decompress(packed, room + 1))
    except zlib.error:
        return 0  # no decoder gets further
    if size > room:
        raise _Broken
    return size


# JPEG: segments of marker and length, up to the frame's header and then the scan.

_FRAMES: Final = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})
_ALONE: Final = frozenset({0x01, *range(0xD0, 0xD9)})


def _jpeg(body: bytes) -> Picture:
    at = 2
    for _ in range(_MOST_CHUNKS):
        if body[at] != 0xFF:
            raise _Broken
        marker = body[at + 1]
        if marker == 0xFF:  # a fill byte
            at += 1
        elif marker in _ALONE:
            at += 2
        elif marker in _FRAMES:
            height, width = _BIG_SIZE.unpack_from(_whole(body, at + 5, 4))
            if not 0 < body.count(b"\xff\xda") <= _MOST_SCANS:
                raise _Broken
            return Picture("image/jpeg", width, height)
        else:
            at += 2 + int.from_bytes(_whole(body, at + 2, 2), "big")
    raise _Broken


def _whole(body: bytes, start: int, length: int) -> bytes:
    piece = body[start : start + length]
    if len(piece) < length:
        raise _Broken
    return piece


# GIF: a screen, then extensions and frames, each in blocks of at most 255 bytes.


def _gif(body: bytes) -> Picture:
    width, height = _SMALL_SIZE.unpack(_whole(body, 6, 4))
    at = 13 + _colours(body[10])
    frames = pieces = 0
    while at < len(body) and body[at] != 0x3B:
        if body[at] == 0x21:
            at += 2
        elif body[at] == 0x2C:
            left, top, across, down = _FRAME.unpack(_whole(body, at + 1, 8))
            width, height = max(width, left + across), max(height, top + down)
            frames += 1
            at += 11 + _colours(body[at + 9])
        else:
            raise _Broken
        while at < len(body) and body[at] and pieces < _MOST_BLOCKS:
            at += body[at] + 1
            pieces += 1
        at += 1
        pieces += 1
        if pieces > _MOST_BLOCKS:
            raise _Broken
    if not frames:
        raise _Broken
    return Picture("image/gif", width, height, frames)


def _colours(flags: int) -> int:
    """Bytes of a colour table."""
    return 3 << ((flags & 7) + 1) if flags & 0x80 else 0


# WebP: chunks of name, length and data, padded to even lengths.


def _webp(body: bytes) -> Picture:
    """Frames are counted wherever they are: decoders find some that a walk over the chunks does not."""
    frames = body.count(b"ANMF")
    if frames > _MOST_CHUNKS:
        raise _Broken
    width = height = 0
    for name, start, length in _riff_chunks(body, 12, len(body)):
        inner = _riff_chunks(body, start + 16, start + length) if name == b"ANMF" else ()
        for each, at, _ in ((name, start, length), *inner):
            across, down = _webp_size(body, each, at)
            width, height = max(width, across), max(height, down)
    return Picture("image/webp", width, height, max(frames, 1))


def _riff_chunks(body: bytes, at: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    end = min(end, len(body))
    for _ in range(_MOST_CHUNKS):
        if at + 8 > end:
            return
        (length,) = _SMALL.unpack_from(body, at + 4)
        yield body[at : at + 4], at + 8, length
        at += 8 + length + (length & 1)
    raise _Broken


def _webp_size(body: bytes, name: bytes, start: int) -> tuple[int, int]:
    """Width and height that a chunk speaks of; nothing for those that speak of none."""
    head = body[start : start + 10]
    match name:
        case b"VP8X":
            head = _whole(body, start, 10)
            return int.from_bytes(head[4:7], "little") + 1, int.from_bytes(head[7:10], "little") + 1
        case b"VP8L":
            bits = int.from_bytes(_whole(head, 1, 4), "little")
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8 ":
            if head[3:6] != b"\x9d\x01\x2a":
                raise _Broken
            across, down = _SMALL_SIZE.unpack(_whole(head, 6, 4))
            return across & 0x3FFF, down & 0x3FFF
    return 0, 0
