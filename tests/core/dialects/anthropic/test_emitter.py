import json
from collections.abc import Iterable, Sequence
from itertools import count
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.deltas import CallDelta, CallDone, CallStarted, Delta, Refusal, Summary, Text, Thought
from antiphon.core.dialects.anthropic.emitter import MessagesEmitter
from antiphon.core.dialects.anthropic.request import Asked, read_message
from antiphon.core.dialects.dialect import Dialect
from antiphon.core.prompt import Chunk, Counts, Extras, Finish
from antiphon.errors import Busy, ContextTooLong, EngineFailed, Unavailable
from antiphon.ids import Prefix
from antiphon.limits import Limits
from antiphon.protocol.types.anthropic.events import SaidMessage
from antiphon.transport.streaming.sse import frames
from tests.oracles.anthropic import accumulate, check_event, check_message, check_stream, read
from tests.parsers.cuts import CUTS, pieces

COUNTS = Counts(input_tokens=12, cached_tokens=4, output_tokens=7, reasoning_tokens=2)
CALL: list[Delta] = [CallStarted(0, "f"), CallDelta(0, '{"a":'), CallDelta(0, " 1}"), CallDone(0)]


def asked(**body: Any) -> Asked:
    given_body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}], **body}
    return read_message(json.dumps(given_body).encode(), Limits())


def emitter(**body: Any) -> MessagesEmitter:
    numbers = count()

    def new_id(prefix: Prefix) -> str:
        return f"{prefix}_{next(numbers)}"

    return MessagesEmitter(SaidMessage(id="msg_1", model="m"), asked(**body), new_id, "req_1")


