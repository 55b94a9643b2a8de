"""POST /v1/chat/completions, /v1/completions, and Anthropic's /v1/messages and /v1/messages/count_tokens.

Each is a stream or one JSON body, as `stream` says. Those of chat and completions end with `[DONE]`. The headers of
Anthropic's API (anthropic-version, anthropic-beta) are accepted and have no effect.
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from msgspec import Struct

from antiphon.core.dialects.anthropic_request import read_count, read_message
from antiphon.core.dialects.chat_request import ChatRequest, read_chat
from antiphon.core.dialects.completions_request import CompletionRequest, read_completion
from antiphon.limits import Limits
from antiphon.protocol.decoding.part_cache import PartCache, TenantParts
from antiphon.protocol.types.anthropic.events import AnthropicMessage, AnthropicStreamEvent, InputTokens
from antiphon.protocol.types.anthropic.request import CountTokens, CreateMessage
from antiphon.protocol.types.chat.request import CreateChat
from antiphon.protocol.types.chat.response import ChatChunk, ChatCompletion
from antiphon.protocol.types.completions import Completion, CreateCompletion
from antiphon.service.completions import AcceptedCompletion, Completions
from antiphon.transport.http.error_responses import REQUEST_ID
from antiphon.transport.http.request import Request, log_user, read_json
from antiphon.transport.middleware.routing import Route
from antiphon.transport.streaming import sse
from antiphon.transport.streaming.delivery import Delivery
from antiphon.transport.streaming.event_writer import DATA_FORMAT, StreamFormat

A = TypeVar("A", bound=ChatRequest | CompletionRequest)
ReadBody = Callable[[bytes, Limits, TenantParts], A]
OpenRun = Callable[[str, A], Awaitable[AcceptedCompletion]]  # called with the tenant and the request

_PING = b'event: ping\ndata: {"type":"ping"}\n\n'
_MESSAGE_FORMAT = StreamFormat(sse.encode_events, lambda last: _PING, done=b"")


class CompletionsEndpoint(Struct, frozen=True):
    """Reads a body, opens a run for it and delivers the run."""

    service: Completions
    limits: Limits
    parts: PartCache
    delivery: Delivery

    @Route("POST", "/v1/chat/completions", takes=CreateChat, gives=ChatCompletion, streams=ChatChunk, new_work=True)
    async def create_chat(self, request: Request) -> None:
        """Create a chat completion. One JSON body, or with `stream: true` server-sent events that end with `[DONE]`.
        Nothing is stored. A failure after the first event is reported in the stream.
        """
        await self._create(request, read_chat, self.service.create_chat)

    @Route("POST", "/v1/completions", takes=CreateCompletion, gives=Completion, streams=Completion, new_work=True)
    async def create_completion(self, request: Request) -> None:
        """Create a completion. The prompt goes to the model unchanged, without a chat template. One JSON body, or with
        `stream: true` server-sent events that end with `[DONE]`.
        """
        await self._create(request, read_completion, self.service.create_completion)

    @Route(
        "POST", "/v1/messages", takes=CreateMessage, gives=AnthropicMessage, streams=AnthropicStreamEvent, new_work=True
    )
    async def create_message(self, request: Request) -> None:
        """Create a message (Anthropic's API). One JSON body, or with `stream: true` server-sent events. Errors have the
        format of that API: `{type: error, error: {type, message}, request_id}`.
        """
        request.reply_headers.append((REQUEST_ID, request.id.encode()))
        parsed = await read_json(request, read_message, self.limits, self.parts.for_tenant(request.tenant))
        run, ignored = await self.service.create_message(request.tenant, parsed, request.id)
        log_user(request.id, parsed.decoded.request)
        await self.delivery.reply(request, run, ignored, _MESSAGE_FORMAT if parsed.stream else None)

    @Route("POST", "/v1/messages/count_tokens", takes=CountTokens, new_work=True)
    async def count_message(self, request: Request) -> InputTokens:
        """Count the tokens of a message's prompt (Anthropic's API)."""
        request.reply_headers.append((REQUEST_ID, request.id.encode()))
        parsed = await read_json(request, read_count, self.limits, self.parts.for_tenant(request.tenant))
        tokens, request.ignored = await self.service.count_message(request.tenant, parsed)
        return InputTokens(input_tokens=tokens)

    async def _create(self, request: Request, read: ReadBody[A], open_run: OpenRun[A]) -> None:
        parsed = await read_json(request, read, self.limits, self.parts.for_tenant(request.tenant))
        run, ignored = await open_run(request.tenant, parsed)
        log_user(request.id, parsed.decoded.request)
        await self.delivery.reply(request, run, ignored, DATA_FORMAT if parsed.request.stream else None)
