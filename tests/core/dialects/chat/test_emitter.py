import json
from collections.abc import Iterable, Sequence
from itertools import count
from typing import Any

import msgspec
import pytest

from antiphon.core.deltas import CallDelta, CallDone, CallStarted, Delta, Refusal, Text, Thought
from antiphon.core.dialects.chat.emitter import ChatEmitter, Manner
from antiphon.core.dialects.dialect import Head, Told
from antiphon.core.prompt import Chunk, Counts, Extras, Finish
from antiphon.errors import EngineFailed
from antiphon.protocol.types.parts import Logprob, TopLogprob
from tests.oracles.chat import accumulate, check_chat, check_chunk

HEAD = Head(id="chatcmpl-1", created=1, model="fake")
COUNTS = Counts(input_tokens=5, cached_tokens=2, output_tokens=9, reasoning_tokens=3)


def logprob(token: str) -> Logprob:
    top = TopLogprob(token=token, bytes=[*token.encode()], logprob=-0.5)
    return Logprob(token=token, bytes=[*token.encode()], logprob=-0.5, top_logprobs=[top])


SPOKEN: list[Delta] = [
    Thought("Let me "),
    Thought("see."),
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


def emitter(**manner: Any) -> ChatEmitter:
    numbers = count(1)
    return ChatEmitter(HEAD, Manner(**manner), lambda: f"call_{next(numbers)}")


def told(emitter: ChatEmitter, deltas: Iterable[Sequence[Delta]], finish: Finish = "stop") -> Told:
    out = emitter.begin()
    for each in deltas:
        out += emitter.feed([*each])
    return [*out, *emitter.end(finish, COUNTS), *emitter.close(COUNTS)]


def folded(emitter: ChatEmitter, deltas: Iterable[Sequence[Delta]], finish: Finish = "stop") -> Any:
    emitter.fold(told(emitter, deltas, finish))
    body = json.loads(msgspec.json.encode(emitter.result()))
    check_chat(body)
    return body


def wire(chunks: Told) -> list[dict[str, Any]]:
    return [json.loads(msgspec.json.encode(chunk)) for chunk in chunks]


def one_by_one(deltas: Sequence[Delta]) -> list[list[Delta]]:
    return [[delta] for delta in deltas]


@pytest.mark.shows("G.2", "G1.3", "G1.4")
def test_the_fold_says_all_that_was_said() -> None:
    body = folded(emitter(), one_by_one(SPOKEN))
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


@pytest.mark.parametrize("size", range(1, len(SPOKEN) + 1))
def test_wherever_the_deltas_are_cut_the_fold_is_the_same(size: int) -> None:
    cut = [SPOKEN[at : at + size] for at in range(0, len(SPOKEN), size)]
    assert folded(emitter(), cut) == folded(emitter(), [SPOKEN])


def test_every_chunk_is_what_openai_says_and_its_helper_reads_the_same_as_the_fold() -> None:
    said = [delta for delta in SPOKEN if getattr(delta, "key", 0) == 0]  # its types know no custom calls in a stream
    chunks = wire(told(emitter(), one_by_one(said)))
    for chunk in chunks:
        check_chunk(chunk)
    theirs = accumulate(chunks).choices[0].message
    ours = folded(emitter(), [said])["choices"][0]["message"]
    assert (theirs.content, theirs.refusal) == (ours["content"], ours["refusal"])
    assert theirs.tool_calls is not None
    (call,) = theirs.tool_calls
    assert call.type == "function"
    assert {"name": call.function.name, "arguments": call.function.arguments} == ours["tool_calls"][0]["function"]
    assert call.id == ours["tool_calls"][0]["id"]
    assert theirs.model_extra is not None
    assert theirs.model_extra["reasoning"] == "Let me see."


def test_chunks_of_custom_calls_are_named_as_openai_streams_them() -> None:
    chunks = wire(told(emitter(), one_by_one(SPOKEN)))
    for chunk in chunks:
        check_chunk(chunk)
    pieces = [call for chunk in chunks for each in chunk["choices"] for call in each["delta"].get("tool_calls", ())]
    assert [piece for piece in pieces if piece["index"] == 1] == [
        {"index": 1, "id": "call_2", "type": "custom", "custom": {"name": "sql", "input": ""}},
        {"index": 1, "custom": {"input": "SELECT"}},
        {"index": 1, "custom": {"input": " 1"}},
    ]


def test_the_first_chunk_has_the_role_and_the_last_ones_the_reason_and_the_usage() -> None:
    chunks = wire(told(emitter(), [[Text("Hi")]]))
    assert [chunk["choices"] for chunk in chunks] == [
        [{"index": 0, "delta": {"content": "", "role": "assistant"}, "logprobs": None, "finish_reason": None}],
        [{"index": 0, "delta": {"content": "Hi"}, "logprobs": None, "finish_reason": None}],
        [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}],
        [],
    ]
    assert [chunk["usage"] is None for chunk in chunks] == [True, True, True, False]


def test_without_usage_there_is_none_and_no_chunk_for_it() -> None:
    chunks = wire(told(emitter(usage=False), [[Text("Hi")]]))
    assert len(chunks) == 3
    assert all("usage" not in chunk for chunk in chunks)


