"""Image type, size and frame count, read from the bytes of an image without decoding a pixel.

The declared type is ignored; only the headers count, and of several sizes the largest, since a decoder must allocate
that much. The time is linear; files with an absurd number of pieces are rejected.
"""

import re
import struct
import zlib
from binascii import a2b_base64
from collections.abc import Callable, Iterator
from typing import Final

from msgspec import Struct

from antiphon.core.data_urls import UnreadableMedia, read_data_url

_MAX_GIF_BLOCKS: Final = 300_000  # a GIF of 20 MB has about 80,000
_MAX_CHUNKS: Final = 50_000  # for the other formats, whose pieces are larger
_MAX_JPEG_SCANS: Final = 256  # of a progressive JPEG; a decoder traverses the image once per scan
_HEAD_CHARS: Final = 16 * 1024  # a multiple of 4
_MAX_INFLATED_BYTES: Final = 8 * 1024 * 1024  # decompressed texts and colour profiles of a PNG


class ImageInfo(Struct, frozen=True):
    media_type: str
    width: int
    height: int
    frames: int = 1

    @property
    def pixels(self) -> int:
        return self.width * self.height * self.frames


def read_image_info(body: bytes) -> ImageInfo:
    """Read an image header. Raises UnreadableMedia if the type is unknown or the image is broken."""
    if (reader := next((read for head, read in _READERS if head.match(body)), None)) is None:
        raise UnreadableMedia("It is not a PNG, JPEG, GIF or WebP image.")
    try:
        image = reader(body)
    except (LookupError, ValueError, struct.error):
        image = None
    if image is None or not (image.width and image.height):
        raise UnreadableMedia("The image is broken.")
    return image


def measure_data_url(url: str) -> ImageInfo:
    """Read an image that was read before: mostly its first bytes suffice."""
    start = url.index(",") + 1
    try:
        return read_image_info(a2b_base64(url[start : start + _HEAD_CHARS], strict_mode=True))
    except ValueError:
        return read_image_info(read_data_url(url, len(url)).body)


class _BrokenImage(ValueError):
    """The image is invalid."""


# PNG: chunks of length, name, data and checksum. The first chunk is the header.


def _read_png(body: bytes) -> ImageInfo:
    if body[12:16] != b"IHDR":
        raise _BrokenImage
    width, height = struct.unpack_from(">II", body, 16)
    declared_frames = frames = 0
    remaining, has_data = _MAX_INFLATED_BYTES, False
    for name, start, length in _png_chunks(body):
        frames += name == b"fcTL"
        has_data = has_data or name == b"IDAT"
        if name == b"acTL":
            declared_frames = int.from_bytes(_slice_exact(body, start, 4), "big")
        elif name in (b"iCCP", b"zTXt", b"iTXt"):
            remaining -= _inflated_size(body[start : start + length], name, remaining)
    if not has_data:
        raise _BrokenImage
    return ImageInfo("image/png", width, height, max(declared_frames, frames, 1))


