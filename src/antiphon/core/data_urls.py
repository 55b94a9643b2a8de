"""Data URLs (RFC 2397) and plain base64, decoded in one pass; the size limit is checked before decoding."""

from base64 import b64encode
from binascii import Error, a2b_base64
from io import BytesIO
from typing import Final

from msgspec import Struct

_MAX_HEADER_CHARS: Final = 256
_URL_SAFE: Final = bytes.maketrans(b"-_", b"+/")
_BLANKS: Final = b" \t\r\n\f"
_ALPHABET: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/-_" + _BLANKS
_PIECE_CHARS: Final = 256 * 1024  # must be a multiple of 4
_LINE_BYTES: Final = 57  # in a line of MIME base64: 76 characters and a line break (RFC 2045 section 6.8)
_LINE_CHARS: Final = 78


class UnreadableMedia(ValueError):
    """The client sent invalid data; the message gives the reason."""


class DecodedData(Struct, frozen=True):
    body: bytes
    is_canonical: bool  # the base64 was in canonical form
    media_type: str = ""  # declared type, lower case, without parameters


class Correction(Struct, frozen=True):
    """A correction of a data URL, which is applied before the URL is sent to an engine."""

    media_type: str
    decodes: bool  # the base64 is not in canonical form

    def apply(self, url: str) -> str:
        if self.decodes:
            return to_data_url(self.media_type, read_data_url(url, len(url)).body)
        return f"data:{self.media_type};base64,{url[url.index(',') + 1 :]}"


def is_data_url(text: str) -> bool:
    return text[:5].lower() == "data:"


def read_data_url(text: str, max_bytes: int) -> DecodedData:
    """Decode `data:image/png;base64,…`. Raises UnreadableMedia if it is invalid or larger than `max_bytes`."""
    head, comma, _ = text[5:_MAX_HEADER_CHARS].partition(",")
    if not comma:
        raise UnreadableMedia("The data URL has no comma before its data.")
    declared, *parameters = [part.strip() for part in head.lower().split(";")]
    if "base64" not in parameters:
        raise UnreadableMedia("The data URL is not base64-encoded.")
    return DecodedData(*_decode(text, 6 + len(head), max_bytes), declared)


def read_base64(text: str, max_bytes: int) -> DecodedData:
    return DecodedData(*_decode(text, 0, max_bytes))


def check_base64(text: str) -> None:
    """Raise UnreadableMedia unless the text is base64, padded only at its end: in a quarter of the time of decoding."""
    encoded = text.encode("utf-8", "replace")
    others = encoded.translate(None, _ALPHABET)
    if others not in (b"", b"=", b"==") or not encoded.rstrip(_BLANKS).endswith(others):
        raise UnreadableMedia("The data is not base64.")


def read_file_data(text: str, max_bytes: int) -> bytes:
    """Decode the content of an input_file: a data URL, or base64 alone. Raises UnreadableMedia."""
    return (read_data_url(text, max_bytes) if is_data_url(text) else read_base64(text, max_bytes)).body


def to_data_url(media_type: str, body: bytes) -> str:
    return f"data:{media_type};base64,{b64encode(body).decode('ascii')}"


def _decode(text: str, start: int, max_bytes: int) -> tuple[bytes, bool]:
    """Decode base64 that is canonical, or has whitespace, the URL-safe alphabet or no padding, as clients send it."""
    if (len(text) - start) // _LINE_CHARS * _LINE_BYTES > max_bytes:  # even with line breaks
        raise UnreadableMedia(f"It has more than the {max_bytes:,} bytes that are allowed.")
    strict = True
    try:
        body = _decode_strict(text, start)
    except Error:
        strict, body = False, _decode_lenient(text[start:])
    except ValueError:  # not ASCII
        raise UnreadableMedia("The data is not base64.")
    if len(body) > max_bytes:
        raise UnreadableMedia(f"It has {len(body):,} bytes; at most {max_bytes:,} are allowed.")
    return body, strict and len(text) - start == (len(body) + 2) // 3 * 4


def _decode_strict(text: str, start: int) -> bytes:
    """Decode piece by piece, to avoid a copy of the text, which may be large. Only the last piece may be padded."""
    buffer = BytesIO()
    for at in range(start, len(text), _PIECE_CHARS):
        piece = a2b_base64(text[at : at + _PIECE_CHARS], strict_mode=True)
        if at + _PIECE_CHARS < len(text) and len(piece) * 4 != _PIECE_CHARS * 3:
            raise Error("data after the padding")
        buffer.write(piece)
    return buffer.getvalue()


def _decode_lenient(text: str) -> bytes:
    try:
        plain = text.encode("ascii").translate(_URL_SAFE, _BLANKS)
        return a2b_base64(plain + b"=" * (-len(plain) % 4), strict_mode=True)
    except ValueError:
        raise UnreadableMedia("The data is not base64.")
