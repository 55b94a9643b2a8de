"""Checks output of /v1/messages against the anthropic package: strict types, no unknown fields, and its accumulator."""

import json
from collections.abc import Iterable
from typing import Any, get_args

from anthropic._models import construct_type
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import Message, MessageTokensCount, RawMessageStreamEvent
from anthropic.types.shared.error_response import ErrorResponse
from pydantic import BaseModel, ValidationError

from tests.oracles.unknown_fields import find_unknown_fields, iter_model_classes


def check_message(message: dict[str, Any]) -> None:
    """Fail unless `message` matches the package's Message class and has no further fields."""
    _check(Message, message)


def check_count(body: dict[str, Any]) -> None:
    _check(MessageTokensCount, body)


def check_error(body: dict[str, Any]) -> None:
    """Fail unless `body` is a valid error, as a response body or as an event.

    The package has no class for `request_too_large`, a documented error type, so it is checked as another type.
    """
    if body["error"]["type"] == "request_too_large":
        body = {**body, "error": {**body["error"], "type": "invalid_request_error"}}
    _check(ErrorResponse, body)


def check_event(event: dict[str, Any]) -> None:
    kind = event.get("type")
    if kind == "ping":
        assert event == {"type": "ping"}
    elif kind == "error":
        check_error(event)
    else:
        assert kind in _EVENTS, f"{kind!r} is not an event of the anthropic package"
        _check(_EVENTS[kind], event)


def check_stream(events: list[dict[str, Any]]) -> None:
    """Check every event, that content blocks open and close one after the other, and that the stream ends once."""
    index = -1
    is_open = False
    for event in events:
        check_event(event)
        match event["type"]:
            case "content_block_start":
                assert not is_open
                index, is_open = index + 1, True
                assert event["index"] == index
            case "content_block_delta":
                assert is_open
                assert event["index"] == index
            case "content_block_stop":
                assert is_open
                assert event["index"] == index
                is_open = False
    types = [event["type"] for event in events if event["type"] != "ping"]
    if types[-1] != "error":
        assert not is_open
        assert (types[0], types[-2:]) == ("message_start", ["message_delta", "message_stop"])
        assert [types.count(kind) for kind in ("message_start", "message_delta", "message_stop")] == [1, 1, 1]


def accumulate(events: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return the message that the package accumulates from a complete stream."""
    snapshot: Any = None
    buffers: dict[int, bytes] = {}
    for event in events:
        if event["type"] in ("ping", "error"):
            continue
        typed: Any = construct_type(type_=RawMessageStreamEvent, value=event)
        snapshot = accumulate_event(event=typed, current_snapshot=snapshot, json_bufs=buffers)
    return to_dict_without_nulls(snapshot)


def to_dict_without_nulls(message: BaseModel) -> dict[str, Any]:
    """Return the fields of `message` that are not null."""
    fields: dict[str, Any] = message.to_dict(exclude_none=True)  # type: ignore[attr-defined]  # method of the package's models
    return fields


def parse_message(message: dict[str, Any]) -> dict[str, Any]:
    """Return a JSON body as the package parses it."""
    typed: Any = construct_type(type_=Message, value=message)
    return to_dict_without_nulls(typed)


def _check(cls: type[BaseModel], value: dict[str, Any]) -> None:
    try:
        model = cls.model_validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        raise AssertionError(f"{cls.__name__} rejects {json.dumps(value)[:2000]}\n{error}") from None
    unknown = sorted(find_unknown_fields(model, cls.__name__))
    assert not unknown, f"fields that the anthropic package does not know: {unknown}"


_EVENTS = {get_args(cls.model_fields["type"].annotation)[0]: cls for cls in iter_model_classes(RawMessageStreamEvent)}
