"""Bodies of the routes that manage API keys."""

from antiphon.limits import Limits
from antiphon.protocol.decoding.codec import RequestDecoder
from antiphon.protocol.types.operations.keys import CreateKey

_decoder = RequestDecoder(CreateKey)


def decode_key(body: bytes, limits: Limits) -> tuple[CreateKey, list[str]]:
    return _decoder.decode_body(body, limits)
