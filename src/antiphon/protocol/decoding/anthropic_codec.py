"""Decoding of requests of Anthropic's Messages API, with the same steps as in decoding/codec.py."""

from typing import Any, Generic, TypeVar

from msgspec import Struct

from antiphon.limits import Limits
from antiphon.protocol.decoding.checks import check_count
from antiphon.protocol.decoding.codec import RequestDecoder, decode_object
from antiphon.protocol.decoding.normalise import drop_nulls
from antiphon.protocol.types.anthropic.request import CountTokens, CreateMessage
from antiphon.protocol.types.tools import Json

T = TypeVar("T", bound=CountTokens)

_create_decoder = RequestDecoder(CreateMessage)
_count_decoder = RequestDecoder(CountTokens)


class DecodedAnthropicRequest(Struct, Generic[T], frozen=True):
    request: T
    sent: frozenset[str]  # names of the fields that were sent, except those with null
    ignored: list[str]  # names of fields without effect


def decode_anthropic_message(body: bytes, limits: Limits) -> DecodedAnthropicRequest[CreateMessage]:
    return _decode(_create_decoder, body, limits)


def decode_anthropic_count(body: bytes, limits: Limits) -> DecodedAnthropicRequest[CountTokens]:
    return _decode(_count_decoder, body, limits)


def _decode(decoder: RequestDecoder[T], body: bytes, limits: Limits) -> DecodedAnthropicRequest[T]:
    raw = decode_object(body, limits)
    check_count(raw.get("messages"), "messages", limits.items)
    decoder.enum_bounds.check(raw, len(body))
    _normalise(raw)
    request, ignored = decoder.convert(raw, limits)
    return DecodedAnthropicRequest(request, frozenset(raw), ignored)


def _normalise(body: Json) -> None:
    """Drop nulls and convert strings to lists of one text block. Values of unexpected types are left to the type
    check.
    """
    drop_nulls(body)
    if type(body.get("system")) is str:
        body["system"] = [_make_text_block(body["system"])]
    for message in _filter_objects(body.get("messages")):
        if type(message.get("content")) is str:
            message["content"] = [_make_text_block(message["content"])]
    for name in ("system", "messages", "tools"):
        for entry in _filter_objects(body.get(name)):
            _drop_nested_nulls(entry)
    for name in ("tool_choice", "thinking", "metadata", "output_config"):
        if type(body.get(name)) is dict:
            drop_nulls(body[name])


def _drop_nested_nulls(value: Json) -> None:
    """Drop nulls in nested content, but not in free-form JSON such as tool inputs and schemas."""
    drop_nulls(value)
    for name, entry in value.items():
        if name == "content":
            for block in _filter_objects(entry):
                _drop_nested_nulls(block)
        elif name == "source" and type(entry) is dict:
            _drop_nested_nulls(entry)


def _filter_objects(values: Any) -> list[Json]:
    return [value for value in values if type(value) is dict] if type(values) is list else []


def _make_text_block(text: str) -> Json:
    return {"type": "text", "text": text}
