"""Token counting with the `openai` package: the count equals the usage of the same request, for the fake engine and the
embedded model.
"""

import json
from typing import Any

import pytest
from openai import AsyncOpenAI, OpenAI

from tests.api.token_counts import BODIES
from tests.clients.tool_definitions import SQL, WEATHER
from tests.support.server_process import ServerProcess

# A long prompt, and prompts that differ from that of "tools" in their tool definitions only: a model needs seconds for
# each of them. tests/transport/endpoints/test_input_tokens.py counts them with the fake engine.
SLOW_BODIES = {"cut", "custom tool", "namespace", "tool choice none", "tool choice required", "tool choice named"}


@pytest.mark.shows("A.10")
def test_the_token_count_equals_the_usage(client: OpenAI) -> None:
    fields: Any = {"model": "fake", "input": "hi", "instructions": "Be brief.", "tools": [WEATHER, SQL]}
    counted = client.responses.input_tokens.count(**fields)
    assert counted.object == "response.input_tokens"
    usage = client.responses.create(**fields).usage
    assert usage is not None
    assert counted.input_tokens == usage.input_tokens


@pytest.mark.anyio
async def test_a_chained_request_is_counted_with_its_history(async_client: AsyncOpenAI) -> None:
    first = await async_client.responses.create(model="fake", input="I am Ada.")
    fields: Any = {"model": "fake", "input": "And you?", "previous_response_id": first.id}
    counted = await async_client.responses.input_tokens.count(**fields)
    usage = (await async_client.responses.create(**fields)).usage
    assert usage is not None
    assert counted.input_tokens == usage.input_tokens


@pytest.mark.real_model
@pytest.mark.shows("A.10")
def test_the_token_count_equals_the_usage_of_the_embedded_model(embedded_server: ServerProcess) -> None:
    model = json.loads(embedded_server.get("/v1/models")[1])["data"][0]["id"]
    compared = 0
    for name, body in BODIES.items():
        if name in SLOW_BODIES:
            continue
        status, count, usage = _count_and_run(embedded_server, {**body, "model": model, "max_output_tokens": 1})
        assert count == usage, name
        compared += status == 200
    assert compared >= 10
    first = json.loads(embedded_server.post({"model": model, "input": "I am Ada.", "max_output_tokens": 2})[1])
    chained = {"model": model, "input": "And you?", "previous_response_id": first["id"], "max_output_tokens": 1}
    status, count, usage = _count_and_run(embedded_server, chained)
    assert (status, count) == (200, usage)


def _count_and_run(server: ServerProcess, body: dict[str, Any]) -> tuple[int, Any, Any]:
    """Return the status with the token count and the input tokens of the usage, or with both error bodies."""
    count_status, count = server.send("POST", "/v1/responses/input_tokens", body)
    status, usage = server.post(body)
    assert count_status == status, (count, usage)
    if status != 200:
        return status, json.loads(count), json.loads(usage)
    return status, json.loads(count)["input_tokens"], json.loads(usage)["usage"]["input_tokens"]
