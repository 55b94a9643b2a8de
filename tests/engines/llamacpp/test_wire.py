"""llama.cpp's dialect, without llama.cpp."""

import msgspec
import pytest

from antiphon.core.prompt import Chunk, Counts, Extras, Sampling
from antiphon.engines.client import Refused
from antiphon.engines.llamacpp import wire
from antiphon.engines.llamacpp.constraints import UNGUIDED
from antiphon.errors import AntiphonError, ContextTooLong, EngineFailed, InvalidValue


def sent(**sampling: object) -> dict[str, object]:
    asked = wire.completion([1, 2], Sampling(**sampling), UNGUIDED, ())  # type: ignore[arg-type]  # by name
    body: dict[str, object] = msgspec.json.decode(wire.encode(asked))
    return body


def test_what_is_not_asked_for_is_openais_default_or_llama_cpps_own() -> None:
    body = sent()
    assert body["prompt"] == [1, 2]
    assert (body["temperature"], body["top_p"], body["n_predict"]) == (1.0, 1.0, -1)
    assert body["stream"] is body["return_progress"] is body["cache_prompt"] is True
    chosen_by_llama_cpp = {"top_k", "min_p", "seed", "stop", "repeat_penalty", "frequency_penalty", "presence_penalty"}
    assert not chosen_by_llama_cpp & body.keys()
    assert not {"json_schema", "grammar", "n_probs", "ignore_eos", "preserved_tokens", "logit_bias"} & body.keys()


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"max_tokens": 7}, {"n_predict": 7}),
        ({"temperature": 0.0}, {"temperature": 0.0}),
        ({"top_p": 0.5, "top_k": -1, "min_p": 0.0}, {"top_p": 0.5, "top_k": -1, "min_p": 0.0}),
        ({"repetition_penalty": 1.1}, {"repeat_penalty": 1.1}),
        ({"frequency_penalty": -2.0, "presence_penalty": 2.0}, {"frequency_penalty": -2.0, "presence_penalty": 2.0}),
        ({"stop": ("a", "b")}, {"stop": ["a", "b"]}),
        ({"seed": 0}, {"seed": 0}),
        ({"seed": 2**32 - 1}, {"seed": 2**32 - 2}),  # llama.cpp would take it for none
        ({"ignore_eos": True}, {"ignore_eos": True}),
        ({"logprobs": 0}, {"n_probs": 1}),
        ({"logprobs": 20}, {"n_probs": 20}),
        ({"logit_bias": {"7": -100.0}}, {"logit_bias": [[7, -100.0]]}),
    ],
)
def test_every_field_has_its_name_there(asked: dict[str, object], told: dict[str, object]) -> None:
    assert sent(**asked).items() >= told.items()


def test_control_tokens_that_somebody_reads_are_not_hidden() -> None:
    assert wire.completion([1], Sampling(), UNGUIDED, ("<s>",)).preserved_tokens == ("<s>",)


def test_what_is_salted_is_computed_whole() -> None:
    assert wire.completion([1], Sampling(), UNGUIDED, [], cached=False).cache_prompt is False


def chunks(*events: str, **sampling: object) -> list[Chunk]:
    decoded = [wire.EVENT.decode(event) for event in events]
    return wire.read_chunks(decoded, Sampling(**sampling))  # type: ignore[arg-type]  # by name


PROGRESS = '{"content":"","tokens":[0],"stop":false,"prompt_progress":{"total":9,"cache":0,"processed":9}}'
LAST = (
    '{"content":"","tokens":[],"stop":true,"stop_type":"%s","stopping_word":"%s",'
    '"tokens_predicted":3,"tokens_evaluated":9,"timings/cache_n":4}'
)


def test_progress_says_nothing_and_words_are_chunks() -> None:
    assert chunks(PROGRESS, '{"content":"a","tokens":[5],"stop":false}') == [Chunk(text="a", tokens=(5,))]


@pytest.mark.parametrize(
    ("type", "finish"), [("eos", "stop"), ("word", "stop"), ("limit", "length"), ("none", "length")]
)
def test_the_last_event_tells_why_and_how_many(type: str, finish: str) -> None:
    [chunk] = chunks(LAST % (type, ""))
    assert chunk.finish == finish
    assert chunk.counts == Counts(input_tokens=9, cached_tokens=4, output_tokens=3)


def test_the_stop_string_is_said_if_asked_for() -> None:
    [last] = chunks(LAST % ("word", "END"))
    assert (last.text, last.extras) == ("", Extras(stop_reason="END"))
    assert chunks(LAST % ("word", "END"), include_stop_str_in_output=True)[0].text == "END"


def test_a_fault_in_the_stream_is_an_engine_failure() -> None:
    with pytest.raises(EngineFailed, match="The engine failed: Compute error"):
        chunks('{"error":{"code":500,"message":"Compute error","type":"server_error"}}')


def test_tokens_without_text_have_no_logprobs_and_impossible_ones_are_finite() -> None:
    said = (
        '{"content":"a","tokens":[5],"completion_probabilities":['
        '{"id":5,"token":"a","bytes":[97],"logprob":-3.4e38,'
        '"top_logprobs":[{"id":6,"token":"b","bytes":[98],"logprob":-0.5}]},'
        '{"id":2,"token":"","bytes":[],"logprob":-1.0,"top_logprobs":[]}]}'
    )
    [chunk] = chunks(said, logprobs=1)
    [logprob] = chunk.logprobs
    assert (logprob.token, logprob.logprob) == ("a", -9999.0)
    assert [top.token for top in logprob.top_logprobs] == ["b"]


@pytest.mark.parametrize(
    ("status", "body", "kind", "sentence"),
    [
        (
            400,
            b'{"error":{"type":"exceed_context_size_error","n_prompt_tokens":9,"n_ctx":8}}',
            ContextTooLong,
            "9 tokens",
        ),
        (400, b'{"error":{"message":"failed to parse grammar"}}', InvalidValue, "grammar cannot be enforced"),
        (400, b'{"error":{"message":"bad json_schema"}}', InvalidValue, "schema cannot be enforced"),
        (400, b'{"error":{"message":"Prompt contains invalid tokens"}}', InvalidValue, "refuses this input"),
        (500, b'{"error":{"message":"out of memory"}}', EngineFailed, "The engine failed: out of memory"),
        (502, b"<html>", EngineFailed, "refused with HTTP status 502"),
    ],
)
def test_a_refusal_says_what_the_client_can_do(
    status: int, body: bytes, kind: type[AntiphonError], sentence: str
) -> None:
    explained = wire.explained(Refused("The engine", status, body))
    assert isinstance(explained, kind)
    assert sentence in explained.message
