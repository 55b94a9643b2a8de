"""Body and reply of POST /responses/compact. Unlike a create request it has no fields for tools or sampling."""

from typing import Literal

from msgspec import Struct, field

from antiphon.limits import Limits
from antiphon.protocol.decoding.checks import check_request
from antiphon.protocol.decoding.codec import DecodedRequest, RequestDecoder
from antiphon.protocol.decoding.normalise import normalise
from antiphon.protocol.types.items import InputItem, OutputItem
from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.response import ServiceTier, Usage
from antiphon.protocol.types.tools import Json


class CompactResponse(Struct, kw_only=True):
    model: str | None = None
    input: list[InputItem] = field(default_factory=list)
    instructions: str | None = None
    previous_response_id: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: Literal["in_memory", "24h"] | None = None
    prompt_cache_options: Json | None = None
    service_tier: ServiceTier | None = None
    image: Json | None = None


class CompactedResponse(Struct, kw_only=True):
    id: str
    object: Literal["response.compaction"] = "response.compaction"
    created_at: int
    output: list[OutputItem]  # the user's messages, then one compaction item
    usage: Usage


_decoder = RequestDecoder(CompactResponse, normalise, {"input": "items"})


def decode_compact(body: bytes, limits: Limits) -> DecodedRequest:
    """Decode the body as a create request with `store: false`, so that the same checks apply."""
    decoded = _decoder.decode(body, limits)
    sent = decoded.sent.intersection(CompactResponse.__struct_fields__)
    request = CreateResponse(store=False, **{name: getattr(decoded.request, name) for name in sent})
    check_request(request, sent, limits)
    return DecodedRequest(request, sent, decoded.ignored)
