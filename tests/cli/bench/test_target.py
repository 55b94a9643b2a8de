"""What is heard of an answer over each API: pieces, usage, an end or a fault."""

from typing import Any

import pytest

from antiphon.cli.bench.target import CHAT, RESPONSES, Api, words

DONE = b'{"type":"response.completed","response":{"usage":{"input_tokens":3,"output_tokens":2},"output":[{"a":1}]}}'


def heard(api: Api, *events: bytes) -> tuple[Any, int]:
    reader = api.reader()
    return reader, reader.feed([api.decoder.decode(event) for event in events])


@pytest.mark.parametrize(
    "kind", ["output_text", "reasoning_text", "reasoning_summary_text", "refusal", "function_call_arguments"]
)
def test_every_delta_of_a_response_is_a_piece_and_nothing_else_is(kind: str) -> None:
    delta = b'{"type":"response.%s.delta","delta":"a"}' % kind.encode()
    reader, pieces = heard(RESPONSES, b'{"type":"response.created","response":{}}', delta, delta, b"{}", DONE)
    assert (pieces, reader.ended, reader.fault) == (2, True, None)
    assert (reader.input_tokens, reader.output_tokens) == (3, 2)


@pytest.mark.parametrize(
    ("event", "fault"),
    [
        (b'{"type":"error","message":"boom","code":"x"}', "boom"),
        (b'{"type":"error","error":{"message":"boom"}}', "boom"),
        (b'{"type":"response.failed","response":{"error":{"code":"server_error","message":"boom"}}}', "boom"),
        (b'{"type":"response.failed"}', "response.failed"),
    ],
)
def test_a_response_that_failed_says_why(event: bytes, fault: str) -> None:
    reader, _ = heard(RESPONSES, event)
    assert (reader.fault, reader.ended) == (fault, False)


@pytest.mark.parametrize("field", ["content", "reasoning_content", "reasoning", "refusal"])
def test_every_piece_of_a_chat_is_one_and_what_frames_it_is_not(field: str) -> None:
    piece = b'{"choices":[{"index":0,"delta":{"%s":"a"}}]}' % field.encode()
    reader, pieces = heard(
        CHAT,
        b'{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}],"usage":null}',
        piece,
        piece,
        b'{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}',
        b'{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}',
    )
    assert (pieces, reader.ended, reader.fault) == (2, True, None)
    assert (reader.input_tokens, reader.output_tokens) == (3, 2)


def test_a_chat_that_failed_says_why() -> None:
    assert heard(CHAT, b'{"error":{"message":"boom"}}')[0].fault == "boom"
    assert heard(CHAT, b'{"error":{}}')[0].fault == "it failed without a word"


@pytest.mark.parametrize(
    "error",
    ["no", {"error": {"message": "no"}}, {"message": " no "}, {"detail": "no"}, {"error": "no", "message": "x"}],
)
def test_servers_say_what_is_wrong_in_many_shapes(error: Any) -> None:
    assert words(error) == "no"


@pytest.mark.parametrize("error", [None, 7, [], {}, {"detail": [{"loc": "x"}]}, {"error": {"error": {"error": {}}}}])
def test_what_has_no_words_is_nothing(error: Any) -> None:
    assert words(error) == ""


def test_bodies_ask_for_a_stream_with_its_usage_and_keep_nothing() -> None:
    assert RESPONSES.body("m", "hi", 5) == {
        "model": "m", "stream": True, "input": "hi", "max_output_tokens": 5, "store": False,
    }  # fmt: skip
    assert CHAT.body("m", "hi", 5) == {
        "model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
