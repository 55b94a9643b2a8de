"""Body and reply of POST /responses/compact. Unlike a create request it has no fields for tools or sampling."""

from typing import Literal

from msgspec import Struct, field

from antiphon.limits import Limits
from antiphon.protocol.decoding.checks import check_count, check_request
from antiphon.protocol.decoding.codec import DecodedRequest, RequestDecoder, decode_object
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


_decoder = RequestDecoder(CompactResponse)


def decode_compact(body: bytes, limits: Limits) -> DecodedRequest:
    """Decode the body as a create request with `store: false`, so that the same checks apply."""
    raw = decode_object(body, limits)
    check_count(raw.get("input"), "input", limits.items)
    _decoder.check_enums(raw, len(body))
    normalise(raw)
    compact, ignored = _decoder.convert(raw, limits)
    sent = {name: value for name, value in raw.items() if name in CompactResponse.__struct_fields__}
    request = CreateResponse(store=False, **{name: getattr(compact, name) for name in sent})
    check_request(request, sent, limits)
    return DecodedRequest(request, frozenset(sent), ignored)
