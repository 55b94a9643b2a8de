"""Chat completions and completions of the embedded model. It is a very small one: only the form is judged."""

import json
from typing import Any

import pytest
from openai import OpenAI

from tests.oracles.chat import accumulate, check_chat, check_chunk, check_completion

pytestmark = [pytest.mark.needs("llamacpp"), pytest.mark.real_model, pytest.mark.timeout(400)]
HELLO: Any = [{"role": "user", "content": "Say hello."}]


@pytest.fixture
def model(small: OpenAI) -> str:
    return next(iter(small.models.list())).id


@pytest.mark.shows("G.1")
def test_a_greedy_chat_is_the_same_in_json_and_in_a_stream(small: OpenAI, model: str) -> None:
    asked: Any = {"model": model, "messages": HELLO, "max_tokens": 12, "temperature": 0, "logprobs": True}
    whole = small.chat.completions.create(**asked)
    check_chat(json.loads(whole.to_json()))
    chunks = [chunk.to_dict(mode="json") for chunk in small.chat.completions.create(stream=True, **asked)]
    for chunk in chunks:
        check_chunk(chunk)
    assert accumulate(chunks).choices[0].message.content == whole.choices[0].message.content
    assert whole.usage is not None
    assert 0 < whole.usage.completion_tokens <= 12


def test_several_answers_come_from_a_model_with_few_slots(small: OpenAI, model: str) -> None:
    whole = small.chat.completions.create(model=model, messages=HELLO, max_tokens=4, n=3, seed=1)
    assert [choice.index for choice in whole.choices] == [0, 1, 2]


@pytest.mark.shows("G.3")
def test_a_text_is_continued_without_a_template(small: OpenAI, model: str) -> None:
    whole = small.completions.create(
        model=model, prompt="One two three four five", max_tokens=6, temperature=0, echo=True, logprobs=None
    )
    check_completion(json.loads(whole.to_json()))
    assert whole.choices[0].text.startswith("One two three four five")
    assert len(whole.choices[0].text) > len("One two three four five")
    assert whole.usage is not None
    assert whole.usage.prompt_tokens <= 7


def test_log_probabilities_of_a_continuation_are_four_lists(small: OpenAI, model: str) -> None:
    whole = small.completions.create(model=model, prompt="One two", max_tokens=4, temperature=0, logprobs=2)
    told = whole.choices[0].logprobs
    assert told is not None
    assert told.tokens is not None
    assert len(told.tokens) == len(told.token_logprobs or ()) == len(told.text_offset or ()) > 0
