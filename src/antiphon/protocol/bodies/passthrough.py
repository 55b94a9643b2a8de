"""Bodies that engines define and that are passed on to them: JSON of score, rerank, classify and pooling, and forms.

Of a JSON body only the model is read. Of a form with files (multipart/form-data, RFC 7578) only short fields are read
and one may be replaced; all other parts are passed on unchanged. The header of a part is bounded and parsed in one
pass, because general mail parsers take quadratic time for it.
"""

import json
import re
from typing import Final

import msgspec
from msgspec import Struct

from antiphon.errors import EngineFailed, InvalidType, InvalidValue, missing_parameter
from antiphon.limits import Limits
from antiphon.protocol.decoding.codec import decode_object, encode
from antiphon.protocol.types.tools import Json

JSON = "application/json"
BYTES = "application/octet-stream"  # raw numbers

_decoder = msgspec.json.Decoder()


class RankingRequest(Struct, frozen=True):
    model: str | None
    body: Json

    def encode_for_model(self, model: str) -> bytes:
        """Encode the body with this model name."""
        return encode({**self.body, "model": model})


def decode_ranking(body: bytes, limits: Limits) -> RankingRequest:
    raw = decode_object(body, limits)
    model = raw.get("model")
    if not isinstance(model, str | None):
        raise InvalidType("Invalid type for 'model': expected a string.", param="model")
    if model is not None and not 0 < len(model) <= limits.id_length:
        raise InvalidValue(f"'model' has 1 to {limits.id_length} characters.", param="model")
    for name, value in raw.items():  # a list of numbers is one input, which the model's context bounds
        if type(value) is list and len(value) > limits.embedding_inputs and type(value[0]) is not int:
            raise InvalidValue(f"'{name[:64]}' has more than {limits.embedding_inputs} entries.", param=name[:64])
    return RankingRequest(model, raw)


def replace_model(body: bytes, model: str) -> bytes:
    """Replace the model name in a JSON reply of an engine by the name that the client used."""
    reply = _decode(body)
    return encode({**reply, "model": model}) if isinstance(reply, dict) and "model" in reply else body


def replace_metadata_model(metadata: bytes, model: str) -> bytes:
    """Replace the model name in a metadata header, with non-ASCII characters escaped, as a header requires."""
    fields = _decode(metadata)
    if not isinstance(fields, dict):
        raise EngineFailed("The engine returned bytes without metadata.")
    return json.dumps({**fields, "model": model}, separators=(",", ":")).encode("ascii")


def _decode(body: bytes) -> object:
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise EngineFailed("The engine returned a reply that is not JSON.") from None


MAX_PARTS: Final = 64
_MAX_BOUNDARY_CHARS: Final = 70  # RFC 2046 §5.1.1
_MAX_HEADER_BYTES: Final = 8 * 1024  # bytes, per part
_CRLF: Final = b"\r\n"
# `; name=value` or `; name="value"`. Every match consumes at least one character and is unambiguous, so the search is
# linear.
_PARAMETER: Final = re.compile(r';[ \t]*([^\s;="]*)(?:=("(?:[^"\\]|\\.)*"?|[^;]*))?[^;]*')
_ESCAPED: Final = re.compile(r"\\(.)")


class MultipartForm(Struct, frozen=True):
    """A parsed form. `pieces` joined by `boundary` are the body; `field_index` is the piece of the field."""

    value: str
    pieces: list[bytes]
    boundary: bytes
    field_index: int

    def encode_with(self, value: str) -> bytes:
        """Return the body with another value of the field."""
        head, _, _ = self.pieces[self.field_index].partition(_CRLF + _CRLF)
        pieces = [*self.pieces]
        pieces[self.field_index] = head + _CRLF + _CRLF + value.encode()
        body = self.boundary.join(pieces)
        return body if pieces[0] else body.removeprefix(_CRLF)

    def has_value(self, field: str, value: bytes) -> bool:
        """Return whether another field has this value."""
        ending = _CRLF + _CRLF + value
        return any(piece.endswith(ending) and _parse_name(piece) == field for piece in self.pieces[1:-1])


def read_form(body: bytes, media_type: bytes, field: str) -> MultipartForm:
    """Parse a form. Raises if the body is not a form, or if `field` is missing or occurs twice."""
    boundary = _CRLF + b"--" + _parse_boundary(media_type)
    pieces = re.split(re.escape(boundary), body, maxsplit=MAX_PARTS + 1)  # `bytes.split` is slower on near matches
    if pieces[0].startswith(boundary[2:]):  # usually there is no preamble before the first part
        pieces[:1] = [b"", pieces[0][len(boundary) - 2 :]]
    if len(pieces) < 3 or not pieces[-1].startswith(b"--"):
        raise InvalidValue(f"The body is not a complete form of at most {MAX_PARTS} fields.")
    if not (found := [at for at, piece in enumerate(pieces[1:-1], 1) if _parse_name(piece) == field]):
        raise missing_parameter(field)
    if len(found) > 1:
        raise InvalidValue(f"'{field}' is given twice.", param=field)
    _, _, value = pieces[found[0]].partition(_CRLF + _CRLF)
    try:
        return MultipartForm(value.decode(), pieces, boundary, found[0])
    except UnicodeDecodeError:
        raise InvalidValue(f"'{field}' is not valid UTF-8.", param=field) from None


def _parse_boundary(media_type: bytes) -> bytes:
    found = _find_parameter(media_type[:_MAX_HEADER_BYTES].decode("latin-1"), "boundary")
    if not found or len(found) > _MAX_BOUNDARY_CHARS or not found.isascii():
        raise InvalidValue("The Content-Type of the form has no valid boundary.")
    return found.encode()


def _parse_name(piece: bytes) -> str | None:
    """Return the name of the field in this part."""
    end = piece.find(_CRLF + _CRLF, 0, _MAX_HEADER_BYTES)
    if end < 0:
        raise InvalidValue(f"A part of the form has no header, or a header of more than {_MAX_HEADER_BYTES} bytes.")
    for line in piece[:end].split(_CRLF):
        header, _, value = line.partition(b":")
        if header.strip().lower() == b"content-disposition":
            return _find_parameter(value.decode("utf-8", "replace"), "name")
    return None


def _find_parameter(value: str, name: str) -> str | None:
    """Return the first parameter of this name in a header value, without quotes and escapes."""
    for found in _PARAMETER.finditer(value):
        if found[1].lower() == name and found[2] is not None:
            text = found[2].strip()
            return _ESCAPED.sub(r"\1", text[1:].removesuffix('"')) if text.startswith('"') else text
    return None
