"""A form with files in it (multipart/form-data), of which only one short field is read and may be changed.

The rest is passed on as it came: nothing else of it means anything here.
"""

from email.message import Message
from typing import Final

from msgspec import Struct

from antiphon.errors import InvalidValue, MissingParameter

MOST_PARTS: Final = 64
_LONGEST_BOUNDARY: Final = 70  # RFC 2046
_LINE: Final = b"\r\n"


class Form(Struct, frozen=True):
    """`pieces` joined by `boundary` are the body; one of them is the field's part."""

    value: str
    pieces: list[bytes]
    boundary: bytes
    at: int

    def saying(self, value: str) -> bytes:
        """The body, with another value in the field."""
        head, _, _ = self.pieces[self.at].partition(_LINE + _LINE)
        pieces = [*self.pieces]
        pieces[self.at] = head + _LINE + _LINE + value.encode()
        return self.boundary.join(pieces).removeprefix(_LINE)


def read_form(body: bytes, media_type: bytes, field: str) -> Form:
    """Raises for what is no form, or has this field not or twice."""
    boundary = _LINE + b"--" + _boundary(media_type)
    pieces = (_LINE + body).split(boundary, MOST_PARTS + 1)
    if len(pieces) < 3 or not pieces[-1].startswith(b"--"):
        raise InvalidValue(f"The body is not a whole form of at most {MOST_PARTS} fields.")
    found = [at for at, piece in enumerate(pieces[1:-1], 1) if _name(piece) == field]
    if not found:
        raise MissingParameter(f"Missing required parameter: '{field}'.", param=field)
    if len(found) > 1:
        raise InvalidValue(f"'{field}' is given twice.", param=field)
    _, _, value = pieces[found[0]].partition(_LINE + _LINE)
    try:
        return Form(value.decode(), pieces, boundary, found[0])
    except UnicodeDecodeError:
        raise InvalidValue(f"'{field}' is not valid UTF-8.", param=field) from None


def _boundary(media_type: bytes) -> bytes:
    found = _parameter("content-type", media_type.decode("latin-1"), "boundary")
    if not found or len(found) > _LONGEST_BOUNDARY or not found.isascii():
        raise InvalidValue("The Content-Type of the form does not say how it is divided.")
    return found.encode()


def _name(piece: bytes) -> str | None:
    """Of the field that this part is."""
    head, _, _ = piece.partition(_LINE + _LINE)
    for line in head.split(_LINE)[:8]:
        header, _, value = line.partition(b":")
        if header.strip().lower() == b"content-disposition":
            return _parameter("content-disposition", value.strip().decode("utf-8", "replace"), "name")
    return None


def _parameter(header: str, value: str, name: str) -> str | None:
    message = Message()
    message[header] = value.replace("\r", " ").replace("\n", " ")
    found = message.get_param(name, header=header)
    return found if isinstance(found, str) else None
