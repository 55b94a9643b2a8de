"""Data URLs and bare base64: read in one pass, within a bound that is looked at before anything is decoded."""

from base64 import b64encode
from binascii import Error, a2b_base64
from io import BytesIO
from typing import Final

from msgspec import Struct

_LONGEST_HEAD: Final = 256
_URL_SAFE: Final = bytes.maketrans(b"-_", b"+/")
_BLANKS: Final = b" \t\r\n\f"
_PIECE: Final = 256 * 1024  # characters; a multiple of 4


class Unreadable(ValueError):
    """What a client sent is not what it should be; the sentence says why."""


class Data(Struct, frozen=True):
    body: bytes
    usual: bool  # its base64 was written as it should be
    media_type: str = ""  # as declared: small letters, without parameters


def is_data_url(text: str) -> bool:
    return text[:5].lower() == "data:"


def read_data_url(text: str, most: int) -> Data:
    """`data:image/png;base64,…`; Unreadable if it is none or has more than `most` bytes."""
    comma = text.find(",", 0, _LONGEST_HEAD)
    if comma < 0:
        raise Unreadable("The data URL has no comma before its data.")
    head = text[5:comma].lower()
    declared, *parameters = [part.strip() for part in head.split(";")]
    if "base64" not in parameters:
        raise Unreadable("The data URL is not in base64.")
    return Data(*_decoded(text, comma + 1, most), declared)


def read_base64(text: str, most: int) -> Data:
    return Data(*_decoded(text, 0, most))


def data_url(media_type: str, body: bytes) -> str:
    return f"data:{media_type};base64,{b64encode(body).decode('ascii')}"


def _decoded(text: str, start: int, most: int) -> tuple[bytes, bool]:
    """As it should be, or with blanks, the other alphabet or without padding, as some clients write it."""
    if (len(text) - start) // 4 * 3 > most + 3:
        raise Unreadable(f"It has more than the {most:,} bytes that are allowed.")
    usual = True
    try:
        body = _strictly(text, start)
    except Error:
        usual, body = False, _mended(text[start:])
    except ValueError:  # no ASCII
        raise Unreadable("The data is not base64.")
    if len(body) > most:
        raise Unreadable(f"It has {len(body):,} bytes; at most {most:,} are allowed.")
    return body, usual and len(text) - start == (len(body) + 2) // 3 * 4


def _strictly(text: str, start: int) -> bytes:
    """Piece by piece, since it may be large and is not copied as a whole. Only the last piece may be padded."""
    whole = BytesIO()
    for at in range(start, len(text), _PIECE):
        piece = a2b_base64(text[at : at + _PIECE], strict_mode=True)
        if at + _PIECE < len(text) and len(piece) * 4 != _PIECE * 3:
            raise Error("it goes on behind its end")
        whole.write(piece)
    return whole.getvalue()


def _mended(text: str) -> bytes:
    try:
        plain = text.encode("ascii").translate(_URL_SAFE, _BLANKS)
        return a2b_base64(plain + b"=" * (-len(plain) % 4), strict_mode=True)
    except ValueError:
        raise Unreadable("The data is not base64.")
