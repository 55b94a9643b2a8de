"""Decoding of chat completion and completion requests, with the same steps as in decoding/codec.py.

Checks that depend on the translation are part of it (core/dialects/chat_request.py).
"""

from typing import Any

from antiphon.protocol.decoding.codec import RequestDecoder
from antiphon.protocol.decoding.normalise import drop_nulls, filter_objects
from antiphon.protocol.types.chat.request import CreateChat
from antiphon.protocol.types.completions import CreateCompletion
from antiphon.protocol.types.tools import Json


def _normalise(body: Json) -> None:
    """Convert short forms in place. Values of unexpected types are left to the type check, which names them."""
    _drop_body_nulls(body)
    normalise_messages(body.get("messages"))
    for tool in filter_objects(body.get("tools")):
        for definition in tool.values():
            if type(definition) is dict:
                drop_nulls(definition)
    for function in filter_objects(body.get("functions")):
        drop_nulls(function)


def normalise_messages(messages: Any) -> None:
    for message in filter_objects(messages):
        drop_nulls(message)
        for part in filter_objects(message.get("content")):
            drop_nulls(part)
            if part.get("type") == "image_url" and type(part.get("image_url")) is str:
                part["image_url"] = {"url": part["image_url"]}
        for call in filter_objects(message.get("tool_calls")):
            drop_nulls(call)
            call.setdefault("type", "function")


def _drop_body_nulls(body: Json) -> None:
    drop_nulls(body)
    if type(body.get("response_format")) is dict:
        drop_nulls(body["response_format"])


_COMPLETION_COUNTS = {"logit_bias": "biases"}
_CHAT_COUNTS = {"messages": "items", **_COMPLETION_COUNTS}

decode_chat = RequestDecoder(CreateChat, _normalise, _CHAT_COUNTS, ("tools",)).decode
decode_completion = RequestDecoder(CreateCompletion, _drop_body_nulls, _COMPLETION_COUNTS).decode
