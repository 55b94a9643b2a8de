"""Score, rerank, classify and pooling: JSON that engines know better than we do, of which only the model is read."""

import json

import msgspec
from msgspec import Struct

from antiphon.errors import EngineFailed, InvalidType, InvalidValue
from antiphon.limits import Limits
from antiphon.protocol.decoding.codec import decode_object, encode
from antiphon.protocol.types.tools import Json

JSON = "application/json"
BYTES = "application/octet-stream"  # numbers, without anything around them

_decoder = msgspec.json.Decoder()


class Ranking(Struct, frozen=True):
    model: str | None
    body: Json

    def saying(self, model: str) -> bytes:
        """The body, for the model of this name."""
        return encode({**self.body, "model": model})


def decode_ranking(body: bytes, limits: Limits) -> Ranking:
    raw = decode_object(body, limits)
    model = raw.get("model")
    if not isinstance(model, str | None):
        raise InvalidType("Invalid type for 'model': expected a string.", param="model")
    if model is not None and not 0 < len(model) <= limits.id_length:
        raise InvalidValue(f"'model' has 1 to {limits.id_length} characters.", param="model")
    for name, value in raw.items():  # numbers are one input, which the model's context bounds
        if type(value) is list and len(value) > limits.embedding_inputs and type(value[0]) is not int:
            raise InvalidValue(f"'{name[:64]}' has more than {limits.embedding_inputs} entries.", param=name[:64])
    return Ranking(model, raw)


def answered(body: bytes, model: str) -> bytes:
    """What an engine answered, which has to be JSON, under the name that the client used for its model."""
    answer = _decoded(body)
    return encode({**answer, "model": model}) if isinstance(answer, dict) and "model" in answer else body


def described(metadata: bytes, model: str) -> bytes:
    """The same of a header, in which a model's name may not have any character."""
    told = _decoded(metadata)
    if not isinstance(told, dict):
        raise EngineFailed("The engine tells nothing of the bytes that it gave.")
    return json.dumps({**told, "model": model}, separators=(",", ":")).encode("ascii")


def _decoded(body: bytes) -> object:
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise EngineFailed("The engine gave an answer that is not JSON.") from None
