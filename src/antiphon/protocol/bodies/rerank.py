"""Bodies of score, rerank, classify and pooling. Engines define these bodies; only the model is read here."""

import json

import msgspec
from msgspec import Struct

from antiphon.errors import EngineFailed, InvalidType, InvalidValue
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
    """Replace the model name in a metadata header. Non-ASCII characters are escaped, since a header may not contain
    them.
    """
    fields = _decode(metadata)
    if not isinstance(fields, dict):
        raise EngineFailed("The engine returned bytes without metadata.")
    return json.dumps({**fields, "model": model}, separators=(",", ":")).encode("ascii")


def _decode(body: bytes) -> object:
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise EngineFailed("The engine returned a reply that is not JSON.") from None
