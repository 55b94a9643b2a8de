"""Decoding of requests of Anthropic's Messages API, with the same steps as in decoding/codec.py."""

from typing import Any, Generic, TypeVar

from msgspec import Struct

from antiphon.limits import Limits
from antiphon.protocol.decoding.checks import check_count
from antiphon.protocol.decoding.codec import RequestDecoder, add_parts, decode_fields, decode_part, read_parts
from antiphon.protocol.decoding.normalise import drop_nulls
from antiphon.protocol.decoding.part_cache import RequestPart, TenantParts
from antiphon.protocol.types.anthropic.request import CountTokens, CreateMessage, MessageTool
from antiphon.protocol.types.shared_list import SharedList
from antiphon.protocol.types.tools import Json

B = TypeVar("B", bound=Struct)
T = TypeVar("T", bound=CountTokens)

ANTHROPIC_PARTS = ("tools",)

_create_decoder = RequestDecoder(CreateMessage)
_count_decoder = RequestDecoder(CountTokens)


class _Tools(Struct):
    tools: list[MessageTool]


_tools_decoder = RequestDecoder(_Tools)


class DecodedAnthropicRequest(Struct, Generic[T], frozen=True):
    request: T
    sent: frozenset[str]  # names of the fields that were sent, except those with null
    ignored: list[str]  # names of fields without effect


def decode_anthropic_message(
    body: bytes, limits: Limits, cache: TenantParts | None = None
) -> DecodedAnthropicRequest[CreateMessage]:
    return _decode(_create_decoder, body, limits, cache)


def decode_anthropic_count(
    body: bytes, limits: Limits, cache: TenantParts | None = None
) -> DecodedAnthropicRequest[CountTokens]:
    return _decode(_count_decoder, body, limits, cache)


def _decode(
    decoder: RequestDecoder[T], body: bytes, limits: Limits, cache: TenantParts | None
) -> DecodedAnthropicRequest[T]:
    fields = decode_fields(body, limits, ANTHROPIC_PARTS)
    parts = read_parts(fields, limits, cache, _read_part)
    request, ignored = _read(decoder, fields.raw, len(body), limits)
    return DecodedAnthropicRequest(request, frozenset(fields.raw).union(parts), add_parts(request, ignored, parts))


def _read_part(name: str, limits: Limits, raw: bytes) -> RequestPart:
    """Decode the tools like a request that has no other field."""
    tools, ignored = _read(_tools_decoder, decode_part(name, raw, limits), len(raw), limits)
    return RequestPart(SharedList(tools.tools), ignored)


def _read(decoder: RequestDecoder[B], raw: Json, size: int, limits: Limits) -> tuple[B, list[str]]:
    check_count(raw.get("messages"), "messages", limits.items)
    decoder.check_enums(raw, size)
    _normalise(raw)
    return decoder.convert(raw, limits)


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
