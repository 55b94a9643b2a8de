"""POST /v1/chat/completions: a stream of chunks that ends with `[DONE]`, or one JSON body, as `stream` says.

Both are the same exchange.
"""

from antiphon.core.from_chat import read_chat
from antiphon.limits import Limits
from antiphon.protocol.chat import CreateChat
from antiphon.protocol.chat_answers import ChatChunk, ChatCompletion
from antiphon.service.chat import Chat
from antiphon.transport.decoding import decoded
from antiphon.transport.exchanges import ExchangeDelivery
from antiphon.transport.http import Request, Route

PATH = "/v1/chat/completions"


class ChatEndpoint:
    def __init__(self, service: Chat, limits: Limits, delivery: ExchangeDelivery) -> None:
        self._service = service
        self._limits = limits
        self._delivery = delivery

    def route(self, model: str) -> Route:
        """`model`: a name for the example."""
        return Route(
            method="POST",
            path=PATH,
            endpoint=self.create,
            summary="Create a chat completion",
            description="One JSON body, or with `stream: true` server-sent events that end with `[DONE]`. Nothing is "
            "kept. A failure after the first words is told in the stream.",
            takes=CreateChat,
            example={"model": model, "messages": [{"role": "user", "content": "Hello!"}]},
            gives=ChatCompletion,
            streams=ChatChunk,
            new_work=True,
            errors=(400, 404, 413, 415, 429, 500, 503),
        )

    async def create(self, request: Request) -> None:
        asked = await decoded(await request.read_body(self._limits), read_chat, self._limits)
        opened = await self._service.create(request.tenant, asked)
        request.ignored = opened.ignored
        if asked.request.stream:
            await self._delivery.stream(request, opened.exchange)
        else:
            await self._delivery.result(request, opened.exchange)
