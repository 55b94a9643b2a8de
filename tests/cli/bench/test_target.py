"""The stream readers of each API that `antiphon bench` measures: content events, usage, end and errors."""

from typing import Any

import pytest

from antiphon.cli.bench.figures import Answer
from antiphon.cli.bench.target import CHAT, RESPONSES, BenchApi
from antiphon.engines.http.error_mapping import extract_message

DONE = b'{"type":"response.completed","response":{"usage":{"input_tokens":3,"output_tokens":2},"output":[{"a":1}]}}'


def feed_events(api: BenchApi, *events: bytes) -> tuple[Any, int]:
    answer = Answer(0.0)
    return answer, sum(api.read(answer, api.decoder.decode(event)) for event in events)


@pytest.mark.parametrize(
    "kind", ["output_text", "reasoning_text", "reasoning_summary_text", "refusal", "function_call_arguments"]
)
def test_only_deltas_of_a_response_count_as_content_events(kind: str) -> None:
    delta = b'{"type":"response.%s.delta","delta":"a"}' % kind.encode()
    answer, pieces = feed_events(RESPONSES, b'{"type":"response.created","response":{}}', delta, delta, b"{}", DONE)
    assert (pieces, answer.is_complete, answer.fault) == (2, True, None)
    assert (answer.input_tokens, answer.output_tokens) == (3, 2)


@pytest.mark.parametrize(
    ("event", "fault"),
    [
        (b'{"type":"error","message":"boom","code":"x"}', "boom"),
        (b'{"type":"error","error":{"message":"boom"}}', "boom"),
        (b'{"type":"response.failed","response":{"error":{"code":"server_error","message":"boom"}}}', "boom"),
        (b'{"type":"response.failed"}', "response.failed"),
    ],
)
def test_a_failed_response_reports_its_error(event: bytes, fault: str) -> None:
    answer, _ = feed_events(RESPONSES, event)
    assert (answer.fault, answer.is_complete) == (fault, False)


@pytest.mark.parametrize("field", ["content", "reasoning_content", "reasoning", "refusal"])
def test_only_content_chunks_of_a_chat_count_as_content_events(field: str) -> None:
    piece = b'{"choices":[{"index":0,"delta":{"%s":"a"}}]}' % field.encode()
    answer, pieces = feed_events(
        CHAT,
        b'{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}],"usage":null}',
        piece,
        piece,
        b'{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}',
        b'{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}',
    )
    assert (pieces, answer.is_complete, answer.fault) == (2, True, None)
    assert (answer.input_tokens, answer.output_tokens) == (3, 2)


def test_a_failed_chat_reports_its_error() -> None:
    assert feed_events(CHAT, b'{"error":{"message":"boom"}}')[0].fault == "boom"
    assert feed_events(CHAT, b'{"error":{}}')[0].fault == "it failed without an error message"


@pytest.mark.parametrize(
    "error",
    ["no", {"error": {"message": "no"}}, {"message": " no "}, {"detail": "no"}, {"error": "no", "message": "x"}],
)
def test_the_message_is_extracted_from_many_error_shapes(error: Any) -> None:
    assert extract_message(error) == "no"


@pytest.mark.parametrize("error", [None, 7, [], {}, {"detail": [{"loc": "x"}]}, {"error": {"error": {"error": {}}}}])
def test_an_error_without_a_message_yields_an_empty_text(error: Any) -> None:
    assert extract_message(error) == ""


def test_bodies_request_a_stream_with_usage_and_no_storage() -> None:
    assert RESPONSES.make_body("m", "hi", 5) == {
        "model": "m", "stream": True, "input": "hi", "max_output_tokens": 5, "store": False,
    }  # fmt: skip
    assert CHAT.make_body("m", "hi", 5) == {
        "model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
