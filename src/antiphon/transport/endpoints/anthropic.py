"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's API, a stream or one JSON body as `stream` says.

The headers of that API (anthropic-version, anthropic-beta) are accepted and have no effect.
"""

from msgspec import Struct

from antiphon.core.dialects.anthropic_request import read_count, read_message
from antiphon.limits import Limits
from antiphon.protocol.decoding.codec import encode
from antiphon.protocol.decoding.part_cache import PartCache
from antiphon.protocol.types.anthropic.events import AnthropicStreamEvent, InputTokens, SaidMessage
from antiphon.protocol.types.anthropic.request import CountTokens, CreateMessage
from antiphon.service.completions import Completions
from antiphon.transport.http.error_responses import REQUEST_ID
from antiphon.transport.http.request import Request, decode_body, log_user
from antiphon.transport.http.route import Route
from antiphon.transport.streaming import sse
from antiphon.transport.streaming.delivery import Delivery, StreamFormat

PATH = "/v1/messages"

_PING = b'event: ping\ndata: {"type":"ping"}\n\n'
STREAM_FORMAT = StreamFormat(sse.encode_events, lambda last: _PING, done=b"")


class AnthropicEndpoint(Struct, frozen=True):
    service: Completions
    limits: Limits
    parts: PartCache
    delivery: Delivery

    def routes(self, model: str) -> list[Route]:
        """`model`: the model name in the examples."""
        example = {"model": model, "messages": [{"role": "user", "content": "Hello!"}]}
        return [
            Route(
                method="POST",
                path=PATH,
                endpoint=self.create,
                summary="Create a message (Anthropic's API)",
                description="One JSON body, or with `stream: true` server-sent events. Errors have the format of that "
                "API: `{type: error, error: {type, message}, request_id}`.",
                takes=CreateMessage,
                example={**example, "max_tokens": 256},
                gives=SaidMessage,
                streams=AnthropicStreamEvent,
                new_work=True,
            ),
            Route(
                method="POST",
                path=f"{PATH}/count_tokens",
                endpoint=self.count,
                summary="Count the tokens of a message's prompt (Anthropic's API)",
                takes=CountTokens,
                example=example,
                gives=InputTokens,
                new_work=True,
            ),
        ]

    async def create(self, request: Request) -> None:
        request.reply_headers.append((REQUEST_ID, request.id.encode()))
        parts = self.parts.for_tenant(request.tenant)
        parsed = await decode_body(await request.read_body(self.limits), read_message, self.limits, parts)
        opened = await self.service.create_message(request.tenant, parsed, request.id)
        log_user(request.id, parsed.decoded.request)
        await self.delivery.reply(request, opened.run, opened.ignored, STREAM_FORMAT if parsed.stream else None)

    async def count(self, request: Request) -> None:
        request.reply_headers.append((REQUEST_ID, request.id.encode()))
        parts = self.parts.for_tenant(request.tenant)
        parsed = await decode_body(await request.read_body(self.limits), read_count, self.limits, parts)
        counted = await self.service.count_message(request.tenant, parsed)
        request.ignored = counted.ignored
        await request.reply(200, encode(InputTokens(input_tokens=counted.tokens)))
