"""The Anthropic emitter: event streams and the messages they fold to, checked with the anthropic SDK."""

import json
from collections.abc import Iterable, Sequence
from itertools import count
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.deltas import (
    Break,
    CallDelta,
    CallDone,
    CallStarted,
    Delta,
    EncryptedReasoning,
    ReasoningDelta,
    Refusal,
    Summary,
    Text,
)
from antiphon.core.dialects.anthropic_emitter import AnthropicEmitter
from antiphon.core.dialects.anthropic_items import sign_thinking
from antiphon.core.dialects.anthropic_request import AnthropicRequest, read_message
from antiphon.core.dialects.dialect import Dialect
from antiphon.core.prompt import Chunk, EngineExtras, FinishKind, TokenCounts
from antiphon.errors import Busy, ContextTooLong, EngineFailed, Unavailable
from antiphon.ids import Prefix
from antiphon.limits import Limits
from antiphon.protocol.types.anthropic.events import AnthropicMessage
from antiphon.transport.streaming.sse import encode_events
from tests.oracles.anthropic import accumulate, check_event, check_message, check_stream, parse_message
from tests.parsers.cuts import CUTS, split_at

COUNTS = TokenCounts(input_tokens=12, cached_tokens=4, output_tokens=7, reasoning_tokens=2)
CALL: list[Delta] = [CallStarted(0, "f"), CallDelta(0, '{"a":'), CallDelta(0, " 1}"), CallDone(0)]


def make_request(**body: Any) -> AnthropicRequest:
    full_body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}], **body}
    return read_message(json.dumps(full_body).encode(), Limits())


def make_emitter(**body: Any) -> AnthropicEmitter:
    numbers = count()

    def new_id(prefix: Prefix) -> str:
        return f"{prefix}_{next(numbers)}"

    return AnthropicEmitter(AnthropicMessage(id="msg_1", model="m"), make_request(**body), new_id, "req_1")


