"""Tests the checks of `tests/oracles/responses.py` themselves: they accept valid streams and reject invalid ones."""

import json
from typing import Any

import pytest

from antiphon.protocol.decoding.codec import encode
from antiphon.protocol.types.response import Response, ResponseError, Usage
from tests.oracles.responses import accumulate, check_event, check_response

ID = "resp_1"


def make_response(status: str, output: list[Any], **fields: Any) -> dict[str, Any]:
    defaults: dict[str, Any] = json.loads(encode(Response(id=ID, created_at=1, model="m", usage=Usage())))
    return defaults | {"status": status, "output": output} | fields


def make_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def make_message(status: str, *content: Any) -> dict[str, Any]:
    return {"type": "message", "id": "msg_1", "role": "assistant", "status": status, "content": [*content]}


def make_stream(terminal: str = "completed", status: str = "completed") -> list[dict[str, Any]]:
    position = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    done = make_message("completed", make_part("Hi"))
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": make_response("in_progress", [])},
        {"type": "response.in_progress", "response": make_response("in_progress", [])},
        {"type": "response.output_item.added", "output_index": 0, "item": make_message("in_progress")},
        {"type": "response.content_part.added", **position, "part": make_part("")},
        {"type": "response.output_text.delta", **position, "delta": "Hi", "logprobs": []},
        {"type": "response.output_text.done", **position, "text": "Hi", "logprobs": []},
        {"type": "response.content_part.done", **position, "part": make_part("Hi")},
        {"type": "response.output_item.done", "output_index": 0, "item": done},
        {"type": f"response.{terminal}", "response": make_response(status, [done])},
    ]
    return [event | {"sequence_number": number} for number, event in enumerate(events)]


@pytest.mark.parametrize(
    ("terminal", "status"),
    [("completed", "completed"), ("incomplete", "incomplete"), ("incomplete", "cancelled"), ("failed", "failed")],
)
def test_a_valid_stream_is_accepted_with_every_terminal_event(terminal: str, status: str) -> None:
    events = make_stream(terminal, status)
    for event in events:
        check_event(event)
    assert accumulate(events).status == status
    assert accumulate(events).output_text == "Hi"


def test_a_keepalive_between_events_is_accepted() -> None:
    events = make_stream()
    events.insert(4, {"type": "keepalive", "sequence_number": 3})
    check_event(events[4])
    assert accumulate(events).status == "completed"


@pytest.mark.parametrize("missing", [0, 2, 3, 7, 8])
def test_a_stream_with_a_missing_event_is_rejected(missing: int) -> None:
    events = make_stream()
    del events[missing]
    if missing == 7:  # must fail even if the final response lists no output
        events[-1]["response"]["output"] = []
    with pytest.raises((AssertionError, RuntimeError, IndexError)):
        accumulate(events)


def test_a_stream_with_changing_ids_is_rejected() -> None:
    events = make_stream()
    events[7]["item"] = events[7]["item"] | {"id": "msg_2"}
    with pytest.raises(RuntimeError, match="identity"):
        accumulate(events)


@pytest.mark.parametrize(
    "event",
    [
        {"type": "response.thinking", "sequence_number": 0},
        {"type": "keepalive", "sequence_number": 0, "note": "x"},
        {"type": "response.audio.done", "sequence_number": 0, "note": "x"},
        {"type": "response.audio.done", "sequence_number": "0"},
        {"type": "response.audio.done"},
        {"type": "response.output_item.done", "sequence_number": 0, "output_index": 0, "item": {"type": "riddle"}},
        {"type": "response.output_item.done", "sequence_number": 0, "output_index": 0, "item": make_message("done")},
        {"type": "response.completed", "sequence_number": 0, "response": {"id": "resp_1"}},
    ],
    ids=str,
)
def test_an_event_outside_the_openai_types_is_rejected(event: dict[str, Any]) -> None:
    with pytest.raises(AssertionError):
        check_event(event)


def test_unknown_fields_are_found_at_any_depth() -> None:
    with pytest.raises(AssertionError, match=r"output\[0\].content\[0\].mood"):
        check_response(make_response("completed", [make_message("completed", make_part("Hi") | {"mood": "good"})]))


def test_own_error_codes_are_accepted_but_numeric_codes_are_rejected() -> None:
    error = ResponseError(code="context_length_exceeded", message="too long", type="invalid_request_error")
    check_response(
        make_response("failed", [], error={"code": error.code, "message": error.message, "type": error.type})
    )
    with pytest.raises(AssertionError):
        check_response(make_response("failed", [], error={"code": 400, "message": "no"}))
