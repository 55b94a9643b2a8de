"""POST /v1/chat/completions: a stream of chunks that ends with `[DONE]`, or one JSON body, as `stream` says.

POST /v1/completions: a stream of pieces that ends with `[DONE]`, or one JSON body, as `stream` says.

What the endpoints of chat and completions share: a body is read, an exchange opened and delivered.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

from antiphon.core.dialects.chat.request import AskedChat, read_chat
from antiphon.core.dialects.completions.request import AskedCompletion, read_completion
from antiphon.limits import Limits
from antiphon.protocol.types.chat.request import CreateChat
from antiphon.protocol.types.chat.response import ChatChunk, ChatCompletion
from antiphon.protocol.types.completions import Completion, CreateCompletion
from antiphon.service.chat import Chat, Opened
from antiphon.service.completions import Completions
from antiphon.transport.http.request import Request, Route, decoded, note_user
from antiphon.transport.streaming.completion_delivery import ExchangeDelivery

A = TypeVar("A", bound=AskedChat | AskedCompletion)
Read = Callable[[bytes, Limits], A]
Open = Callable[[str, A], Awaitable[Opened]]  # for a tenant


class Dialogue(Generic[A]):
    def __init__(self, read: Read[A], open: Open[A], limits: Limits, ping_interval: float) -> None:
        self._read = read
        self._open = open
        self._limits = limits
        self._delivery = ExchangeDelivery(ping_interval)

    def route(self, **about: Any) -> Route:
        """`about`: what is particular to it."""
        errors = (400, 404, 413, 415, 429, 500, 503)
        return Route(method="POST", endpoint=self.create, new_work=True, errors=errors, **about)

    async def create(self, request: Request) -> None:
        asked = await decoded(await request.read_body(self._limits), self._read, self._limits)
        opened = await self._open(request.tenant, asked)
        request.ignored = opened.ignored
        note_user(request.id, asked.decoded.request)
        deliver = self._delivery.stream if asked.request.stream else self._delivery.result
        await deliver(request, opened.exchange)


PATH = "/v1/chat/completions"


def chat_route(service: Chat, limits: Limits, ping_interval: float, model: str) -> Route:
    """`model`: a name for the example."""
    return Dialogue(read_chat, service.create, limits, ping_interval).route(
        path=PATH,
        summary="Create a chat completion",
        description="One JSON body, or with `stream: true` server-sent events that end with `[DONE]`. Nothing is "
        "kept. A failure after the first words is told in the stream.",
        takes=CreateChat,
        example={"model": model, "messages": [{"role": "user", "content": "Hello!"}]},
        gives=ChatCompletion,
        streams=ChatChunk,
    )


COMPLETIONS_PATH = "/v1/completions"


def completions_route(service: Completions, limits: Limits, ping_interval: float, model: str) -> Route:
    """`model`: a name for the example."""
    return Dialogue(read_completion, service.create, limits, ping_interval).route(
        path=COMPLETIONS_PATH,
        summary="Create a completion",
        description="The prompt goes to the model as it is, without a chat template. One JSON body, or with "
        "`stream: true` server-sent events that end with `[DONE]`.",
        takes=CreateCompletion,
        example={"model": model, "prompt": "Once upon a time", "max_tokens": 16},
        gives=Completion,
        streams=Completion,
    )
