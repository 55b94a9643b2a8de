"""The Chat Completions emitter: chunks and the completions they fold to, checked with the openai SDK.

Covers `core/dialects/dialect.py`.
"""

import json
from collections.abc import Iterable, Sequence
from itertools import count
from typing import Any

import msgspec
import pytest

from antiphon.core.deltas import CallDelta, CallDone, CallStarted, Delta, ReasoningDelta, Refusal, Text
from antiphon.core.dialects.chat_emitter import ChatEmitter, ChatOutputOptions
from antiphon.core.dialects.dialect import CompletionHeader, WireEvents
from antiphon.core.prompt import Chunk, EngineExtras, FinishKind, TokenCounts
from antiphon.errors import EngineFailed
from antiphon.protocol.types.parts import Logprob, TopLogprob
from tests.oracles.chat import accumulate, check_chat, check_chunk

HEADER = CompletionHeader(id="chatcmpl-1", created=1, model="fake")
COUNTS = TokenCounts(input_tokens=5, cached_tokens=2, output_tokens=9, reasoning_tokens=3)


def logprob(token: str) -> Logprob:
    top = TopLogprob(token=token, bytes=[*token.encode()], logprob=-0.5)
    return Logprob(token=token, bytes=[*token.encode()], logprob=-0.5, top_logprobs=[top])


DELTAS: list[Delta] = [
    ReasoningDelta("Let me "),
    ReasoningDelta("see."),
    Text("Hel", (logprob("Hel"),)),
    Text("lo \u2028\n", (logprob("lo \u2028\n"),)),
    CallStarted(0, "get_weather"),
    CallDelta(0, '{"ci'),
    CallStarted(1, "sql", "custom"),
    CallDelta(1, "SELECT"),
    CallDelta(0, 'ty": "Rome"}'),
    CallDone(0),
    CallDelta(1, " 1"),
    CallDone(1),
    Refusal("No."),
]


def make_emitter(**options: Any) -> ChatEmitter:
    numbers = count(1)
    return ChatEmitter(HEADER, ChatOutputOptions(**options), lambda: f"call_{next(numbers)}")


def run_emitter(emitter: ChatEmitter, deltas: Iterable[Sequence[Delta]], finish: FinishKind = "stop") -> WireEvents:
    out = emitter.begin()
    for each in deltas:
        out += emitter.feed([*each])
    return [*out, *emitter.end(finish, COUNTS), *emitter.close(COUNTS)]


def run_and_fold(emitter: ChatEmitter, deltas: Iterable[Sequence[Delta]], finish: FinishKind = "stop") -> Any:
    emitter.fold_events(run_emitter(emitter, deltas, finish))
    body = json.loads(msgspec.json.encode(emitter.result()))
    check_chat(body)
    return body


def to_json(chunks: WireEvents) -> list[dict[str, Any]]:
    return [json.loads(msgspec.json.encode(chunk)) for chunk in chunks]


def split_deltas(deltas: Sequence[Delta]) -> list[list[Delta]]:
    return [[delta] for delta in deltas]


@pytest.mark.shows("G.2", "G1.3", "G1.4")
def test_the_fold_holds_the_complete_answer() -> None:
    body = run_and_fold(make_emitter(), split_deltas(DELTAS))
    (choice,) = body["choices"]
    assert choice["message"] == {
        "role": "assistant",
        "content": "Hello \u2028\n",
        "refusal": "No.",
        "reasoning": "Let me see.",
        "reasoning_content": "Let me see.",
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'},
            },
            {"id": "call_2", "type": "custom", "custom": {"name": "sql", "input": "SELECT 1"}},
        ],
    }
    assert choice["finish_reason"] == "tool_calls"
    assert [each["token"] for each in choice["logprobs"]["content"]] == ["Hel", "lo \u2028\n"]
    assert body["usage"] == {
        "prompt_tokens": 5,
        "completion_tokens": 9,
        "total_tokens": 14,
        "prompt_tokens_details": {"cached_tokens": 2},
        "completion_tokens_details": {"reasoning_tokens": 3},
    }


