"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's API, a stream or one JSON body as `stream` says.

Headers of that API (anthropic-version, anthropic-beta) are accepted and mean nothing here: fields say what is wanted.
"""

from antiphon.core.dialects.anthropic.request import read_count, read_message
from antiphon.errors import AntiphonError
from antiphon.limits import Limits
from antiphon.protocol.decoding.codec import encode
from antiphon.protocol.types.anthropic.events import InputTokens, SaidMessage, StreamedMessage
from antiphon.protocol.types.anthropic.request import CountTokens, CreateMessage
from antiphon.service.anthropic import Messages
from antiphon.transport.http.error_responses import REQUEST_ID
from antiphon.transport.http.request import Request, Route, decoded, note_user
from antiphon.transport.streaming import sse
from antiphon.transport.streaming.completion_delivery import ExchangeDelivery, Wording

PATH = "/v1/messages"

_PING = b'event: ping\ndata: {"type":"ping"}\n\n'
WORDING = Wording(frames=sse.frames, done=b"", keepalive=lambda last: _PING)


class MessagesEndpoint:
    def __init__(self, service: Messages, limits: Limits, ping_interval: float) -> None:
        self._service = service
        self._limits = limits
        self._delivery = ExchangeDelivery(ping_interval, WORDING)

    def routes(self, model: str) -> list[Route]:
        """`model`: a name for the examples."""
        example = {"model": model, "messages": [{"role": "user", "content": "Hello!"}]}
        errors = (400, 404, 413, 415, 429, 500, 503)
        return [
            Route(
                method="POST",
                path=PATH,
                endpoint=self.create,
                summary="Create a message, as Anthropic's API does",
                description="One JSON body, or with `stream: true` server-sent events. Errors have the shape of that "
                "API: `{type: error, error: {type, message}, request_id}`.",
                takes=CreateMessage,
                example={**example, "max_tokens": 256},
                gives=SaidMessage,
                streams=StreamedMessage,
                new_work=True,
                errors=errors,
            ),
            Route(
                method="POST",
                path=f"{PATH}/count_tokens",
                endpoint=self.count,
                summary="Count the tokens of a message's prompt, as Anthropic's API does",
                takes=CountTokens,
                example=example,
                gives=InputTokens,
                new_work=True,
                errors=errors,
            ),
        ]

    async def create(self, request: Request) -> None:
        request.reply_headers.append((REQUEST_ID, request.id.encode()))
        asked = await decoded(await request.read_body(self._limits), read_message, self._limits)
        opened = await self._service.create(request.tenant, asked, request.id)
        request.ignored = opened.ignored
        note_user(request.id, asked.decoded.request)
        try:
            if asked.stream:
                await self._delivery.stream(request, opened.exchange)
            else:
                await self._delivery.result(request, opened.exchange)
        except AntiphonError as error:
            raise asked.names.told(error) from error

    async def count(self, request: Request) -> None:
        request.reply_headers.append((REQUEST_ID, request.id.encode()))
        asked = await decoded(await request.read_body(self._limits), read_count, self._limits)
        counted = await self._service.count(request.tenant, asked)
        request.ignored = counted.ignored
        await request.reply(200, encode(InputTokens(input_tokens=counted.tokens)))
