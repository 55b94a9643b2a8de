"""The judge itself: it must be able to say no."""

import json
from typing import Any

import pytest

from antiphon.protocol.decoding.codec import encode
from antiphon.protocol.types.response import Response, ResponseError, Usage
from tests.oracles.responses import accumulate, check_event, check_response

ID = "resp_1"


def response(status: str, output: list[Any], **fields: Any) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(encode(Response(id=ID, created_at=1, model="m", usage=Usage())))
    return made | {"status": status, "output": output} | fields


def part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def message(status: str, *content: Any) -> dict[str, Any]:
    return {"type": "message", "id": "msg_1", "role": "assistant", "status": status, "content": [*content]}


def stream(terminal: str = "completed", status: str = "completed") -> list[dict[str, Any]]:
    where = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    done = message("completed", part("Hi"))
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": response("in_progress", [])},
        {"type": "response.in_progress", "response": response("in_progress", [])},
        {"type": "response.output_item.added", "output_index": 0, "item": message("in_progress")},
        {"type": "response.content_part.added", **where, "part": part("")},
        {"type": "response.output_text.delta", **where, "delta": "Hi", "logprobs": []},
        {"type": "response.output_text.done", **where, "text": "Hi", "logprobs": []},
        {"type": "response.content_part.done", **where, "part": part("Hi")},
        {"type": "response.output_item.done", "output_index": 0, "item": done},
        {"type": f"response.{terminal}", "response": response(status, [done])},
    ]
    return [event | {"sequence_number": number} for number, event in enumerate(events)]


@pytest.mark.parametrize(
    ("terminal", "status"),
    [("completed", "completed"), ("incomplete", "incomplete"), ("incomplete", "cancelled"), ("failed", "failed")],
)
def test_a_good_stream_is_taken_whatever_way_it_ends(terminal: str, status: str) -> None:
    events = stream(terminal, status)
    for event in events:
        check_event(event)
    assert accumulate(events).status == status
    assert accumulate(events).output_text == "Hi"


def test_a_keepalive_is_taken_between_events() -> None:
    events = stream()
    events.insert(4, {"type": "keepalive", "sequence_number": 3})
    check_event(events[4])
    assert accumulate(events).status == "completed"


@pytest.mark.parametrize("missing", [0, 2, 3, 7, 8])
def test_a_stream_that_lacks_an_event_is_refused(missing: int) -> None:
    events = stream()
    del events[missing]
    if missing == 7:  # nor may the final response say that the item was never there
        events[-1]["response"]["output"] = []
    with pytest.raises((AssertionError, RuntimeError, IndexError)):
        accumulate(events)


def test_a_stream_whose_ids_change_is_refused() -> None:
    events = stream()
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
        {"type": "response.output_item.done", "sequence_number": 0, "output_index": 0, "item": message("done")},
        {"type": "response.completed", "sequence_number": 0, "response": {"id": "resp_1"}},
    ],
    ids=str,
)
def test_an_event_that_openai_would_not_know_is_refused(event: dict[str, Any]) -> None:
    with pytest.raises(AssertionError):
        check_event(event)


def test_invented_fields_are_found_however_deep() -> None:
    with pytest.raises(AssertionError, match=r"output\[0\].content\[0\].mood"):
        check_response(response("completed", [message("completed", part("Hi") | {"mood": "good"})]))


def test_our_own_error_codes_are_taken_but_not_numbers() -> None:
    error = ResponseError(code="context_length_exceeded", message="too long", type="invalid_request_error")
    check_response(response("failed", [], error={"code": error.code, "message": error.message, "type": error.type}))
    with pytest.raises(AssertionError):
        check_response(response("failed", [], error={"code": 400, "message": "no"}))
