"""The legacy Completions emitter: chunks and the completions they fold to, checked with the openai SDK."""

import json
from typing import Any

import msgspec
import pytest

from antiphon.core.deltas import Delta, Text
from antiphon.core.dialects.completions_emitter import CompletionEmitter, CompletionOutputOptions
from antiphon.core.dialects.dialect import CompletionHeader, WireEvents
from antiphon.core.prompt import Chunk, EngineExtras, FinishKind, TokenCounts
from antiphon.errors import EngineFailed
from antiphon.protocol.types.parts import Logprob, TopLogprob
from tests.oracles.chat import check_completion

HEADER = CompletionHeader(id="cmpl-1", created=1, model="fake")
COUNTS = TokenCounts(input_tokens=5, output_tokens=9)


def make_text(token: str, logprob: float = -0.5) -> Text:
    other = TopLogprob(token="other", bytes=[], logprob=-2.0)
    return Text(token, (Logprob(token=token, bytes=[], logprob=logprob, top_logprobs=[other]),))


def make_emitter(**options: Any) -> CompletionEmitter:
    return CompletionEmitter(HEADER, CompletionOutputOptions(**options))


def run_emitter(made: CompletionEmitter, *answers: list[Delta], finish: FinishKind = "stop") -> WireEvents:
    """Feed the answers choice by choice and delta by delta."""
    out = made.begin()
    for choice, deltas in enumerate(answers):
        for delta in deltas:
            out += made.feed([delta], choice)
        out += made.end(finish, COUNTS, choice)
    return [*out, *made.close(COUNTS)]


def run_and_fold(made: CompletionEmitter, *answers: list[Delta], finish: FinishKind = "stop") -> Any:
    chunks = run_emitter(made, *answers, finish=finish)
    for chunk in to_json(chunks):
        check_completion(chunk)
    made.fold_events(chunks)
    body = json.loads(msgspec.json.encode(made.result()))
    check_completion(body)
    return body


def to_json(chunks: WireEvents) -> list[dict[str, Any]]:
    return [json.loads(msgspec.json.encode(chunk)) for chunk in chunks]


@pytest.mark.shows("G.3")
def test_the_fold_holds_the_complete_answer() -> None:
    body = run_and_fold(make_emitter(), [Text("Once "), Text("upon")])
    assert body["choices"] == [{"index": 0, "text": "Once upon", "logprobs": None, "finish_reason": "stop"}]
    assert body["usage"]["total_tokens"] == 14


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_the_fold_does_not_depend_on_delta_boundaries(size: int) -> None:
    deltas: list[Delta] = [make_text("a"), make_text("bb"), make_text(""), make_text("ccc")]
    unsplit, split = make_emitter(top_logprobs=1), make_emitter(top_logprobs=1)
    for at in range(0, len(deltas), size):
        split.fold_events(split.feed(deltas[at : at + size]))
    split.fold_events(split.end("stop", COUNTS) + split.close(COUNTS))
    assert json.loads(msgspec.json.encode(split.result())) == run_and_fold(unsplit, deltas)


def test_logprobs_have_text_offsets() -> None:
    (choice,) = run_and_fold(make_emitter(top_logprobs=1), [make_text("Once"), make_text(" upon", -0.25)])["choices"]
    assert choice["logprobs"] == {
        "text_offset": [0, 4],
        "token_logprobs": [-0.5, -0.25],
        "tokens": ["Once", " upon"],
        "top_logprobs": [{"Once": -0.5, "other": -2.0}, {" upon": -0.25, "other": -2.0}],
    }


def test_zero_top_logprobs_give_no_alternatives() -> None:
    (choice,) = run_and_fold(make_emitter(top_logprobs=0), [make_text("Once")])["choices"]
    assert choice["logprobs"]["top_logprobs"] is None


def test_unrequested_logprobs_are_omitted() -> None:
    assert run_and_fold(make_emitter(), [make_text("Once")])["choices"][0]["logprobs"] is None


def test_an_echo_precedes_the_answer() -> None:
    made = make_emitter(prompt_count=2, echoes=["A: ", "B: "])
    body = run_and_fold(made, [Text("one")], [Text("two")])
    assert [choice["text"] for choice in body["choices"]] == ["A: one", "B: two"]


def test_an_echo_with_logprobs_includes_those_of_the_prompt() -> None:
    made = make_emitter(top_logprobs=1, echoes=["Hi you"])
    prompt_logprobs = [
        None,
        {"5": {"logprob": -1.0, "rank": 2, "decoded_token": " you"}, "6": {"logprob": -0.1, "decoded_token": "x"}},
    ]
    made.note(Chunk(extras=EngineExtras(prompt_logprobs=prompt_logprobs)))
    (choice,) = run_and_fold(made, [make_text("!")])["choices"]
    assert choice["text"] == "Hi you!"
    assert choice["logprobs"] == {
        "text_offset": [0, 2, 6],
        "token_logprobs": [None, -1.0, -0.5],
        "tokens": ["Hi", " you", "!"],
        "top_logprobs": [None, {" you": -1.0, "x": -0.1}, {"!": -0.5, "other": -2.0}],
    }


@pytest.mark.parametrize("prompt_logprobs", [None, 7, [None, 7], [None, {}], [None, {"5": {"logprob": None}}]])
def test_missing_prompt_logprobs_are_an_engine_failure(prompt_logprobs: Any) -> None:
    made = make_emitter(top_logprobs=1, echoes=["Hi you"])
    made.note(Chunk(extras=EngineExtras(prompt_logprobs=prompt_logprobs)))
    with pytest.raises(EngineFailed):
        made.end("stop", COUNTS)


def test_the_likeliest_answers_are_selected() -> None:
    made = make_emitter(prompt_count=2, calls_per_prompt=3, choices_per_prompt=2)
    body = run_and_fold(
        made,
        [make_text("a", -3.0)],
        [make_text("b", -1.0), make_text("b", -1.5)],  # the mean is compared, so a longer answer is not worse
        [make_text("c", -0.5)],
        [make_text("d", -0.5)],
        [],
        [make_text("f", -0.1)],
    )
    assert [(choice["index"], choice["text"]) for choice in body["choices"]] == [
        (0, "c"),
        (1, "bb"),
        (2, "f"),
        (3, "d"),
    ]


def test_finish_reason_tool_calls_becomes_stop() -> None:
    assert run_and_fold(make_emitter(), [Text("a")], finish="tool_calls")["choices"][0]["finish_reason"] == "stop"


@pytest.mark.shows("G1.1", "G1.2")
def test_engine_extras_are_forwarded() -> None:
    made = make_emitter()
    extras = EngineExtras(stop_reason=2, prompt_token_ids=[1], kv_transfer_params={"x": 1}, system_fingerprint="fp")
    made.note(Chunk(tokens=(7,), extras=extras))
    body = run_and_fold(made, [Text("a")])
    (choice,) = body["choices"]
    assert (choice["stop_reason"], choice["prompt_token_ids"], choice["token_ids"]) == (2, [1], [7])
    assert (body["kv_transfer_params"], body["system_fingerprint"]) == ({"x": 1}, "fp")


def test_every_chunk_has_the_running_usage() -> None:
    chunks = to_json(run_emitter(make_emitter(running_usage_base=5), [Text("a"), Text("b")]))
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [1, 2, 2, 9]
