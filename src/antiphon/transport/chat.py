"""POST /v1/chat/completions: a stream of chunks that ends with `[DONE]`, or one JSON body, as `stream` says."""

from antiphon.core.dialects.chat.request import read_chat
from antiphon.limits import Limits
from antiphon.protocol.types.chat.request import CreateChat
from antiphon.protocol.types.chat.response import ChatChunk, ChatCompletion
from antiphon.service.chat import Chat
from antiphon.transport.dialogue import Dialogue
from antiphon.transport.http import Route

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
