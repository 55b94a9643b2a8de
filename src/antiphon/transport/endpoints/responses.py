"""POST /v1/responses, /v1/responses/compact and /v1/responses/input_tokens.

A response is a stream or one JSON body, as the request's `stream` says; the Accept header has no effect. Both are the
same run. A background response without `stream` is answered at once.
"""

from hashlib import sha256
from time import time
from typing import Literal

from msgspec import Struct

from antiphon.errors import InvalidValue
from antiphon.limits import Limits
from antiphon.protocol.bodies.compact import CompactedResponse, CompactResponse, decode_compact
from antiphon.protocol.decoding.codec import decode_create
from antiphon.protocol.decoding.part_cache import PartCache
from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.response import Response
from antiphon.protocol.types.tool_events import StreamEvent
from antiphon.service.compact import Compactions
from antiphon.service.responses import Responses
from antiphon.service.tokens import InputTokenCounter
from antiphon.stores.base import IdempotencyKey
from antiphon.transport.http.request import Request, decode_body, log_user, read_json, run_for_client
from antiphon.transport.middleware.routing import Route
from antiphon.transport.streaming.delivery import Delivery
from antiphon.transport.streaming.legacy_events import included_image_urls

PATH = "/v1/responses"
IDEMPOTENCY_KEY = b"idempotency-key"
IDEMPOTENCY_SECONDS = 86_400.0  # time for which a key is stored

_MAX_KEY_LENGTH = 255
_VISIBLE = bytes(range(0x21, 0x7F))


class InputTokenCount(Struct, kw_only=True):
    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


class ResponsesEndpoint(Struct, frozen=True):
    service: Responses
    counting: InputTokenCounter
    compactions: Compactions
    limits: Limits
    parts: PartCache
    delivery: Delivery

    @Route("POST", PATH, takes=CreateResponse, gives=Response, streams=StreamEvent, new_work=True)
    async def create(self, request: Request) -> None:
        """Create a response. One JSON body, or with `stream: true` server-sent events that end with `[DONE]`. The same
        request with the same Idempotency-Key returns the same response.
        """
        body = await request.read_body(self.limits)
        parsed = await decode_body(body, decode_create, self.limits, self.parts.for_tenant(request.tenant))
        key = _read_key(request, body) if IDEMPOTENCY_KEY in request.headers else None
        del body  # it may be large, and the reply takes time
        accepted = await self.service.create(request.tenant, parsed, key)
        if parsed.request.request_id:
            request.set_id(parsed.request.request_id)
        log_user(request.id, parsed.request)
        if accepted.source is None:
            request.ignored = accepted.ignored
            await request.reply(200, accepted.body or b"")
            return
        stream_format = None
        if parsed.request.stream:
            stream_format = self.delivery.make_response_format(request, included_image_urls(parsed.request))
        await self.delivery.reply(request, accepted.source, accepted.ignored, stream_format)

    @Route("POST", f"{PATH}/input_tokens", takes=CreateResponse, new_work=True)
    async def count(self, request: Request) -> InputTokenCount:
        """Count the tokens of an input. The `usage.input_tokens` that a response to the same body would have. Nothing
        is generated or stored. Fails with the name of the engine if it cannot count tokens.
        """
        parsed = await read_json(request, decode_create, self.limits, self.parts.for_tenant(request.tenant))
        tokens, request.ignored = await self.counting.count(request.tenant, parsed)
        return InputTokenCount(input_tokens=tokens)

    @Route("POST", f"{PATH}/compact", takes=CompactResponse, new_work=True)
    async def compact(self, request: Request) -> CompactedResponse:
        """Compact a conversation. The user's messages and one compaction item with the model's encrypted summary of
        everything else. Send the output back unchanged as the beginning of an `input`. Nothing is stored.
        """
        parsed = await read_json(request, decode_compact, self.limits)
        compacted, request.ignored = await run_for_client(request, self.compactions.compact(request.tenant, parsed))
        return compacted


def _read_key(request: Request, body: bytes) -> IdempotencyKey:
    """Return the Idempotency-Key, with a digest by which a different request with the same key is recognised."""
    name = request.get_single_header(IDEMPOTENCY_KEY)
    if not name or len(name) > _MAX_KEY_LENGTH or name.translate(None, _VISIBLE):
        raise InvalidValue(
            f"Idempotency-Key must be a single header of 1 to {_MAX_KEY_LENGTH} visible ASCII characters.",
            param="Idempotency-Key",
        )
    digest = sha256(PATH.encode())
    digest.update(body)
    return IdempotencyKey(name.decode("ascii"), digest.digest(), time() + IDEMPOTENCY_SECONDS)
