"""Real models that have to call do, and their arguments fit: the default one, and one that was made for tools.

The second is the GGUF file that TEST_GGUF names (`make test-engines GGUF=FILE`), Qwen2.5-Coder-1.5B-Instruct or better.
"""

import os
from collections.abc import Iterator
from itertools import cycle, islice

import pytest
from openai import OpenAI

from tests.clients.embedded_model.test_required_calls import ASKED, required
from tests.support.server_process import serving

pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(3000)]

MORE = ["What is the weather in Rome?", "Wake me in ten minutes.", "Will it rain in Lima this week?", "How are you?"]


@pytest.fixture(scope="module")
def default() -> Iterator[OpenAI]:
    with serving("--engine", "llamacpp", "--context", "1024", ready_seconds=300) as live:
        yield OpenAI(base_url=live.v1, api_key="unused", max_retries=0, timeout=300)


@pytest.fixture(scope="module")
def capable() -> Iterator[OpenAI]:
    if not (file := os.environ.get("TEST_GGUF", "")):
        pytest.skip("TEST_GGUF names no model: `make test-engines GGUF=FILE` does")
    with serving("--engine", "llamacpp", "--model", file, "--context", "2048", ready_seconds=300) as live:
        yield OpenAI(base_url=live.v1, api_key="unused", max_retries=0, timeout=600)


def model_of(client: OpenAI) -> str:
    return next(iter(client.models.list())).id


@pytest.mark.shows("D.12", "D.13")
def test_the_default_model_calls_rightly_fifty_times_of_fifty(default: OpenAI) -> None:
    asked = [*islice(cycle(ASKED + MORE), 50)]
    assert sum(required(default, model_of(default), asked, parallel_tool_calls=False)) == 50


@pytest.mark.shows("D.12", "D.13")
def test_several_calls_come_to_an_end(default: OpenAI) -> None:
    assert sum(required(default, model_of(default), ASKED, max_output_tokens=500)) == len(ASKED)


@pytest.mark.shows("D.12", "D.13")
def test_a_model_that_was_made_for_it_calls_rightly_ten_times_of_ten(capable: OpenAI) -> None:
    assert sum(required(capable, model_of(capable), ASKED + MORE, max_output_tokens=300)) == 10
