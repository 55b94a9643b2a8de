"""Requests to the child process of OpenVINO, without OpenVINO."""

import pytest

from antiphon.core.prompt import Constraint, Grammar, JsonObject, JsonSchema, Sampling, StructuralTag
from antiphon.engines.openvino import wire
from antiphon.errors import UnsupportedParameter


@pytest.mark.shows("C.29")
def test_sampling_fields_have_the_names_of_openvino() -> None:
    sampling = Sampling(max_tokens=9, temperature=0.5, top_p=0.9, top_k=-1, min_p=0.1, seed=3, min_tokens=2, logprobs=0)
    assert wire.build_config(sampling, 100, "") == {
        "max_new_tokens": 9,
        "min_new_tokens": 2,
        "do_sample": True,
        "temperature": 0.5,
        "top_p": 0.9,
        "min_p": 0.1,
        "rng_seed": 3,
        "logprobs": 1,
    }


def test_an_answer_ends_with_the_context() -> None:
    assert wire.build_config(Sampling(), 7, "")["max_new_tokens"] == 7
    assert wire.build_config(Sampling(max_tokens=100), 7, "")["max_new_tokens"] == 7


def test_a_temperature_of_zero_is_greedy_and_others_get_a_random_seed() -> None:
    assert wire.build_config(Sampling(temperature=0.0, top_p=0.5, seed=1), 9, "") == {"max_new_tokens": 9}
    seeds = {wire.build_config(Sampling(), 9, "")["rng_seed"] for _ in range(8)}  # OpenVINO's default is always 0
    assert len(seeds) > 1


@pytest.mark.shows("A3.13")
def test_best_of_is_the_width_of_a_beam_search() -> None:
    config = wire.build_config(Sampling(best_of=4, length_penalty=0.5, temperature=0.9), 9, "")
    assert config == {"max_new_tokens": 9, "num_beams": 4, "num_return_sequences": 4, "length_penalty": 0.5}
    with pytest.raises(UnsupportedParameter, match="send it without 'best_of'") as raised:
        wire.build_config(Sampling(best_of=2, presence_penalty=0.5), 9, "")
    assert raised.value.param == "presence_penalty"


@pytest.mark.shows("A3.15")
@pytest.mark.parametrize(
    ("assistant", "sampling", "expected"),
    [
        ("", Sampling(), {}),
        ("draft", Sampling(), {"num_assistant_tokens": 5}),
        ("draft", Sampling(num_assistant_tokens=2), {"num_assistant_tokens": 2}),
        ("draft", Sampling(assistant_confidence_threshold=0.4), {"assistant_confidence_threshold": 0.4}),
        ("lookup", Sampling(), {"num_assistant_tokens": 5, "max_ngram_size": 3}),
        ("lookup", Sampling(max_ngram_size=2), {"num_assistant_tokens": 5, "max_ngram_size": 2}),
    ],
)
def test_every_request_to_an_engine_that_guesses_tokens_says_how_many(
    assistant: str, sampling: Sampling, expected: dict[str, object]
) -> None:
    config = wire.build_config(sampling, 9, assistant)
    names = ("num_assistant_tokens", "assistant_confidence_threshold", "max_ngram_size")
    assert {name: config[name] for name in names if name in config} == expected


@pytest.mark.parametrize(
    ("constraint", "expected"),
    [
        (None, {}),
        (JsonObject(), {"json_schema": '{"type":"object"}'}),
        (JsonSchema({"type": "string"}), {"json_schema": '{"type":"string"}'}),
        (Grammar("regex", "a+"), {"regex": "a+"}),
        (Grammar("gbnf", 'root ::= "a"'), {"grammar": 'root ::= "a"'}),
        (StructuralTag({"type": "structural_tag"}), {"structural_tags_config": '{"type":"structural_tag"}'}),
    ],
)
def test_constraints_become_structured_output(constraint: Constraint | None, expected: dict[str, str]) -> None:
    assert wire.to_structured_output(constraint) == expected


@pytest.mark.shows("C.29")
def test_fields_that_openvino_lacks_have_a_reason_and_are_not_supported() -> None:
    assert not wire.SUPPORTED_FIELDS & wire.UNSUPPORTED_REASONS.keys()
    assert {"top_logprobs", "logit_bias", "grammar.lark"} <= wire.UNSUPPORTED_REASONS.keys()