def run_emitter(
    lists: Iterable[Sequence[Delta]], finish: FinishKind = "stop", counts: TokenCounts = COUNTS, **body: Any
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Run an emitter and return the event stream and the folded message, both checked."""
    dialect: Dialect = make_emitter(**body)
    events = dialect.begin()
    for deltas in lists:
        events += dialect.feed(deltas)
    events += dialect.end(finish, counts)
    events += dialect.close(counts)
    dialect.fold_events(events)
    stream: list[dict[str, Any]] = msgspec.to_builtins(events)
    message: dict[str, Any] = msgspec.to_builtins(dialect.result())
    check_stream(stream)
    check_message(message)
    assert accumulate(stream) == parse_message(message)
    return stream, message


def event_kinds(stream: list[dict[str, Any]]) -> list[str]:
    return [event.get("delta", {}).get("type") or event["type"] for event in stream]


@pytest.mark.shows("G.7")
def test_text_is_one_block_between_the_start_and_the_stop() -> None:
    stream, message = run_emitter([[Text("Hel")], [Text("lo"), Text("")]])
    assert event_kinds(stream) == [
        "message_start", "content_block_start", "text_delta", "text_delta", "content_block_stop", "message_delta",
        "message_stop",
    ]  # fmt: skip
    assert message["content"] == [{"type": "text", "text": "Hello"}]
    assert (message["stop_reason"], message["stop_sequence"]) == ("end_turn", None)


def test_cached_tokens_are_counted_separately() -> None:
    _, message = run_emitter([[Text("x")]])
    assert message["usage"] == {
        "input_tokens": 8,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 4,
        "output_tokens": 7,
        "output_tokens_details": {"thinking_tokens": 2},
    }


def test_reasoning_is_a_thinking_block_with_a_signature() -> None:
    stream, message = run_emitter([[ReasoningDelta("h"), Summary("m")], [Text("ok")]])
    assert event_kinds(stream)[1:6] == [
        "content_block_start", "thinking_delta", "thinking_delta", "signature_delta", "content_block_stop",
    ]  # fmt: skip
    assert message["content"][0]["thinking"] == "hm"
    assert message["content"][0]["signature"] == sign_thinking("hm")
    assert message["content"][1] == {"type": "text", "text": "ok"}


def test_omitted_thinking_has_only_a_signature() -> None:
    hidden = {"type": "adaptive", "display": "omitted"}
    stream, message = run_emitter([[ReasoningDelta("secret")], [Text("ok")]], thinking=hidden)
    assert message["content"][0]["thinking"] == ""
    assert message["content"][0]["signature"]
    assert "secret" not in json.dumps(stream)


def test_a_call_is_a_tool_use_block_with_an_object_as_input() -> None:
    stream, message = run_emitter([[Text("so")], CALL], "tool_calls")
    assert event_kinds(stream)[4:8] == [
        "content_block_start",
        "input_json_delta",
        "input_json_delta",
        "content_block_stop",
    ]
    assert message["content"][1] == {"type": "tool_use", "id": "toolu_0", "name": "f", "input": {"a": 1}}
    assert message["stop_reason"] == "tool_use"


def test_a_call_without_arguments_has_an_empty_input() -> None:
    _, message = run_emitter([[CallStarted(0, "f"), CallDelta(0, ""), CallDone(0)]], "stop")
    assert message["content"] == [{"type": "tool_use", "id": "toolu_0", "name": "f", "input": {}}]
    assert message["stop_reason"] == "tool_use"


def test_leading_whitespace_of_an_input_is_dropped_because_sdks_fail_on_it() -> None:
    stream, _ = run_emitter([[CallStarted(0, "f"), CallDelta(0, " \n"), CallDelta(0, ' {"a": 1}'), CallDone(0)]])
    assert [event["delta"] for event in stream if "index" in event and "delta" in event] == [
        {"type": "input_json_delta", "partial_json": '{"a": 1}'}
    ]


def test_overlapping_calls_are_emitted_sequentially() -> None:
    overlapping: list[Delta] = [
        CallStarted(0, "f"), CallStarted(1, "g"), CallStarted(2, "h"), CallDelta(1, "{}"), CallDelta(0, '{"a"'),
        CallDone(1), CallDelta(2, '{"c'), CallDelta(0, ":1}"), CallDone(0), CallDelta(2, '":3}'), CallDone(2),
    ]  # fmt: skip
    _, message = run_emitter([[delta] for delta in overlapping], "tool_calls")
    assert [(block["name"], block["input"]) for block in message["content"]] == [
        ("f", {"a": 1}), ("g", {}), ("h", {"c": 3}),
    ]  # fmt: skip


def test_a_finished_call_is_closed_before_other_output_arrives() -> None:
    stream, _ = run_emitter([CALL])
    emitter = make_emitter()
    emitter.begin()
    assert event_kinds(msgspec.to_builtins(emitter.feed(CALL))) == event_kinds(stream)[1:-2]


def test_a_second_call_with_the_key_of_an_open_one_ends_that_one() -> None:
    _, message = run_emitter([[*CALL[:3], *CALL]], "tool_calls")
    assert [block["input"] for block in message["content"]] == [{"a": 1}, {"a": 1}]


def test_deltas_without_an_event_in_this_api_are_ignored() -> None:
    _, message = run_emitter([[Text("a"), Break(), EncryptedReasoning("x"), Text("b")]])
    assert message["content"] == [{"type": "text", "text": "ab"}]


@pytest.mark.parametrize("arguments", ['{"city": "Par', '{"a": 1, "b', "{", "", '{"a": [1, 2'])
def test_a_truncated_call_has_the_parsable_part_of_its_input(arguments: str) -> None:
    _, message = run_emitter([[CallStarted(0, "f"), CallDelta(0, arguments)]], "length")
    assert message["stop_reason"] == "max_tokens"
    assert isinstance(message["content"][0]["input"], dict)


@pytest.mark.parametrize(("arguments", "finish"), [('{"a"', "stop"), ("[1]", "tool_calls"), ("oh!", "length")])
def test_an_input_that_is_not_an_object_fails(arguments: str, finish: FinishKind) -> None:
    with pytest.raises(EngineFailed, match="not a JSON object"):
        run_emitter([[CallStarted(0, "f"), CallDelta(0, arguments)]], finish)


def test_a_call_delta_after_other_output_fails() -> None:
    with pytest.raises(EngineFailed):
        run_emitter([[CallStarted(0, "f"), Text("x"), CallDelta(0, "{}")]])


def test_a_call_closed_by_text_accepts_a_late_call_done() -> None:
    _, message = run_emitter([[CallStarted(0, "f"), Text("x"), CallDone(0)]])
    assert [block["type"] for block in message["content"]] == ["tool_use", "text"]


def test_a_refusal_sets_the_stop_reason() -> None:
    _, message = run_emitter([[Refusal("No.")]])
    assert message["content"] == [{"type": "text", "text": "No."}]
    assert (message["stop_reason"], message["stop_details"]["type"]) == ("refusal", "refusal")
    assert run_emitter([[Text("x")]], "content_filter")[1]["stop_reason"] == "refusal"


def test_the_matched_stop_sequence_is_reported() -> None:
    dialect = make_emitter(stop_sequences=["END", "\n\n"])
    dialect.note(Chunk(extras=EngineExtras(stop_reason="END")))
    dialect.feed([Text("x")])
    dialect.end("stop", COUNTS)
    (delta, _) = msgspec.to_builtins(dialect.close(COUNTS))
    assert delta["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": "END"}


def test_an_unrequested_stop_is_reported_as_end_turn() -> None:
    dialect = make_emitter(stop_sequences=["END"])
    dialect.note(Chunk(extras=EngineExtras(stop_reason=2)))
    dialect.end("stop", COUNTS)
    assert msgspec.to_builtins(dialect.close(COUNTS))[0]["delta"]["stop_reason"] == "end_turn"


def test_an_empty_answer_has_no_content() -> None:
    assert run_emitter([])[1]["content"] == []


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (EngineFailed("It died."), "api_error"),
        (Busy("Full."), "rate_limit_error"),
        (Unavailable("Away."), "overloaded_error"),
        (ContextTooLong("Too long.", param="input"), "invalid_request_error"),
    ],
)
def test_a_failure_is_one_error_event(error: Any, kind: str) -> None:
    (event,) = msgspec.to_builtins(make_emitter().fail(error))
    check_event(event)
    assert (event["error"]["type"], event["request_id"]) == (kind, "req_1")
    assert event["error"]["message"].endswith(error.message)


def test_events_are_framed_with_their_names() -> None:
    dialect = make_emitter()
    body = encode_events([*dialect.begin(), *dialect.feed([Text("a"), Text("b")]), *dialect.end("stop", COUNTS)])  # type: ignore[list-item]  # any tagged struct
    for frame in body.decode().removesuffix("\n\n").split("\n\n"):
        name, data = frame.split("\n")
        assert name == f"event: {json.loads(data.removeprefix('data: '))['type']}"


_ARGUMENTS = json.dumps({"city": "Zürich 😀", "days": [1, {"x": None}], "note": 'a "b" \\ c'}, ensure_ascii=True)


@given(CUTS, CUTS, CUTS, st.booleans(), st.sampled_from(["stop", "tool_calls", "length"]))
def test_the_folded_message_does_not_depend_on_delta_boundaries(
    text_cuts: list[int], reasoning_cuts: list[int], call_cuts: list[int], together: bool, finish: FinishKind
) -> None:
    deltas: list[Delta] = [
        *[ReasoningDelta(piece) for piece in split_at("let me think 😀", reasoning_cuts)],
        *[Text(piece) for piece in split_at("Here: Zürich\u2028 <b>", text_cuts)],
        CallStarted(0, "weather"),
        *[CallDelta(0, piece) for piece in split_at(_ARGUMENTS, call_cuts)],
        CallDone(0),
    ]
    lists = [deltas] if together else [[delta] for delta in deltas]
    unsplit: list[Delta] = [
        ReasoningDelta("let me think 😀"),
        Text("Here: Zürich\u2028 <b>"),
        CallStarted(0, "weather"),
        CallDelta(0, _ARGUMENTS),
        CallDone(0),
    ]
    assert run_emitter(lists, finish)[1] == run_emitter([unsplit], finish)[1]


@st.composite
def _any_deltas(draw: st.DrawFn) -> list[Delta]:
    """Draw text, reasoning and arbitrarily overlapping calls; every call is done before the next text or reasoning."""
    deltas: list[Delta] = []
    for number in range(draw(st.integers(0, 4))):
        kind = draw(st.sampled_from(["text", "thought", "calls"]))
        if kind != "calls":
            deltas.append(
                Text(draw(st.text(max_size=3))) if kind == "text" else ReasoningDelta(draw(st.text(max_size=3)))
            )
            continue
        keys = [number * 3 + offset for offset in range(draw(st.integers(1, 3)))]
        queues: list[list[Delta]] = [
            [
                CallStarted(key, f"f{key}"),
                *[CallDelta(key, piece) for piece in split_at('{"a": "b"}', draw(CUTS))],
                CallDone(key),
            ]
            for key in keys
        ]
        while queues:
            queue = draw(st.sampled_from(queues))
            deltas.append(queue.pop(0))
            queues = [queue for queue in queues if queue]
    return deltas


@given(_any_deltas())
def test_any_deltas_give_sequential_blocks_that_fold_to_the_message(deltas: list[Delta]) -> None:
    _, message = run_emitter([[delta] for delta in deltas])
    calls = [block["input"] for block in message["content"] if block["type"] == "tool_use"]
    assert calls == [{"a": "b"}] * sum(isinstance(delta, CallStarted) for delta in deltas)
