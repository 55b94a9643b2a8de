"""Requests of /v1/completions, as they are read."""

import json
from typing import Any

import pytest

from antiphon.core.dialects.completions_request import CompletionRequest, read_completion
from antiphon.core.prompt import Segment, TextPrompt, TokenPrompt
from antiphon.errors import BadRequest
from antiphon.limits import Limits
from antiphon.protocol.types.response import JsonObjectFormat

TEXT = TextPrompt((Segment("hi", control=True),))
TOKENS = TokenPrompt((1, 0))


def make_request(**fields: Any) -> CompletionRequest:
    return read_completion(json.dumps({"model": "m", "prompt": "hi", **fields}).encode(), Limits())


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [("hi", [TEXT]), ([1, 0], [TOKENS]), (["hi", "hi"], [TEXT, TEXT]), ([[1, 0], "hi"], [TOKENS, TEXT])],
)
def test_a_prompt_is_a_text_token_ids_or_a_list_of_either(prompt: Any, expected: Any) -> None:
    assert make_request(prompt=prompt).prompts == expected


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": 0}, "prompt"),
        ({"prompt": ["hi", ""]}, "prompt[1]"),
        ({"prompt": [[1], []]}, "prompt[1]"),
        ({"prompt": [1, True]}, "prompt[1]"),
        ({"prompt": [1, "hi"]}, "prompt"),
        ({"prompt": [[1], 2]}, "prompt[1]"),
        ({"prompt": ["hi"] * 129}, "prompt"),
        ({"prompt": ["hi"] * 9, "n": 15}, "prompt"),
        ({"prompt": ["hi"] * 9, "best_of": 15}, "prompt"),
        ({"suffix": "x"}, "suffix"),
        ({"stream": True, "best_of": 2}, "best_of"),
        ({"stream": True, "echo": True, "logprobs": 0}, "echo"),
        ({"n": 17}, "n"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens"),
    ],
)
def test_an_invalid_request_is_rejected_with_its_parameter(fields: Any, param: str) -> None:
    with pytest.raises(BadRequest) as rejected:
        make_request(**fields)
    assert rejected.value.param == param


@pytest.mark.parametrize(
    "fields",
    [
        {"suffix": ""},
        {"prompt": ["hi"] * 128},
        {"prompt": ["hi"] * 8, "n": 16},
        {"best_of": 2},
        {"stream": True, "best_of": 2, "n": 2},
        {"stream": True, "echo": True},
        {"stream": True, "logprobs": 1},
        {"echo": True, "logprobs": 1},
        {"min_tokens": 8, "max_tokens": 8},
    ],
)
def test_values_up_to_each_limit_are_accepted(fields: Any) -> None:
    assert make_request(**fields).decoded.request.model == "m"


def test_shared_fields_are_carried_over() -> None:
    request = make_request(
        temperature=0.5, max_tokens=7, logprobs=0, response_format={"type": "json_object"}
    ).decoded.request
    assert (request.temperature, request.max_output_tokens) == (0.5, 7)
    assert (request.logprobs, request.top_logprobs) == (True, 0)
    assert request.text.format == JsonObjectFormat()
    plain = make_request().decoded
    assert plain.sent.isdisjoint({"temperature", "max_output_tokens", "logprobs", "text"})


@pytest.mark.parametrize(("stream", "ignored"), [(False, True), (True, False)])
def test_stream_options_have_an_effect_on_streams_only(stream: bool, ignored: bool) -> None:
    body: dict[str, Any] = {"model": "m", "prompt": "hi", "stream": stream, "stream_options": {"include_usage": True}}
    request = read_completion(json.dumps(body).encode(), Limits())
    assert ("stream_options" in request.decoded.ignored) is ignored
