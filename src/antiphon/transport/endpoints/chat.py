"""POST /v1/chat/completions, /v1/completions, and Anthropic's /v1/messages and /v1/messages/count_tokens.

Each is a stream or one JSON body, as `stream` says. Those of chat and completions end with `[DONE]`. The headers of
Anthropic's API (anthropic-version, anthropic-beta) are accepted and have no effect.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

from msgspec import Struct

from antiphon.core.dialects.anthropic_request import read_count, read_message
from antiphon.core.dialects.chat_request import ChatRequest, read_chat
from antiphon.core.dialects.completions_request import CompletionRequest, read_completion
from antiphon.limits import Limits
from antiphon.protocol.decoding.codec import encode
from antiphon.protocol.decoding.part_cache import PartCache, TenantParts
from antiphon.protocol.types.anthropic.events import AnthropicMessage, AnthropicStreamEvent, InputTokens
from antiphon.protocol.types.anthropic.request import CountTokens, CreateMessage
from antiphon.protocol.types.chat.request import CreateChat
from antiphon.protocol.types.chat.response import ChatChunk, ChatCompletion
from antiphon.protocol.types.completions import Completion, CreateCompletion
from antiphon.service.completions import AcceptedCompletion, Completions
from antiphon.transport.http.error_responses import REQUEST_ID
from antiphon.transport.http.request import Request, decode_body, log_user
from antiphon.transport.middleware.routing import Route
from antiphon.transport.streaming import sse
from antiphon.transport.streaming.delivery import DATA_FORMAT, Delivery, StreamFormat

A = TypeVar("A", bound=ChatRequest | CompletionRequest)
ReadBody = Callable[[bytes, Limits, TenantParts], A]
OpenRun = Callable[[str, A], Awaitable[AcceptedCompletion]]  # called with the tenant and the request


class CompletionEndpoint(Struct, Generic[A], frozen=True):
    """Reads a body, opens a run for it and delivers the run."""

    read: ReadBody[A]
    open_run: OpenRun[A]
    limits: Limits
    parts: PartCache
    delivery: Delivery

    def route(self, **fields: Any) -> Route:
        """`fields`: the fields of the Route that depend on the API."""
        return Route(method="POST", endpoint=self.create, new_work=True, **fields)

    async def create(self, request: Request) -> None:
        parts = self.parts.for_tenant(request.tenant)
        parsed = await decode_body(await request.read_body(self.limits), self.read, self.limits, parts)
        opened = await self.open_run(request.tenant, parsed)
        log_user(request.id, parsed.decoded.request)
        stream_format = DATA_FORMAT if parsed.request.stream else None
        await self.delivery.reply(request, opened.run, opened.ignored, stream_format)


PATH = "/v1/chat/completions"


def chat_route(service: Completions, limits: Limits, parts: PartCache, delivery: Delivery, model: str) -> Route:
    """`model`: the model name in the example."""
    return CompletionEndpoint(read_chat, service.create_chat, limits, parts, delivery).route(
        path=PATH,
        summary="Create a chat completion",
        description="One JSON body, or with `stream: true` server-sent events that end with `[DONE]`. Nothing is "
        "stored. A failure after the first event is reported in the stream.",
        takes=CreateChat,
        example={"model": model, "messages": [{"role": "user", "content": "Hello!"}]},
        gives=ChatCompletion,
        streams=ChatChunk,
    )


COMPLETIONS_PATH = "/v1/completions"


def completions_route(service: Completions, limits: Limits, parts: PartCache, delivery: Delivery, model: str) -> Route:
    """`model`: the model name in the example."""
    return CompletionEndpoint(read_completion, service.create_completion, limits, parts, delivery).route(
        path=COMPLETIONS_PATH,
        summary="Create a completion",
        description="The prompt goes to the model unchanged, without a chat template. One JSON body, or with "
        "`stream: true` server-sent events that end with `[DONE]`.",
        takes=CreateCompletion,
        example={"model": model, "prompt": "Once upon a time", "max_tokens": 16},
        gives=Completion,
        streams=Completion,
    )


MESSAGES_PATH = "/v1/messages"

_PING = b'event: ping\ndata: {"type":"ping"}\n\n'
_MESSAGE_FORMAT = StreamFormat(sse.encode_events, lambda last: _PING, done=b"")


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
                path=MESSAGES_PATH,
                endpoint=self.create,
                summary="Create a message (Anthropic's API)",
                description="One JSON body, or with `stream: true` server-sent events. Errors have the format of that "
                "API: `{type: error, error: {type, message}, request_id}`.",
                takes=CreateMessage,
                example={**example, "max_tokens": 256},
                gives=AnthropicMessage,
                streams=AnthropicStreamEvent,
                new_work=True,
            ),
            Route(
                method="POST",
                path=f"{MESSAGES_PATH}/count_tokens",
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
        await self.delivery.reply(request, opened.run, opened.ignored, _MESSAGE_FORMAT if parsed.stream else None)

    async def count(self, request: Request) -> None:
        request.reply_headers.append((REQUEST_ID, request.id.encode()))
        parts = self.parts.for_tenant(request.tenant)
        parsed = await decode_body(await request.read_body(self.limits), read_count, self.limits, parts)
        counted = await self.service.count_message(request.tenant, parsed)
        request.ignored = counted.ignored
        await request.reply(200, encode(InputTokens(input_tokens=counted.tokens)))
