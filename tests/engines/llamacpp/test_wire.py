"""Requests and errors of llama.cpp's completion API, without llama.cpp."""

import msgspec
import pytest

from antiphon.core.prompt import Sampling
from antiphon.engines.client import EngineHttpError
from antiphon.engines.embedded.wire import encode, to_client_error
from antiphon.engines.llamacpp import wire
from antiphon.engines.llamacpp.wire import UNCONSTRAINED
from antiphon.errors import AntiphonError, ContextTooLong, EngineFailed, InvalidValue


def build_body(**sampling: object) -> dict[str, object]:
    completion = wire.build_completion([1, 2], Sampling(**sampling), UNCONSTRAINED, ())  # type: ignore[arg-type]  # fields are passed by name
    body: dict[str, object] = msgspec.json.decode(encode(completion))
    return body


def test_omitted_fields_take_the_default_of_openai_or_llama_cpp() -> None:
    body = build_body()
    assert body["prompt"] == [1, 2]
    assert (body["temperature"], body["top_p"], body["n_predict"]) == (1.0, 1.0, -1)
    assert body["stream"] is body["return_progress"] is body["cache_prompt"] is True
    chosen_by_llama_cpp = {"top_k", "min_p", "seed", "stop", "repeat_penalty", "frequency_penalty", "presence_penalty"}
    assert not chosen_by_llama_cpp & body.keys()
    assert not {"json_schema", "grammar", "n_probs", "ignore_eos", "preserved_tokens", "logit_bias"} & body.keys()


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"max_tokens": 7}, {"n_predict": 7}),
        ({"temperature": 0.0}, {"temperature": 0.0}),
        ({"top_p": 0.5, "top_k": -1, "min_p": 0.0}, {"top_p": 0.5, "top_k": -1, "min_p": 0.0}),
        ({"repetition_penalty": 1.1}, {"repeat_penalty": 1.1}),
        ({"frequency_penalty": -2.0, "presence_penalty": 2.0}, {"frequency_penalty": -2.0, "presence_penalty": 2.0}),
        ({"stop": ("a", "b")}, {"stop": ["a", "b"]}),
        ({"seed": 0}, {"seed": 0}),
        ({"seed": 2**32 - 1}, {"seed": 2**32 - 2}),  # llama.cpp treats this value as no seed
        ({"ignore_eos": True}, {"ignore_eos": True}),
        ({"logprobs": 0}, {"n_probs": 1}),
        ({"logprobs": 20}, {"n_probs": 20}),
        ({"logit_bias": {"7": -100.0}}, {"logit_bias": [[7, -100.0]]}),
    ],
)
def test_sampling_fields_are_translated_to_llama_cpp(fields: dict[str, object], expected: dict[str, object]) -> None:
    assert build_body(**fields).items() >= expected.items()


def test_visible_control_tokens_are_preserved() -> None:
    assert wire.build_completion([1], Sampling(), UNCONSTRAINED, ("<s>",))["preserved_tokens"] == ("<s>",)


def test_caching_can_be_disabled_for_a_request() -> None:
    assert wire.build_completion([1], Sampling(), UNCONSTRAINED, [], use_cache=False)["cache_prompt"] is False


@pytest.mark.parametrize(
    ("status", "body", "kind", "message"),
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
        (502, b"<html>", EngineFailed, "returned HTTP status 502"),
    ],
)
def test_an_error_response_is_translated_for_the_client(
    status: int, body: bytes, kind: type[AntiphonError], message: str
) -> None:
    error = to_client_error(EngineHttpError("The engine", status, body))
    assert isinstance(error, kind)
    assert message in error.message