@pytest.mark.parametrize("size", range(1, len(DELTAS) + 1))
def test_the_fold_does_not_depend_on_delta_boundaries(size: int) -> None:
    cut = [DELTAS[at : at + size] for at in range(0, len(DELTAS), size)]
    assert run_and_fold(make_emitter(), cut) == run_and_fold(make_emitter(), [DELTAS])


def test_chunks_are_valid_and_accumulate_to_the_fold_in_the_sdk() -> None:
    deltas = [
        delta for delta in DELTAS if getattr(delta, "key", 0) == 0
    ]  # the SDK types have no custom calls in streams
    chunks = to_json(run_emitter(make_emitter(), split_deltas(deltas)))
    for chunk in chunks:
        check_chunk(chunk)
    theirs = accumulate(chunks).choices[0].message
    ours = run_and_fold(make_emitter(), [deltas])["choices"][0]["message"]
    assert (theirs.content, theirs.refusal) == (ours["content"], ours["refusal"])
    assert theirs.tool_calls is not None
    (call,) = theirs.tool_calls
    assert call.type == "function"
    assert {"name": call.function.name, "arguments": call.function.arguments} == ours["tool_calls"][0]["function"]
    assert call.id == ours["tool_calls"][0]["id"]
    assert theirs.model_extra is not None
    assert theirs.model_extra["reasoning"] == "Let me see."


def test_custom_call_chunks_have_the_field_names_of_openai() -> None:
    chunks = to_json(run_emitter(make_emitter(), split_deltas(DELTAS)))
    for chunk in chunks:
        check_chunk(chunk)
    pieces = [call for chunk in chunks for each in chunk["choices"] for call in each["delta"].get("tool_calls", ())]
    assert [piece for piece in pieces if piece["index"] == 1] == [
        {"index": 1, "id": "call_2", "type": "custom", "custom": {"name": "sql", "input": ""}},
        {"index": 1, "custom": {"input": "SELECT"}},
        {"index": 1, "custom": {"input": " 1"}},
    ]


def test_the_first_chunk_has_the_role_and_the_last_ones_reason_and_usage() -> None:
    chunks = to_json(run_emitter(make_emitter(), [[Text("Hi")]]))
    assert [chunk["choices"] for chunk in chunks] == [
        [{"index": 0, "delta": {"content": "", "role": "assistant"}, "logprobs": None, "finish_reason": None}],
        [{"index": 0, "delta": {"content": "Hi"}, "logprobs": None, "finish_reason": None}],
        [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}],
        [],
    ]
    assert [chunk["usage"] is None for chunk in chunks] == [True, True, True, False]


def test_without_include_usage_there_is_no_usage_and_no_usage_chunk() -> None:
    chunks = to_json(run_emitter(make_emitter(include_usage=False), [[Text("Hi")]]))
    assert len(chunks) == 3
    assert all("usage" not in chunk for chunk in chunks)


def test_every_chunk_has_the_running_usage() -> None:
    chunks = to_json(run_emitter(make_emitter(running_usage_base=5), [[Text("a"), Text("b")]]))
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks[1:4]] == [1, 2, 2]
    assert all(chunk["usage"]["prompt_tokens"] == 5 for chunk in chunks[1:])
    for chunk in chunks:
        check_chunk(chunk)


def test_padded_chunks_hide_the_length_of_their_tokens() -> None:
    one, other = (
        len(msgspec.json.encode(make_emitter(include_obfuscation=True).feed([Text(text)])[0]))
        for text in ("a", "abcdefg")
    )
    assert one == other


@pytest.mark.parametrize(
    ("finish", "deltas", "reason"),
    [
        ("stop", [Text("a")], "stop"),
        ("length", [Text("a")], "length"),
        ("content_filter", [Text("a")], "content_filter"),
        ("tool_calls", [CallStarted(0, "f"), CallDone(0)], "tool_calls"),
        ("stop", [CallStarted(0, "f"), CallDone(0)], "tool_calls"),  # from an engine whose output this server parses
        ("tool_calls", [Text("a")], "stop"),  # the only call was dropped
        ("length", [CallStarted(0, "f")], "length"),
    ],
)
def test_finish_reasons_are_translated(finish: FinishKind, deltas: list[Delta], reason: str) -> None:
    assert run_and_fold(make_emitter(), [deltas], finish)["choices"][0]["finish_reason"] == reason


