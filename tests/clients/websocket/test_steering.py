"""Steering over a WebSocket, with the openai package, against a model that takes its time."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from openai import AsyncOpenAI
from openai.resources.responses.responses import AsyncResponsesConnection

from tests.oracles.responses import check_socket_event
from tests.support.server_process import Live, serving

pytestmark = [pytest.mark.anyio, pytest.mark.shows("F.10")]

TOOL = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


# It calls, and then takes its time to say that this was all.
SCRIPT = """
[[reply]]
when = { contains = "French" }
steps = [{ say = "Il pleut." }]

[[reply]]
when = { contains = "weather" }
steps = [{ call = { name = "get_weather", arguments = { city = "Oslo" } } }, { delay = 2.5 }]
"""


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    script = tmp_path_factory.mktemp("steering") / "script.toml"
    script.write_text(SCRIPT)
    with serving("--engine", "fake", "--fake-rate", "20", "--fake-script", str(script)) as live:
        yield live


@pytest.fixture
async def connection(slow: Live) -> AsyncIterator[AsyncResponsesConnection]:
    async with (
        AsyncOpenAI(base_url=slow.v1, api_key="unused") as client,
        client.responses.connect() as connection,
    ):
        yield connection


class Talk:
    def __init__(self, connection: AsyncResponsesConnection) -> None:
        self._connection = connection
        self.heard: list[dict[str, Any]] = []

    async def create(self, **body: Any) -> None:
        await self._connection.send({"type": "response.create", "model": "fake", **body})  # type: ignore[arg-type]  # any

    async def steer(self, response_id: str, said: Any) -> None:
        await self._connection.send({"type": "response.steer", "previous_response_id": response_id, "input": said})

    async def until(self, kind: str, is_valid: bool = True) -> dict[str, Any]:
        """`is_valid`: what is not right is given back as it came, and then the types do not have it."""
        while True:
            async with asyncio.timeout(60):
                event: dict[str, Any] = json.loads(await self._connection.recv_bytes())
            if is_valid or event["type"] != kind:
                check_socket_event(event)
            self.heard.append(event)
            if event["type"] == kind:
                return event


@pytest.fixture
def talk(connection: AsyncResponsesConnection) -> Talk:
    return Talk(connection)


@pytest.mark.parametrize("store", [False, True])
async def test_a_steered_response_ends_where_it_is_and_another_goes_on_with_what_was_said(
    talk: Talk, store: bool
) -> None:
    await talk.create(input="Tell me a long story about the sea and the wind. " * 20, store=store, stream_id="a")
    first = (await talk.until("response.created"))["response"]
    await talk.until("response.output_text.delta")
    await talk.steer(first["id"], "No, about mountains")
    accepted = await talk.until("response.steer.accepted")
    ended = (await talk.until("response.incomplete"))["response"]
    assert ended["incomplete_details"] == {"reason": "steered"}
    assert ended["output"][0]["status"] == "incomplete"
    second = (await talk.until("response.created"))["response"]
    assert (second["previous_response_id"], second["store"]) == (first["id"], store)
    final = (await talk.until("response.completed"))["response"]
    assert final["output"][0]["content"][0]["text"] == "You said: No, about mountains"
    assert accepted["steer"]["id"].startswith("steer_")
    assert {event["stream_id"] for event in talk.heard} == {"a"}


async def test_what_was_said_to_a_response_that_calls_waits_for_the_outputs(talk: Talk) -> None:
    await talk.create(input="How is the weather in Oslo?", tools=[TOOL], store=False)
    first = (await talk.until("response.created"))["response"]
    await talk.until("response.output_item.added")
    await talk.steer(first["id"], [{"type": "message", "role": "user", "content": "And say it in French"}])
    await talk.until("response.steer.accepted")
    call = (await talk.until("response.completed"))["response"]["output"][0]
    pending = await talk.until("response.steer.pending")
    assert pending["required_input"] == [
        {"type": "function_call_output", "call_id": call["call_id"], "name": "get_weather"}
    ]
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "rain"}
    await talk.create(input=[output], previous_response_id=first["id"], tools=[TOOL], store=False)
    final = (await talk.until("response.completed"))["response"]
    assert final["output"][-1]["content"][0]["text"] == "Il pleut."


async def test_what_waits_for_outputs_stays_when_a_create_that_brings_them_is_refused(talk: Talk) -> None:
    await talk.create(input="How is the weather in Oslo?", tools=[TOOL])
    first = (await talk.until("response.created"))["response"]
    await talk.until("response.output_item.added")
    await talk.steer(first["id"], "And say it in French")
    call = (await talk.until("response.completed"))["response"]["output"][0]
    await talk.until("response.steer.pending")
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "rain"}
    brought = {"input": [output], "previous_response_id": first["id"], "tools": [TOOL]}
    await talk.create(input="Tell me about the sea, the wind and the sand. " * 5, store=False)  # some three seconds
    for _ in range(64):
        await talk.create(input="Hi", generate=False, store=False)
    await talk.create(**brought)
    assert (await talk.until("error"))["status"] == 429
    for _ in range(65):
        await talk.until("response.completed")
    await talk.create(**brought)
    final = (await talk.until("response.completed"))["response"]
    assert final["output"][-1]["content"][0]["text"] == "Il pleut."


async def test_what_cannot_be_steered_is_refused_with_what_was_said(talk: Talk) -> None:
    await talk.steer("resp_unknown", "hello")
    refused = await talk.until("response.steer.failed")
    assert refused["error"]["code"] == "response_not_found"
    assert refused["steer"] == {"previous_response_id": "resp_unknown", "input": "hello"}
    await talk.create(input="Hi", generate=False)
    warm = (await talk.until("response.completed"))["response"]
    await talk.steer(warm["id"], "hello")
    assert (await talk.until("response.steer.failed"))["error"]["code"] == "response_already_completed"


@pytest.mark.parametrize("said", ["", [], [{"role": "developer", "content": "x"}], [{"type": "nothing"}], 7])
async def test_steering_takes_messages_of_the_user_alone(talk: Talk, said: Any) -> None:
    await talk.steer("resp_any", said)
    assert (await talk.until("response.steer.failed", is_valid=False))["error"]["code"] == "invalid_input"
    await talk.create(input="Hi", generate=False)
    await talk.until("response.completed")
