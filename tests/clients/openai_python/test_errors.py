"""Errors with the `openai` package: the matching exception class, with the code and the param of the field to
change.
"""

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.support.server_process import ServerProcess, run_server

KEY = "sk-test-1234567890"


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with run_server("--engine", "fake", "--api-key", KEY) as server:
        yield server


INVALID_FIELDS: dict[str, tuple[dict[str, Any], str]] = {
    "temperature": ({"temperature": 2.5}, "temperature"),
    "top_p": ({"top_p": 1.5}, "top_p"),
    "top_logprobs": ({"top_logprobs": 21}, "top_logprobs"),
    "max_output_tokens": ({"max_output_tokens": 0}, "max_output_tokens"),
    "metadata": ({"metadata": {f"k{n}": "v" for n in range(17)}}, "metadata"),
    "input": ({"input": [{"role": "nobody", "content": "hi"}]}, "input[0]"),
    "tools": ({"tools": [{"type": "function"}]}, "tools[0]"),
    "include": ({"include": ["everything"]}, "include"),
    "effort": ({"reasoning": {"effort": "enormous"}}, "reasoning.effort"),
    "background": ({"background": True, "store": False}, "background"),
    "previous_response_id": ({"previous_response_id": "resp_x"}, "previous_response_id"),
    "conversation": ({"conversation": "x"}, "conversation"),
}


@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
@pytest.mark.parametrize("name", INVALID_FIELDS)
@pytest.mark.shows("A.65", "H.14")
def test_an_invalid_field_is_rejected_with_its_name(client: OpenAI, name: str, stream: bool) -> None:
    fields, param = INVALID_FIELDS[name]
    with pytest.raises(openai.BadRequestError) as raised:
        client.responses.create(**{"model": "fake", "input": "hi", "stream": stream, **fields})
    assert (raised.value.param or "").startswith(param)
    assert raised.value.code
    assert raised.value.type == "invalid_request_error"
    assert raised.value.request_id


@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
@pytest.mark.shows("A.65")
def test_an_unknown_conversation_is_not_found(client: OpenAI, stream: bool) -> None:
    with pytest.raises(openai.NotFoundError) as raised:
        client.responses.create(model="fake", input="hi", conversation="conv_x", stream=stream)
    assert (raised.value.code, raised.value.param) == ("conversation_not_found", "conversation")


def test_an_unknown_response_is_not_found(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as raised:
        client.responses.retrieve("resp_unknown")
    assert raised.value.type == "not_found_error"


@pytest.mark.shows("H.1")
def test_a_wrong_key_is_an_authentication_error(server: ServerProcess) -> None:
    with (
        OpenAI(base_url=server.v1, api_key="wrong", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError) as raised,
    ):
        client.responses.create(model="fake", input="hi")
    assert raised.value.code == "invalid_api_key"
    assert raised.value.type == "authentication_error"


def test_the_right_key_is_accepted(server: ServerProcess) -> None:
    with OpenAI(base_url=server.v1, api_key=KEY, max_retries=0) as client:
        assert client.responses.create(model="fake", input="hi").status == "completed"
        assert list(client.models.list())


@pytest.mark.parametrize("path", ["/health", "/ready", "/version"])
def test_only_public_paths_are_served_without_a_key(server: ServerProcess, path: str) -> None:
    assert server.get(path)[0] == 200
    assert server.get("/v1/models")[0] == 401
