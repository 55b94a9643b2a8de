"""Chat completions and completions with the embedded model. The model is very small, so only the form of its answers is
checked.
"""

import json
from typing import Any

import pytest
from openai import BadRequestError, OpenAI

from tests.oracles.chat import accumulate, check_chat, check_chunk, check_completion

pytestmark = [pytest.mark.needs("llamacpp"), pytest.mark.real_model, pytest.mark.timeout(400)]
HELLO: Any = [{"role": "user", "content": "Say hello."}]


@pytest.fixture
def model(embedded_client: OpenAI) -> str:
    return next(iter(embedded_client.models.list())).id


@pytest.mark.shows("G.1")
def test_a_greedy_chat_is_the_same_in_json_and_in_a_stream(embedded_client: OpenAI, model: str) -> None:
    fields: Any = {"model": model, "messages": HELLO, "max_tokens": 12, "temperature": 0, "logprobs": True}
    completion = embedded_client.chat.completions.create(**fields)
    check_chat(json.loads(completion.to_json()))
    chunks = [chunk.to_dict(mode="json") for chunk in embedded_client.chat.completions.create(stream=True, **fields)]
    for chunk in chunks:
        check_chunk(chunk)
    assert accumulate(chunks).choices[0].message.content == completion.choices[0].message.content
    assert completion.usage is not None
    assert 0 < completion.usage.completion_tokens <= 12


def test_several_choices_are_generated_with_few_slots(embedded_client: OpenAI, model: str) -> None:
    completion = embedded_client.chat.completions.create(model=model, messages=HELLO, max_tokens=4, n=3, seed=1)
    assert [choice.index for choice in completion.choices] == [0, 1, 2]


@pytest.mark.shows("G.3")
def test_a_completion_continues_the_prompt_without_a_template(embedded_client: OpenAI, model: str) -> None:
    completion = embedded_client.completions.create(
        model=model, prompt="One two three four five", max_tokens=6, temperature=0, echo=True, logprobs=None
    )
    check_completion(json.loads(completion.to_json()))
    assert completion.choices[0].text.startswith("One two three four five")
    assert len(completion.choices[0].text) > len("One two three four five")
    assert completion.usage is not None
    assert completion.usage.prompt_tokens <= 7


def test_completion_logprobs_are_parallel_lists(embedded_client: OpenAI, model: str) -> None:
    completion = embedded_client.completions.create(
        model=model, prompt="One two", max_tokens=4, temperature=0, logprobs=2
    )
    logprobs = completion.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert len(logprobs.tokens) == len(logprobs.token_logprobs or ()) == len(logprobs.text_offset or ()) > 0


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"guided_grammar": "root ::= ("}, "guided_grammar"),
        ({"structured_outputs": {"grammar": "root ::= nobody"}}, "structured_outputs.grammar"),
    ],
)
def test_a_malformed_grammar_is_rejected_with_its_parameter(
    embedded_client: OpenAI, model: str, stream: bool, fields: Any, param: str
) -> None:
    with pytest.raises(BadRequestError) as raised:
        embedded_client.chat.completions.create(model=model, messages=HELLO, stream=stream, extra_body=fields)
    assert raised.value.param == param
    assert "This grammar cannot be enforced" in raised.value.message