def told(
    lists: Iterable[Sequence[Delta]], finish: Finish = "stop", counts: Counts = COUNTS, **body: Any
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """A whole stream, and the JSON body; both are judged."""
    dialect: Dialect = emitter(**body)
    events = dialect.begin()
    for deltas in lists:
        events += dialect.feed(deltas)
    events += dialect.end(finish, counts)
    events += dialect.close(counts)
    dialect.fold(events)
    stream: list[dict[str, Any]] = msgspec.to_builtins(events)
    message: dict[str, Any] = msgspec.to_builtins(dialect.result())
    check_stream(stream)
    check_message(message)
    assert accumulate(stream) == read(message)
    return stream, message


def kinds(stream: list[dict[str, Any]]) -> list[str]:
    return [event.get("delta", {}).get("type") or event["type"] for event in stream]


@pytest.mark.shows("G.7")
def test_text_is_one_block_between_the_start_and_the_stop() -> None:
    stream, message = told([[Text("Hel")], [Text("lo"), Text("")]])
    assert kinds(stream) == [
        "message_start", "content_block_start", "text_delta", "text_delta", "content_block_stop", "message_delta",
        "message_stop",
    ]  # fmt: skip
    assert message["content"] == [{"type": "text", "text": "Hello"}]
    assert (message["stop_reason"], message["stop_sequence"]) == ("end_turn", None)


def test_tokens_from_a_cache_are_counted_apart() -> None:
    _, message = told([[Text("x")]])
    assert message["usage"] == {
        "input_tokens": 8,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 4,
        "output_tokens": 7,
        "output_tokens_details": {"thinking_tokens": 2},
    }


def test_a_thought_is_a_block_of_its_own_with_a_signature() -> None:
    stream, message = told([[Thought("h"), Summary("m")], [Text("ok")]])
    assert kinds(stream)[1:6] == [
        "content_block_start", "thinking_delta", "thinking_delta", "signature_delta", "content_block_stop",
    ]  # fmt: skip
    assert message["content"][0]["thinking"] == "hm"
    assert message["content"][0]["signature"].startswith("antiphon-1-")
    assert message["content"][1] == {"type": "text", "text": "ok"}


def test_a_thought_that_is_not_to_be_shown_leaves_its_signature() -> None:
    hidden = {"type": "adaptive", "display": "omitted"}
    stream, message = told([[Thought("secret")], [Text("ok")]], thinking=hidden)
    assert message["content"][0]["thinking"] == ""
    assert message["content"][0]["signature"]
    assert "secret" not in json.dumps(stream)


def test_a_call_is_a_tool_use_whose_input_is_an_object() -> None:
    stream, message = told([[Text("so")], CALL], "tool_calls")
    assert kinds(stream)[4:8] == ["content_block_start", "input_json_delta", "input_json_delta", "content_block_stop"]
    assert message["content"][1] == {"type": "tool_use", "id": "toolu_0", "name": "f", "input": {"a": 1}}
    assert message["stop_reason"] == "tool_use"


def test_a_call_without_arguments_has_an_empty_input() -> None:
    _, message = told([[CallStarted(0, "f"), CallDelta(0, ""), CallDone(0)]], "stop")
    assert message["content"] == [{"type": "tool_use", "id": "toolu_0", "name": "f", "input": {}}]
    assert message["stop_reason"] == "tool_use"


def test_space_before_an_input_is_not_told_since_sdks_fail_on_it() -> None:
    stream, _ = told([[CallStarted(0, "f"), CallDelta(0, " \n"), CallDelta(0, ' {"a": 1}'), CallDone(0)]])
    assert [event["delta"] for event in stream if "index" in event and "delta" in event] == [
        {"type": "input_json_delta", "partial_json": '{"a": 1}'}
    ]


def test_calls_that_overlap_are_told_one_after_the_other() -> None:
    overlapping: list[Delta] = [
        CallStarted(0, "f"), CallStarted(1, "g"), CallStarted(2, "h"), CallDelta(1, "{}"), CallDelta(0, '{"a"'),
        CallDone(1), CallDelta(2, '{"c'), CallDelta(0, ":1}"), CallDone(0), CallDelta(2, '":3}'), CallDone(2),
    ]  # fmt: skip
    _, message = told([[delta] for delta in overlapping], "tool_calls")
    assert [(block["name"], block["input"]) for block in message["content"]] == [
        ("f", {"a": 1}), ("g", {}), ("h", {"c": 3}),
    ]  # fmt: skip


@pytest.mark.parametrize("arguments", ['{"city": "Par', '{"a": 1, "b', "{", "", '{"a": [1, 2'])
def test_a_call_that_was_cut_shows_what_is_whole_of_it(arguments: str) -> None:
    _, message = told([[CallStarted(0, "f"), CallDelta(0, arguments)]], "length")
    assert message["stop_reason"] == "max_tokens"
    assert isinstance(message["content"][0]["input"], dict)


@pytest.mark.parametrize(("arguments", "finish"), [('{"a"', "stop"), ("[1]", "tool_calls"), ("oh!", "length")])
def test_an_input_that_is_no_object_fails_the_same_way_in_a_stream_and_in_json(arguments: str, finish: Finish) -> None:
    with pytest.raises(EngineFailed, match="no JSON object"):
        told([[CallStarted(0, "f"), CallDelta(0, arguments)]], finish)


def test_a_call_that_goes_on_after_something_else_was_said_is_a_failure() -> None:
    with pytest.raises(EngineFailed):
        told([[CallStarted(0, "f"), Text("x"), CallDelta(0, "{}")]])


def test_a_call_that_was_closed_by_text_may_be_done_later() -> None:
    _, message = told([[CallStarted(0, "f"), Text("x"), CallDone(0)]])
    assert [block["type"] for block in message["content"]] == ["tool_use", "text"]


def test_a_refusal_says_so() -> None:
    _, message = told([[Refusal("No.")]])
    assert message["content"] == [{"type": "text", "text": "No."}]
    assert (message["stop_reason"], message["stop_details"]["type"]) == ("refusal", "refusal")
    assert told([[Text("x")]], "content_filter")[1]["stop_reason"] == "refusal"


def test_the_stop_sequence_that_ended_it_is_named() -> None:
    dialect = emitter(stop_sequences=["END", "\n\n"])
    assert dialect.notes
    dialect.note(Chunk(extras=Extras(stop_reason="END")))
    dialect.feed([Text("x")])
    dialect.end("stop", COUNTS)
    (delta, _) = msgspec.to_builtins(dialect.close(COUNTS))
    assert delta["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": "END"}


def test_a_stop_that_was_not_asked_for_is_the_end_of_the_turn() -> None:
    dialect = emitter(stop_sequences=["END"])
    dialect.note(Chunk(extras=Extras(stop_reason=2)))
    dialect.end("stop", COUNTS)
    assert msgspec.to_builtins(dialect.close(COUNTS))[0]["delta"]["stop_reason"] == "end_turn"
    assert not emitter().notes


def test_an_answer_of_nothing_has_no_content() -> None:
    assert told([])[1]["content"] == []


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
    (event,) = msgspec.to_builtins(emitter().fault(error))
    check_event(event)
    assert (event["error"]["type"], event["request_id"]) == (kind, "req_1")
    assert event["error"]["message"].endswith(error.message)


def test_events_are_framed_with_their_names() -> None:
    dialect = emitter()
    body = frames([*dialect.begin(), *dialect.feed([Text("a"), Text("b")]), *dialect.end("stop", COUNTS)])  # type: ignore[list-item]  # any tagged struct
    for frame in body.decode().removesuffix("\n\n").split("\n\n"):
        name, data = frame.split("\n")
        assert name == f"event: {json.loads(data.removeprefix('data: '))['type']}"


_ARGUMENTS = json.dumps({"city": "Zürich 😀", "days": [1, {"x": None}], "note": 'a "b" \\ c'}, ensure_ascii=True)


@given(CUTS, CUTS, CUTS, st.booleans(), st.sampled_from(["stop", "tool_calls", "length"]))
def test_every_cut_of_the_deltas_gives_a_stream_whose_fold_is_the_same_json(
    text_cuts: list[int], thought_cuts: list[int], call_cuts: list[int], together: bool, finish: Finish
) -> None:
    deltas: list[Delta] = [
        *[Thought(piece) for piece in pieces("let me think 😀", thought_cuts)],
        *[Text(piece) for piece in pieces("Here: Zürich\u2028 <b>", text_cuts)],
        CallStarted(0, "weather"),
        *[CallDelta(0, piece) for piece in pieces(_ARGUMENTS, call_cuts)],
        CallDone(0),
    ]
    lists = [deltas] if together else [[delta] for delta in deltas]
    whole: list[Delta] = [
        Thought("let me think 😀"), Text("Here: Zürich\u2028 <b>"), CallStarted(0, "weather"), CallDelta(0, _ARGUMENTS),
        CallDone(0),
    ]  # fmt: skip
    assert told(lists, finish)[1] == told([whole], finish)[1]


@st.composite
def _any_deltas(draw: st.DrawFn) -> list[Delta]:
    """Calls that overlap as they like; each is done before anything else is said."""
    said: list[Delta] = []
    for number in range(draw(st.integers(0, 4))):
        kind = draw(st.sampled_from(["text", "thought", "calls"]))
        if kind != "calls":
            said.append(Text(draw(st.text(max_size=3))) if kind == "text" else Thought(draw(st.text(max_size=3))))
            continue
        keys = [number * 3 + offset for offset in range(draw(st.integers(1, 3)))]
        queues: list[list[Delta]] = [
            [
                CallStarted(key, f"f{key}"),
                *[CallDelta(key, piece) for piece in pieces('{"a": "b"}', draw(CUTS))],
                CallDone(key),
            ]
            for key in keys
        ]
        while queues:
            queue = draw(st.sampled_from(queues))
            said.append(queue.pop(0))
            queues = [queue for queue in queues if queue]
    return said


@given(_any_deltas())
def test_whatever_is_said_blocks_come_one_after_the_other_and_the_fold_is_the_json(deltas: list[Delta]) -> None:
    _, message = told([[delta] for delta in deltas])
    calls = [block["input"] for block in message["content"] if block["type"] == "tool_use"]
    assert calls == [{"a": "b"}] * sum(isinstance(delta, CallStarted) for delta in deltas)
