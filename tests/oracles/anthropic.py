"""The anthropic package as the judge of what /v1/messages sends: strict types, invented fields, its accumulator."""

import json
from collections.abc import Iterable
from typing import Any, get_args

from anthropic._models import construct_type
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import Message, MessageTokensCount, RawMessageStreamEvent
from anthropic.types.shared.error_response import ErrorResponse
from pydantic import BaseModel, ValidationError

from tests.oracles.unknown_fields import classes, invented


def check_message(message: dict[str, Any]) -> None:
    """Fail unless it is what the package's Message says, and nothing more."""
    _check(Message, message)


def check_count(body: dict[str, Any]) -> None:
    _check(MessageTokensCount, body)


def check_problem(body: dict[str, Any]) -> None:
    """The same for an error, as a body or an event. The package has no class for one of the documented types."""
    if body["error"]["type"] == "request_too_large":
        body = {**body, "error": {**body["error"], "type": "invalid_request_error"}}
    _check(ErrorResponse, body)


def check_event(event: dict[str, Any]) -> None:
    kind = event.get("type")
    if kind == "ping":
        assert event == {"type": "ping"}
    elif kind == "error":
        check_problem(event)
    else:
        assert kind in _EVENTS, f"{kind!r} is not an event of the anthropic package"
        _check(_EVENTS[kind], event)


def check_stream(events: list[dict[str, Any]]) -> None:
    """Each event by itself; and that they open and close one block after the other, and end once."""
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
    kinds = [event["type"] for event in events if event["type"] != "ping"]
    if kinds[-1] != "error":
        assert not is_open
        assert (kinds[0], kinds[-2:]) == ("message_start", ["message_delta", "message_stop"])
        assert [kinds.count(kind) for kind in ("message_start", "message_delta", "message_stop")] == [1, 1, 1]


def accumulate(events: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """What the package makes of a whole stream."""
    snapshot: Any = None
    buffers: dict[int, bytes] = {}
    for event in events:
        if event["type"] in ("ping", "error"):
            continue
        typed: Any = construct_type(type_=RawMessageStreamEvent, value=event)
        snapshot = accumulate_event(event=typed, current_snapshot=snapshot, json_bufs=buffers)
    return as_told(snapshot)


def as_told(message: BaseModel) -> dict[str, Any]:
    """Without what nobody said."""
    told: dict[str, Any] = message.to_dict(exclude_none=True)  # type: ignore[attr-defined]  # of the package's models
    return told


def read(message: dict[str, Any]) -> dict[str, Any]:
    """What the package makes of a JSON body."""
    typed: Any = construct_type(type_=Message, value=message)
    return as_told(typed)


def _check(cls: type[BaseModel], value: dict[str, Any]) -> None:
    try:
        model = cls.model_validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        raise AssertionError(f"{cls.__name__} refuses {json.dumps(value)[:2000]}\n{error}") from None
    unknown = sorted(invented(model, cls.__name__))
    assert not unknown, f"fields that the anthropic package does not know: {unknown}"


_EVENTS = {get_args(cls.model_fields["type"].annotation)[0]: cls for cls in classes(RawMessageStreamEvent)}