def _png_chunks(body: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yield name, data position and data length of each chunk, up to the end of the image or the file."""
    at, name = 8, b""
    for _ in range(_MAX_CHUNKS):
        if at + 8 > len(body) or name == b"IEND":
            return
        (length,), name = struct.unpack_from(">I", body, at), body[at + 4 : at + 8]
        yield name, at + 8, length
        at += length + 12
    raise _BrokenImage


def _inflated_size(data: bytes, name: bytes, limit: int) -> int:
    """Return the decompressed size of a text or colour profile chunk.

    The data is a keyword, the compression method and the compressed bytes. In iTXt a flag precedes the method, and two
    more texts follow it.
    """
    fields = data.partition(b"\0")[2]
    compressed = fields[1:]
    if name == b"iTXt":
        if fields[:1] != b"\x01":
            return 0
        compressed = fields[2:].partition(b"\0")[2].partition(b"\0")[2]
    try:
        size = len(zlib.decompressobj().decompress(compressed, limit + 1))
    except zlib.error:
        return 0  # decoders fail here as well
    if size > limit:
        raise _BrokenImage
    return size


# JPEG: segments of marker and length, up to the frame header and the scan.

_JPEG_FRAME_MARKERS: Final = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})
_JPEG_STANDALONE_MARKERS: Final = frozenset({0x01, *range(0xD0, 0xD9)})


def _read_jpeg(body: bytes) -> ImageInfo:
    at = 2
    for _ in range(_MAX_CHUNKS):
        if body[at] != 0xFF:
            raise _BrokenImage
        marker = body[at + 1]
        if marker == 0xFF:  # fill byte
            at += 1
        elif marker in _JPEG_STANDALONE_MARKERS:
            at += 2
        elif marker in _JPEG_FRAME_MARKERS:
            height, width = struct.unpack_from(">HH", _slice_exact(body, at + 5, 4))
            if not 0 < body.count(b"\xff\xda") <= _MAX_JPEG_SCANS:
                raise _BrokenImage
            return ImageInfo("image/jpeg", width, height)
        else:
            at += 2 + int.from_bytes(_slice_exact(body, at + 2, 2), "big")
    raise _BrokenImage


def _slice_exact(body: bytes, start: int, length: int) -> bytes:
    """Return exactly `length` bytes. Raises _BrokenImage if there are fewer."""
    piece = body[start : start + length]
    if len(piece) < length:
        raise _BrokenImage
    return piece


# GIF: a screen, then extensions and frames, each in blocks of at most 255 bytes.


def _read_gif(body: bytes) -> ImageInfo:
    width, height = struct.unpack("<HH", _slice_exact(body, 6, 4))
    at = 13 + _colour_table_bytes(body[10])
    frames = blocks = 0
    while at < len(body) and body[at] != 0x3B:
        if body[at] == 0x21:
            at += 2
        elif body[at] == 0x2C:
            x, y, frame_width, frame_height = struct.unpack("<HHHH", _slice_exact(body, at + 1, 8))
            width, height = max(width, x + frame_width), max(height, y + frame_height)
            frames += 1
            at += 11 + _colour_table_bytes(body[at + 9])
        else:
            raise _BrokenImage
        while at < len(body) and body[at] and blocks < _MAX_GIF_BLOCKS:
            at += body[at] + 1
            blocks += 1
        at += 1
        blocks += 1
        if blocks > _MAX_GIF_BLOCKS:
            raise _BrokenImage
    if not frames:
        raise _BrokenImage
    return ImageInfo("image/gif", width, height, frames)


def _colour_table_bytes(flags: int) -> int:
    return 3 << ((flags & 7) + 1) if flags & 0x80 else 0


# WebP: chunks of name, length and data, padded to even lengths.


def _read_webp(body: bytes) -> ImageInfo:
    """Read a WebP header. Frames are counted anywhere in the file: a walk over chunks misses some of them."""
    frames = body.count(b"ANMF")
    if frames > _MAX_CHUNKS:
        raise _BrokenImage
    width = height = 0
    for name, start, length in _riff_chunks(body, 12, len(body)):
        inner = _riff_chunks(body, start + 16, start + length) if name == b"ANMF" else ()
        for each, at, _ in ((name, start, length), *inner):
            chunk_width, chunk_height = _webp_size(body, each, at)
            width, height = max(width, chunk_width), max(height, chunk_height)
    return ImageInfo("image/webp", width, height, max(frames, 1))


def _riff_chunks(body: bytes, at: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    end = min(end, len(body))
    for _ in range(_MAX_CHUNKS):
        if at + 8 > end:
            return
        (length,) = struct.unpack_from("<I", body, at + 4)
        yield body[at : at + 4], at + 8, length
        at += 8 + length + (length & 1)
    raise _BrokenImage


def _webp_size(body: bytes, name: bytes, start: int) -> tuple[int, int]:
    """Return the width and height in a chunk, or zeros if it has none."""
    head = body[start : start + 10]
    match name:
        case b"VP8X":
            head = _slice_exact(body, start, 10)
            return int.from_bytes(head[4:7], "little") + 1, int.from_bytes(head[7:10], "little") + 1
        case b"VP8L":
            bits = int.from_bytes(_slice_exact(head, 1, 4), "little")
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8 ":
            if head[3:6] != b"\x9d\x01\x2a":
                raise _BrokenImage
            width, height = struct.unpack("<HH", _slice_exact(head, 6, 4))
            return width & 0x3FFF, height & 0x3FFF
    return 0, 0


_READERS: Final[tuple[tuple[re.Pattern[bytes], Callable[[bytes], ImageInfo]], ...]] = (
    (re.compile(rb"\x89PNG\r\n\x1a\n"), _read_png),
    (re.compile(rb"\xff\xd8\xff"), _read_jpeg),
    (re.compile(rb"GIF8[79]a"), _read_gif),
    (re.compile(rb"RIFF....WEBP", re.DOTALL), _read_webp),
)
