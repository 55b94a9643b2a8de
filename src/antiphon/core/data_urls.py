"""Data URLs and bare base64: read in one pass, within a bound that is looked at before anything is decoded."""

from base64 import b64encode
from binascii import Error, a2b_base64
from typing import Final

from msgspec import Struct

_LONGEST_HEAD: Final = 256
_URL_SAFE: Final = bytes.maketrans(b"-_", b"+/")
_BLANKS: Final = b" \t\r\n\f"


class Unreadable(ValueError):
    """What a client sent is not what it should be; the sentence says why."""


class Data(Struct, frozen=True):
    body: bytes
    payload: str  # the same in base64, without blanks
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
    body, payload = _decoded(text, comma + 1, most)
    return Data(body, payload, declared)


def read_base64(text: str, most: int) -> Data:
    return Data(*_decoded(text, 0, most))


def data_url(media_type: str, body: bytes) -> str:
    return f"data:{media_type};base64,{b64encode(body).decode('ascii')}"


def _decoded(text: str, start: int, most: int) -> tuple[bytes, str]:
    """As it should be, or with blanks, the other alphabet or without padding, as some clients write it."""
    if (len(text) - start) // 4 * 3 > most + 3:
        raise Unreadable(f"It has more than the {most:,} bytes that are allowed.")
    payload = text[start:]
    try:
        plain = payload.encode("ascii")
    except UnicodeEncodeError:
        raise Unreadable("The data is not base64.")
    try:
        body = a2b_base64(plain, strict_mode=True)
    except Error:
        plain = plain.translate(_URL_SAFE, _BLANKS)
        try:
            body = a2b_base64(plain + b"=" * (-len(plain) % 4), strict_mode=True)
        except Error:
            raise Unreadable("The data is not base64.")
        payload = ""
    if len(body) > most:
        raise Unreadable(f"It has {len(body):,} bytes; at most {most:,} are allowed.")
    usual = len(payload) == (len(body) + 2) // 3 * 4
    return body, payload if usual else b64encode(body).decode("ascii")
