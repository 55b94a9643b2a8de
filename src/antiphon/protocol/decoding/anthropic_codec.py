"""Decoding of requests of Anthropic's Messages API, with the same steps as in decoding/codec.py."""

from msgspec import Struct

from antiphon.protocol.decoding.codec import RequestDecoder
from antiphon.protocol.decoding.normalise import drop_nulls, filter_objects
from antiphon.protocol.types.anthropic.request import CountTokens, CreateMessage, MessageTool
from antiphon.protocol.types.tools import Json


class _Tools(Struct):
    tools: list[MessageTool]


def _normalise(body: Json) -> None:
    """Drop nulls and convert strings to lists of one text block. Values of unexpected types are left to the type
    check.
    """
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


_COUNTS = {"messages": "items"}
_tools_decoder = RequestDecoder(_Tools, _normalise)

decode_anthropic_message = RequestDecoder(CreateMessage, _normalise, _COUNTS, ("tools",), _tools_decoder).decode
decode_anthropic_count = RequestDecoder(CountTokens, _normalise, _COUNTS, ("tools",), _tools_decoder).decode
