"""Real models that have to call a tool do so with valid arguments: the default model, and one that was trained for
tools.

The second is the GGUF file that TEST_GGUF names (`make test-engines GGUF=FILE`), Qwen2.5-Coder-1.5B-Instruct or better.
"""

import os
from collections.abc import Iterator
from itertools import cycle, islice

import pytest
from openai import OpenAI

from tests.clients.embedded_model.test_required_calls import INPUTS, require_calls
from tests.support.server_process import run_server

pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(3000)]

MORE_QUESTIONS = [
    "What is the weather in Rome?",
    "Wake me in ten minutes.",
    "Will it rain in Lima this week?",
    "How are you?",
]


@pytest.fixture(scope="module")
def default_client() -> Iterator[OpenAI]:
    with run_server("--engine", "llamacpp", "--context", "1024", ready_seconds=300) as server:
        yield OpenAI(base_url=server.v1, api_key="unused", max_retries=0, timeout=300)


@pytest.fixture(scope="module")
def tool_client() -> Iterator[OpenAI]:
    if not (file := os.environ.get("TEST_GGUF", "")):
        pytest.skip("real engine: TEST_GGUF is not set: `make test-engines GGUF=FILE` sets it")
    with run_server("--engine", "llamacpp", "--model", file, "--context", "2048", ready_seconds=300) as server:
        yield OpenAI(base_url=server.v1, api_key="unused", max_retries=0, timeout=600)


def first_model_id(client: OpenAI) -> str:
    return next(iter(client.models.list())).id


@pytest.mark.shows("D.12", "D.13")
def test_the_default_model_makes_fifty_valid_calls_of_fifty(default_client: OpenAI) -> None:
    questions = [*islice(cycle(INPUTS + MORE_QUESTIONS), 50)]
    assert (
        sum(require_calls(default_client, first_model_id(default_client), questions, parallel_tool_calls=False)) == 50
    )


@pytest.mark.shows("D.12", "D.13")
def test_parallel_calls_come_to_an_end(default_client: OpenAI) -> None:
    assert sum(require_calls(default_client, first_model_id(default_client), INPUTS, max_output_tokens=500)) == len(
        INPUTS
    )


@pytest.mark.shows("D.12", "D.13")
def test_a_model_trained_for_tools_makes_ten_valid_calls_of_ten(tool_client: OpenAI) -> None:
    assert (
        sum(require_calls(tool_client, first_model_id(tool_client), INPUTS + MORE_QUESTIONS, max_output_tokens=300))
        == 10
    )
