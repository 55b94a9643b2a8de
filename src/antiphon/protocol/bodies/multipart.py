"""A form with files in it (multipart/form-data), of which only short fields are read, and one may be changed.

The rest is passed on as it came: nothing else of it means anything here. What stands before a part is short, and read
in one pass: readers of mail take time by the square of it.
"""

import re
from typing import Final

from msgspec import Struct

from antiphon.errors import InvalidValue, MissingParameter

MOST_PARTS: Final = 64
_LONGEST_BOUNDARY: Final = 70  # RFC 2046
_LONGEST_HEAD: Final = 8 * 1024  # bytes, of a part
_LINE: Final = b"\r\n"
# `; name=value` or `; name="value"`; every match takes at least one character, and none can be read in two ways.
_PARAMETER: Final = re.compile(r';[ \t]*([^\s;="]*)(?:=("(?:[^"\\]|\\.)*"?|[^;]*))?[^;]*')
_ESCAPED: Final = re.compile(r"\\(.)")


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
        whole = self.boundary.join(pieces)
        return whole if pieces[0] else whole.removeprefix(_LINE)

    def asks(self, field: str, value: bytes) -> bool:
        """Whether another field has this value."""
        said = _LINE + _LINE + value
        return any(piece.endswith(said) and _name(piece) == field for piece in self.pieces[1:-1])


def read_form(body: bytes, media_type: bytes, field: str) -> Form:
    """Raises for what is no form, or has this field not or twice."""
    boundary = _LINE + b"--" + _boundary(media_type)
    pieces = re.split(re.escape(boundary), body, maxsplit=MOST_PARTS + 1)  # `split` takes longer where it nearly fits
    if pieces[0].startswith(boundary[2:]):  # as a rule nothing stands before the first part
        pieces[:1] = [b"", pieces[0][len(boundary) - 2 :]]
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
    found = _parameter(media_type[:_LONGEST_HEAD].decode("latin-1"), "boundary")
    if not found or len(found) > _LONGEST_BOUNDARY or not found.isascii():
        raise InvalidValue("The Content-Type of the form does not say how it is divided.")
    return found.encode()


def _name(piece: bytes) -> str | None:
    """Of the field that this part is."""
    end = piece.find(_LINE + _LINE, 0, _LONGEST_HEAD)
    if end < 0:
        raise InvalidValue(f"A part of the form has no head, or one of more than {_LONGEST_HEAD} bytes.")
    for line in piece[:end].split(_LINE):
        header, _, value = line.partition(b":")
        if header.strip().lower() == b"content-disposition":
            return _parameter(value.decode("utf-8", "replace"), "name")
    return None


def _parameter(value: str, name: str) -> str | None:
    """Of a header's value: what is called so behind a semicolon, the first of them."""
    for found in _PARAMETER.finditer(value):
        if found[1].lower() == name and found[2] is not None:
            return _plain(found[2])
    return None


def _plain(value: str) -> str:
    """Without its quotes."""
    value = value.strip()
    return _ESCAPED.sub(r"\1", value[1:].removesuffix('"')) if value.startswith('"') else value
