"""The openai package counts tokens; and the count is the usage, for the embedded model too."""

import json
from typing import Any

import pytest
from openai import AsyncOpenAI, OpenAI

from tests.api.token_counts import BODIES
from tests.clients.tool_definitions import SQL, WEATHER
from tests.support.server_process import Live


@pytest.mark.shows("A.10")
def test_the_package_counts_what_it_would_send(client: OpenAI) -> None:
    asked: Any = {"model": "fake", "input": "hi", "instructions": "Be brief.", "tools": [WEATHER, SQL]}
    counted = client.responses.input_tokens.count(**asked)
    assert counted.object == "response.input_tokens"
    usage = client.responses.create(**asked).usage
    assert usage is not None
    assert counted.input_tokens == usage.input_tokens


@pytest.mark.anyio
async def test_a_chain_is_counted_with_what_came_before(async_client: AsyncOpenAI) -> None:
    first = await async_client.responses.create(model="fake", input="I am Ada.")
    asked: Any = {"model": "fake", "input": "And you?", "previous_response_id": first.id}
    counted = await async_client.responses.input_tokens.count(**asked)
    usage = (await async_client.responses.create(**asked)).usage
    assert usage is not None
    assert counted.input_tokens == usage.input_tokens


@pytest.mark.real_model
@pytest.mark.shows("A.10")
def test_the_embedded_model_counts_what_it_reports(embedded: Live) -> None:
    model = json.loads(embedded.get("/v1/models")[1])["data"][0]["id"]
    counted = 0
    for name, body in BODIES.items():
        if name == "cut":  # long, and slow to read for a model on a busy machine
            continue
        status, told, used = _both(embedded, {**body, "model": model, "max_output_tokens": 1})
        assert told == used, name
        counted += status == 200
    assert counted >= 10
    first = json.loads(embedded.post({"model": model, "input": "I am Ada.", "max_output_tokens": 2})[1])
    chained = {"model": model, "input": "And you?", "previous_response_id": first["id"], "max_output_tokens": 1}
    status, told, used = _both(embedded, chained)
    assert (status, told) == (200, used)


def _both(live: Live, body: dict[str, Any]) -> tuple[int, Any, Any]:
    """What is counted and what is reported, or both errors."""
    asked, told = live.send("POST", "/v1/responses/input_tokens", body)
    status, used = live.post(body)
    assert asked == status, (told, used)
    if status != 200:
        return status, json.loads(told), json.loads(used)
    return status, json.loads(told)["input_tokens"], json.loads(used)["usage"]["input_tokens"]