def test_a_legacy_call_is_a_function_call() -> None:
    deltas: list[Delta] = [CallStarted(0, "f"), CallDelta(0, "{"), CallDelta(0, "}"), CallDone(0)]
    for chunk in to_json(run_emitter(make_emitter(legacy_function_call=True), split_deltas(deltas))):
        check_chunk(chunk)
    (choice,) = run_and_fold(make_emitter(legacy_function_call=True), split_deltas(deltas))["choices"]
    assert choice["message"]["function_call"] == {"name": "f", "arguments": "{}"}
    assert choice["message"]["content"] is None
    assert choice["finish_reason"] == "function_call"


def test_reasoning_can_be_excluded() -> None:
    body = run_and_fold(make_emitter(include_reasoning=False), [[ReasoningDelta("hm"), Text("a")]])
    assert body["choices"][0]["message"] == {"role": "assistant", "content": "a", "refusal": None}


def test_an_answer_without_text_has_empty_content() -> None:
    assert run_and_fold(make_emitter(), [])["choices"][0]["message"]["content"] == ""


def test_choices_are_folded_separately() -> None:
    made = make_emitter(choices=2)
    made.fold_events(made.begin())
    made.fold_events(made.feed([Text("a"), CallStarted(0, "f")], 0) + made.feed([Text("b"), CallStarted(0, "g")], 1))
    made.fold_events(made.feed([CallDelta(0, "{}")], 1) + made.end("stop", COUNTS, 1) + made.end("length", COUNTS, 0))
    made.fold_events(made.close(COUNTS))
    body = json.loads(msgspec.json.encode(made.result()))
    check_chat(body)
    assert [choice["message"]["content"] for choice in body["choices"]] == ["a", "b"]
    assert [choice["finish_reason"] for choice in body["choices"]] == ["length", "tool_calls"]
    assert [choice["message"]["tool_calls"][0]["function"]["name"] for choice in body["choices"]] == ["f", "g"]


@pytest.mark.shows("G1.1", "G1.2")
def test_engine_extras_are_forwarded() -> None:
    made = make_emitter()
    early = EngineExtras(prompt_token_ids=[1, 2], system_fingerprint="fp", service_tier="priority")
    made.fold_events(made.begin())
    made.note(Chunk(text="a", tokens=(7, 8), extras=early))
    chunks = made.feed([Text("a")])
    made.note(Chunk(extras=EngineExtras(stop_reason="\n", prompt_logprobs=[None], kv_transfer_params={"x": 1})))
    last = made.end("stop", COUNTS)
    for chunk in to_json(chunks + last):
        check_chunk(chunk)
    assert to_json(chunks)[0]["choices"][0]["token_ids"] == [7, 8]
    made.fold_events(chunks + last + made.close(COUNTS))
    body = json.loads(msgspec.json.encode(made.result()))
    check_chat(body)
    assert body["choices"][0]["stop_reason"] == "\n"
    assert body["choices"][0]["token_ids"] == [7, 8]
    names = ("prompt_token_ids", "prompt_logprobs", "kv_transfer_params", "system_fingerprint", "service_tier")
    assert [body[name] for name in names] == [[1, 2], [None], {"x": 1}, "fp", "priority"]


def test_an_unknown_service_tier_is_not_forwarded() -> None:
    made = make_emitter()
    made.note(Chunk(extras=EngineExtras(service_tier="gold")))
    assert "service_tier" not in to_json(made.end("stop", COUNTS))[0]


def test_the_service_tier_of_the_header_is_reported() -> None:
    made = ChatEmitter(
        CompletionHeader(id="chatcmpl-1", created=1, model="m", service_tier="flex"), ChatOutputOptions(), lambda: ""
    )
    assert to_json(made.end("stop", COUNTS))[0]["service_tier"] == "flex"


def test_a_failure_in_a_stream_has_the_shape_of_an_http_error() -> None:
    (fault,) = to_json(make_emitter().fail(EngineFailed("It died.")))
    assert fault == {"error": {"message": "It died.", "type": "server_error", "param": None, "code": "server_error"}}
