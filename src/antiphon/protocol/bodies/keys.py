"""Bodies of the routes that manage API keys."""

from antiphon.limits import Limits
from antiphon.protocol.decoding.codec import RequestDecoder, decode_object
from antiphon.protocol.types.operations.keys import CreateKey

_decoder = RequestDecoder(CreateKey)


def decode_key(body: bytes, limits: Limits) -> tuple[CreateKey, list[str]]:
    return _decoder.convert(decode_object(body, limits), len(body), limits)
