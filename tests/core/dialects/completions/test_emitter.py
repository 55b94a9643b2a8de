import json
from typing import Any

import msgspec
import pytest

from antiphon.core.deltas import Delta, Text
from antiphon.core.dialects.completions.emitter import CompletionEmitter, CompletionManner
from antiphon.core.dialects.dialect import Head, Told
from antiphon.core.prompt import Chunk, Counts, Extras, Finish
from antiphon.errors import EngineFailed
from antiphon.protocol.types.parts import Logprob, TopLogprob
from tests.oracles.chat import check_completion

HEAD = Head(id="cmpl-1", created=1, model="fake")
COUNTS = Counts(input_tokens=5, output_tokens=9)


def said(token: str, logprob: float = -0.5) -> Text:
    other = TopLogprob(token="other", bytes=[], logprob=-2.0)
    return Text(token, (Logprob(token=token, bytes=[], logprob=logprob, top_logprobs=[other]),))


def emitter(**manner: Any) -> CompletionEmitter:
    return CompletionEmitter(HEAD, CompletionManner(**manner))


def answered(made: CompletionEmitter, *answers: list[Delta], finish: Finish = "stop") -> Told:
    """Choice by choice, delta by delta."""
    out = made.begin()
    for choice, deltas in enumerate(answers):
        for delta in deltas:
            out += made.feed([delta], choice)
        out += made.end(finish, COUNTS, choice)
    return [*out, *made.close(COUNTS)]


def folded(made: CompletionEmitter, *answers: list[Delta], finish: Finish = "stop") -> Any:
    chunks = answered(made, *answers, finish=finish)
    for chunk in wire(chunks):
        check_completion(chunk)
    made.fold(chunks)
    body = json.loads(msgspec.json.encode(made.result()))
    check_completion(body)
    return body


def wire(chunks: Told) -> list[dict[str, Any]]:
    return [json.loads(msgspec.json.encode(chunk)) for chunk in chunks]


@pytest.mark.shows("G.3")
def test_the_fold_is_all_that_was_said() -> None:
    body = folded(emitter(), [Text("Once "), Text("upon")])
    assert body["choices"] == [{"index": 0, "text": "Once upon", "logprobs": None, "finish_reason": "stop"}]
    assert body["usage"]["total_tokens"] == 14


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_wherever_the_deltas_are_cut_the_fold_is_the_same(size: int) -> None:
    deltas: list[Delta] = [said("a"), said("bb"), said(""), said("ccc")]
    whole, cut = emitter(top=1), emitter(top=1)
    for at in range(0, len(deltas), size):
        cut.fold(cut.feed(deltas[at : at + size]))
    cut.fold(cut.end("stop", COUNTS) + cut.close(COUNTS))
    assert json.loads(msgspec.json.encode(cut.result())) == folded(whole, deltas)


def test_log_probabilities_have_a_place_in_the_text() -> None:
    (choice,) = folded(emitter(top=1), [said("Once"), said(" upon", -0.25)])["choices"]
    assert choice["logprobs"] == {
        "text_offset": [0, 4],
        "token_logprobs": [-0.5, -0.25],
        "tokens": ["Once", " upon"],
        "top_logprobs": [{"Once": -0.5, "other": -2.0}, {" upon": -0.25, "other": -2.0}],
    }


def test_without_alternatives_there_are_none() -> None:
    (choice,) = folded(emitter(top=0), [said("Once")])["choices"]
    assert choice["logprobs"]["top_logprobs"] is None


def test_log_probabilities_that_were_not_asked_for_are_not_told() -> None:
    assert folded(emitter(), [said("Once")])["choices"][0]["logprobs"] is None


def test_an_echo_comes_before_everything() -> None:
    made = emitter(prompts=2, echoes=["A: ", "B: "])
    body = folded(made, [Text("one")], [Text("two")])
    assert [choice["text"] for choice in body["choices"]] == ["A: one", "B: two"]


def test_an_echo_with_log_probabilities_has_them_for_the_prompt_too() -> None:
    made = emitter(top=1, echoes=["Hi you"])
    given = [
        None,
        {"5": {"logprob": -1.0, "rank": 2, "decoded_token": " you"}, "6": {"logprob": -0.1, "decoded_token": "x"}},
    ]
    made.note(Chunk(extras=Extras(prompt_logprobs=given)))
    (choice,) = folded(made, [said("!")])["choices"]
    assert choice["text"] == "Hi you!"
    assert choice["logprobs"] == {
        "text_offset": [0, 2, 6],
        "token_logprobs": [None, -1.0, -0.5],
        "tokens": ["Hi", " you", "!"],
        "top_logprobs": [None, {" you": -1.0, "x": -0.1}, {"!": -0.5, "other": -2.0}],
    }


@pytest.mark.parametrize("given", [None, 7, [None, 7], [None, {}], [None, {"5": {"logprob": None}}]])
def test_an_engine_that_gives_none_for_the_prompt_has_failed(given: Any) -> None:
    made = emitter(top=1, echoes=["Hi you"])
    made.note(Chunk(extras=Extras(prompt_logprobs=given)))
    with pytest.raises(EngineFailed):
        made.end("stop", COUNTS)


def test_of_more_answers_than_are_wanted_the_likeliest_are_kept() -> None:
    made = emitter(prompts=2, calls=3, wanted=2)
    body = folded(
        made,
        [said("a", -3.0)],
        [said("b", -1.0), said("b", -1.5)],  # longer is not worse
        [said("c", -0.5)],
        [said("d", -0.5)],
        [],
        [said("f", -0.1)],
    )
    assert [(choice["index"], choice["text"]) for choice in body["choices"]] == [
        (0, "c"),
        (1, "bb"),
        (2, "f"),
        (3, "d"),
    ]


def test_a_call_is_no_reason_to_finish_here() -> None:
    assert folded(emitter(), [Text("a")], finish="tool_calls")["choices"][0]["finish_reason"] == "stop"


@pytest.mark.shows("G1.1", "G1.2")
def test_what_the_engine_said_beside_its_words_is_passed_on() -> None:
    made = emitter()
    extras = Extras(stop_reason=2, prompt_token_ids=[1], kv_transfer_params={"x": 1}, system_fingerprint="fp")
    made.note(Chunk(tokens=(7,), extras=extras))
    body = folded(made, [Text("a")])
    (choice,) = body["choices"]
    assert (choice["stop_reason"], choice["prompt_token_ids"], choice["token_ids"]) == (2, [1], [7])
    assert (body["kv_transfer_params"], body["system_fingerprint"]) == ({"x": 1}, "fp")


def test_a_running_usage_is_in_every_chunk() -> None:
    chunks = wire(answered(emitter(running=5), [Text("a"), Text("b")]))
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [1, 2, 2, 9]
