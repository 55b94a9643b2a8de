"""Decoding of chat completion and completion requests, with the same steps as in decoding/codec.py.

Checks that depend on the translation are part of it (core/dialects/chat_request.py).
"""

from typing import Any, Generic, TypeVar

from msgspec import Struct

from antiphon.limits import Limits
from antiphon.protocol.decoding.checks import check_count
from antiphon.protocol.decoding.codec import (
    RequestDecoder,
    add_parts,
    decode_fields,
    decode_object,
    decode_part,
    read_parts,
)
from antiphon.protocol.decoding.normalise import drop_nulls
from antiphon.protocol.decoding.part_cache import RequestPart, TenantParts
from antiphon.protocol.types.chat.request import CreateChat
from antiphon.protocol.types.completions import CompletionFields, CreateCompletion
from antiphon.protocol.types.shared_list import SharedList
from antiphon.protocol.types.tools import Json

T = TypeVar("T", bound=CompletionFields)

CHAT_PARTS = ("tools",)

_chat_decoder = RequestDecoder(CreateChat)
_completion_decoder = RequestDecoder(CreateCompletion)


class DecodedCompletion(Struct, Generic[T], frozen=True):
    request: T
    sent: frozenset[str]  # names of the fields that were sent, except those with null
    ignored: list[str]  # names of unknown fields


def decode_chat(body: bytes, limits: Limits, cache: TenantParts | None = None) -> DecodedCompletion[CreateChat]:
    fields = decode_fields(body, limits, CHAT_PARTS)
    parts = read_parts(fields, limits, cache, _read_part)
    request, ignored = _read_chat(fields.raw, len(body), limits)
    return DecodedCompletion(request, frozenset(fields.raw).union(parts), add_parts(request, ignored, parts))


def _read_part(name: str, limits: Limits, raw: bytes) -> RequestPart:
    """Decode the tools like a request that has no other field."""
    request, ignored = _read_chat(decode_part(name, raw, limits), len(raw), limits)
    return RequestPart(SharedList(request.tools), ignored)


def _read_chat(raw: Json, size: int, limits: Limits) -> tuple[CreateChat, list[str]]:
    check_count(raw.get("messages"), "messages", limits.items)
    check_count(raw.get("logit_bias"), "logit_bias", limits.biases)
    _chat_decoder.check_enums(raw, size)
    _normalise(raw)
    return _chat_decoder.convert(raw, limits)


def decode_completion(body: bytes, limits: Limits) -> DecodedCompletion[CreateCompletion]:
    raw = decode_object(body, limits)
    check_count(raw.get("logit_bias"), "logit_bias", limits.biases)
    _completion_decoder.check_enums(raw, len(body))
    _drop_body_nulls(raw)
    request, ignored = _completion_decoder.convert(raw, limits)
    return DecodedCompletion(request, frozenset(raw), ignored)


def _normalise(body: Json) -> None:
    """Convert short forms in place. Values of unexpected types are left to the type check, which names them."""
    _drop_body_nulls(body)
    normalise_messages(body.get("messages"))
    for tool in _filter_objects(body.get("tools")):
        for definition in tool.values():
            if type(definition) is dict:
                drop_nulls(definition)
    for function in _filter_objects(body.get("functions")):
        drop_nulls(function)


def normalise_messages(messages: Any) -> None:
    for message in _filter_objects(messages):
        drop_nulls(message)
        for part in _filter_objects(message.get("content")):
            drop_nulls(part)
            if part.get("type") == "image_url" and type(part.get("image_url")) is str:
                part["image_url"] = {"url": part["image_url"]}
        for call in _filter_objects(message.get("tool_calls")):
            drop_nulls(call)
            call.setdefault("type", "function")


def _drop_body_nulls(body: Json) -> None:
    drop_nulls(body)
    if type(body.get("response_format")) is dict:
        drop_nulls(body["response_format"])


def _filter_objects(values: Any) -> list[Json]:
    return [value for value in values if type(value) is dict] if type(values) is list else []
