"""Bytes to the body of a chat completion or a completion: bounded, decoded, normalised, typed and surveyed, as codec.py
does it. What only the translation can tell is checked there (core/dialects/chat/request.py)."""

from typing import Any, Generic, TypeVar

from msgspec import Struct

from antiphon.limits import Limits
from antiphon.protocol.decoding.checks import check_count
from antiphon.protocol.decoding.codec import Shape, decode_object
from antiphon.protocol.decoding.normalise import drop_nulls
from antiphon.protocol.types.chat.request import CreateChat
from antiphon.protocol.types.chat.sampling import Generation
from antiphon.protocol.types.completions import CreateCompletion
from antiphon.protocol.types.tools import Json

T = TypeVar("T", bound=Generation)

_chat = Shape(CreateChat)
_completion = Shape(CreateCompletion)


class DecodedGeneration(Struct, Generic[T], frozen=True):
    request: T
    sent: frozenset[str]  # names of the fields that were there; a null is not
    ignored: list[str]  # names of fields that nobody knows


def decode_chat(body: bytes, limits: Limits) -> DecodedGeneration[CreateChat]:
    raw = decode_object(body, limits)
    check_count(raw.get("messages"), "messages", limits.items)
    check_count(raw.get("logit_bias"), "logit_bias", limits.biases)
    _chat.long_words.check(raw, len(body))
    _normalise(raw)
    request, ignored = _chat.read(raw, limits)
    return DecodedGeneration(request, frozenset(raw), ignored)


def decode_completion(body: bytes, limits: Limits) -> DecodedGeneration[CreateCompletion]:
    raw = decode_object(body, limits)
    check_count(raw.get("logit_bias"), "logit_bias", limits.biases)
    _completion.long_words.check(raw, len(body))
    _drop_nulls(raw)
    request, ignored = _completion.read(raw, limits)
    return DecodedGeneration(request, frozenset(raw), ignored)


def _normalise(body: Json) -> None:
    """The lenient spots. What is of an unexpected type is left alone, so that the check names it."""
    _drop_nulls(body)
    normalise_messages(body.get("messages"))
    for tool in _objects(body.get("tools")):
        for held in tool.values():
            if type(held) is dict:
                drop_nulls(held)
    for function in _objects(body.get("functions")):
        drop_nulls(function)


def normalise_messages(messages: Any) -> None:
    for message in _objects(messages):
        drop_nulls(message)
        for part in _objects(message.get("content")):
            drop_nulls(part)
            if part.get("type") == "image_url" and type(part.get("image_url")) is str:
                part["image_url"] = {"url": part["image_url"]}
        for call in _objects(message.get("tool_calls")):
            drop_nulls(call)
            call.setdefault("type", "function")


def _drop_nulls(body: Json) -> None:
    drop_nulls(body)
    if type(body.get("response_format")) is dict:
        drop_nulls(body["response_format"])


def _objects(values: Any) -> list[Json]:
    return [value for value in values if type(value) is dict] if type(values) is list else []
