"""Decoding of the requests of other APIs (chat completions, completions, Anthropic's messages), with the same steps as
in decoding/codec.py.

Checks that depend on the translation are part of it (core/dialects/).
"""

from typing import Any

from msgspec import Struct

from antiphon.protocol.decoding.codec import RequestDecoder
from antiphon.protocol.decoding.normalise import drop_nulls, filter_objects
from antiphon.protocol.types.anthropic.request import CountTokens, CreateMessage, MessageTool
from antiphon.protocol.types.chat.request import CreateChat
from antiphon.protocol.types.completions import CreateCompletion
from antiphon.protocol.types.tools import Json


def _normalise_chat(body: Json) -> None:
    """Convert short forms in place. Values of unexpected types are left to the type check, which names them."""
    _drop_body_nulls(body)
    normalise_messages(body.get("messages"))
    for tool in filter_objects(body.get("tools")):
        for definition in tool.values():
            if type(definition) is dict:
                drop_nulls(definition)
    for function in filter_objects(body.get("functions")):
        drop_nulls(function)
    _normalise_allowed_tools(body.get("tool_choice"))


def _normalise_allowed_tools(choice: Any) -> None:
    """Nest names that are sent in the form of the Responses API, `{type, name}`."""
    for allowed in filter_objects([choice.get("allowed_tools") if type(choice) is dict else None]):
        for tool in filter_objects(allowed.get("tools")):
            kind = tool.setdefault("type", "function")
            if type(kind) is str and kind not in tool and "name" in tool:
                tool[kind] = {"name": tool.pop("name")}


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

decode_chat = RequestDecoder(CreateChat, _normalise_chat, _CHAT_COUNTS, ("tools",)).decode
decode_completion = RequestDecoder(CreateCompletion, _drop_body_nulls, _COMPLETION_COUNTS).decode


def _normalise_message(body: Json) -> None:
    """Drop nulls and convert strings to lists of one text block. The type check reports values of other types."""
    drop_nulls(body)
    if type(body.get("system")) is str:
        body["system"] = [_make_text_block(body["system"])]
    for message in filter_objects(body.get("messages")):
        if type(message.get("content")) is str:
            message["content"] = [_make_text_block(message["content"])]
    for name in ("system", "messages", "tools"):
        for entry in filter_objects(body.get(name)):
            _drop_nested_nulls(entry)
    for name in ("tool_choice", "thinking", "metadata", "output_config"):
        if type(body.get(name)) is dict:
            drop_nulls(body[name])


def _drop_nested_nulls(value: Json) -> None:
    """Drop nulls in nested content, but not in free-form JSON such as tool inputs and schemas."""
    drop_nulls(value)
    for name, entry in value.items():
        if name == "content":
            for block in filter_objects(entry):
                _drop_nested_nulls(block)
        elif name == "source" and type(entry) is dict:
            _drop_nested_nulls(entry)


def _make_text_block(text: str) -> Json:
    return {"type": "text", "text": text}


class _Tools(Struct):
    tools: list[MessageTool]


_MESSAGE_OPTIONS: Any = (
    _normalise_message,
    {"messages": "items"},
    ("tools",),
    RequestDecoder(_Tools, _normalise_message),
)

decode_anthropic_message = RequestDecoder(CreateMessage, *_MESSAGE_OPTIONS).decode
decode_anthropic_count = RequestDecoder(CountTokens, *_MESSAGE_OPTIONS).decode
