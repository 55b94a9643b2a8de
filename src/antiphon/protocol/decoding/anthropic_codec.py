"""Bytes to a request of Anthropic's API: bounded, decoded, normalised, typed and surveyed, as codec.py does it."""

from typing import Any, Generic, TypeVar

from msgspec import Struct

from antiphon.limits import Limits
from antiphon.protocol.decoding.checks import check_count
from antiphon.protocol.decoding.codec import Shape, decode_object
from antiphon.protocol.decoding.normalise import drop_nulls
from antiphon.protocol.types.anthropic.request import CountTokens, CreateMessage
from antiphon.protocol.types.tools import Json

T = TypeVar("T", bound=CountTokens)

_create = Shape(CreateMessage)
_count = Shape(CountTokens)


class DecodedMessages(Struct, Generic[T], frozen=True):
    request: T
    sent: frozenset[str]  # names of the fields that were there; a null is not
    ignored: list[str]  # names of fields that mean nothing here


def decode_message(body: bytes, limits: Limits) -> DecodedMessages[CreateMessage]:
    return _decode(_create, body, limits)


def decode_count(body: bytes, limits: Limits) -> DecodedMessages[CountTokens]:
    return _decode(_count, body, limits)


def _decode(shape: Shape[T], body: bytes, limits: Limits) -> DecodedMessages[T]:
    raw = decode_object(body, limits)
    check_count(raw.get("messages"), "messages", limits.items)
    shape.long_words.check(raw, len(body))
    _normalise(raw)
    request, ignored = shape.read(raw, limits)
    return DecodedMessages(request, frozenset(raw), ignored)


def _normalise(body: Json) -> None:
    """Nulls are nothing, and a string is a list of one text block. What is of an unexpected type is left alone."""
    drop_nulls(body)
    if type(body.get("system")) is str:
        body["system"] = [_text(body["system"])]
    for message in _objects(body.get("messages")):
        if type(message.get("content")) is str:
            message["content"] = [_text(message["content"])]
    for name in ("system", "messages", "tools"):
        for held in _objects(body.get(name)):
            _deep_drop(held)
    for name in ("tool_choice", "thinking", "metadata", "output_config"):
        if type(body.get(name)) is dict:
            drop_nulls(body[name])


def _deep_drop(value: Json) -> None:
    """Not within what clients wrote for others: inputs of tools and schemas."""
    drop_nulls(value)
    for name, held in value.items():
        if name == "content":
            for block in _objects(held):
                _deep_drop(block)
        elif name == "source" and type(held) is dict:
            _deep_drop(held)


def _objects(values: Any) -> list[Json]:
    return [value for value in values if type(value) is dict] if type(values) is list else []


def _text(text: str) -> Json:
    return {"type": "text", "text": text}