def test_a_running_usage_is_in_every_chunk() -> None:
    chunks = wire(told(emitter(running=5), [[Text("a"), Text("b")]]))
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks[1:4]] == [1, 2, 2]
    assert all(chunk["usage"]["prompt_tokens"] == 5 for chunk in chunks[1:])
    for chunk in chunks:
        check_chunk(chunk)


def test_padded_chunks_do_not_tell_the_length_of_their_tokens() -> None:
    one, other = (len(msgspec.json.encode(emitter(obfuscates=True).feed([Text(text)])[0])) for text in ("a", "abcdefg"))
    assert one == other


@pytest.mark.parametrize(
    ("finish", "deltas", "reason"),
    [
        ("stop", [Text("a")], "stop"),
        ("length", [Text("a")], "length"),
        ("content_filter", [Text("a")], "content_filter"),
        ("tool_calls", [CallStarted(0, "f"), CallDone(0)], "tool_calls"),
        ("stop", [CallStarted(0, "f"), CallDone(0)], "tool_calls"),  # of an engine that we parse for
        ("tool_calls", [Text("a")], "stop"),  # the only call was dropped
        ("length", [CallStarted(0, "f")], "length"),
    ],
)
def test_the_reason_to_finish(finish: Finish, deltas: list[Delta], reason: str) -> None:
    assert folded(emitter(), [deltas], finish)["choices"][0]["finish_reason"] == reason


def test_a_call_by_the_older_name_is_one_function_call() -> None:
    deltas: list[Delta] = [CallStarted(0, "f"), CallDelta(0, "{"), CallDelta(0, "}"), CallDone(0)]
    for chunk in wire(told(emitter(legacy=True), one_by_one(deltas))):
        check_chunk(chunk)
    (choice,) = folded(emitter(legacy=True), one_by_one(deltas))["choices"]
    assert choice["message"]["function_call"] == {"name": "f", "arguments": "{}"}
    assert choice["message"]["content"] is None
    assert choice["finish_reason"] == "function_call"


def test_thoughts_are_left_out_for_who_does_not_want_them() -> None:
    body = folded(emitter(reasoning=False), [[Thought("hm"), Text("a")]])
    assert body["choices"][0]["message"] == {"role": "assistant", "content": "a", "refusal": None}


def test_an_answer_without_a_word_is_an_empty_one() -> None:
    assert folded(emitter(), [])["choices"][0]["message"]["content"] == ""


def test_choices_are_told_apart() -> None:
    made = emitter(choices=2)
    made.fold(made.begin())
    made.fold(made.feed([Text("a"), CallStarted(0, "f")], 0) + made.feed([Text("b"), CallStarted(0, "g")], 1))
    made.fold(made.feed([CallDelta(0, "{}")], 1) + made.end("stop", COUNTS, 1) + made.end("length", COUNTS, 0))
    made.fold(made.close(COUNTS))
    body = json.loads(msgspec.json.encode(made.result()))
    check_chat(body)
    assert [choice["message"]["content"] for choice in body["choices"]] == ["a", "b"]
    assert [choice["finish_reason"] for choice in body["choices"]] == ["length", "tool_calls"]
    assert [choice["message"]["tool_calls"][0]["function"]["name"] for choice in body["choices"]] == ["f", "g"]


@pytest.mark.shows("G1.1", "G1.2")
def test_what_the_engine_said_beside_its_words_is_passed_on() -> None:
    made = emitter()
    early = Extras(prompt_token_ids=[1, 2], system_fingerprint="fp", service_tier="priority")
    made.fold(made.begin())
    made.note(Chunk(text="a", tokens=(7, 8), extras=early))
    said = made.feed([Text("a")])
    made.note(Chunk(extras=Extras(stop_reason="\n", prompt_logprobs=[None], kv_transfer_params={"x": 1})))
    last = made.end("stop", COUNTS)
    for chunk in wire(said + last):
        check_chunk(chunk)
    assert wire(said)[0]["choices"][0]["token_ids"] == [7, 8]
    made.fold(said + last + made.close(COUNTS))
    body = json.loads(msgspec.json.encode(made.result()))
    check_chat(body)
    assert body["choices"][0]["stop_reason"] == "\n"
    assert body["choices"][0]["token_ids"] == [7, 8]
    passed = ("prompt_token_ids", "prompt_logprobs", "kv_transfer_params", "system_fingerprint", "service_tier")
    assert [body[name] for name in passed] == [[1, 2], [None], {"x": 1}, "fp", "priority"]


def test_a_tier_that_nobody_knows_is_not_passed_on() -> None:
    made = emitter()
    made.note(Chunk(extras=Extras(service_tier="gold")))
    assert "service_tier" not in wire(made.end("stop", COUNTS))[0]


def test_who_asked_for_a_tier_is_told_the_one_there_is() -> None:
    made = ChatEmitter(Head(id="chatcmpl-1", created=1, model="m", service_tier="flex"), Manner(), lambda: "")
    assert wire(made.end("stop", COUNTS))[0]["service_tier"] == "flex"


def test_a_fault_has_the_shape_of_an_http_error() -> None:
    (fault,) = wire(emitter().fault(EngineFailed("It died.")))
    assert fault == {"error": {"message": "It died.", "type": "server_error", "param": None, "code": "server_error"}}
