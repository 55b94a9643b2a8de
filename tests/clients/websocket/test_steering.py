"""Steering over a WebSocket with the openai package, against a server with a slow fake engine."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from openai import AsyncOpenAI
from openai.resources.responses.responses import AsyncResponsesConnection

from tests.oracles.responses import check_socket_event
from tests.support.server_process import ServerProcess, run_server

pytestmark = [pytest.mark.anyio, pytest.mark.shows("F.10")]

TOOL = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


# The tool call is followed by a delay before the response ends.
SCRIPT = """
[[reply]]
when = { contains = "French" }
steps = [{ say = "Il pleut." }]

[[reply]]
when = { contains = "weather" }
steps = [{ call = { name = "get_weather", arguments = { city = "Oslo" } } }, { delay = 2.5 }]
"""


@pytest.fixture(scope="module")
def paced_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    script = tmp_path_factory.mktemp("steering") / "script.toml"
    script.write_text(SCRIPT)
    with run_server("--engine", "fake", "--fake-rate", "20", "--fake-script", str(script)) as server:
        yield server


@pytest.fixture
async def connection(paced_server: ServerProcess) -> AsyncIterator[AsyncResponsesConnection]:
    async with (
        AsyncOpenAI(base_url=paced_server.v1, api_key="unused") as client,
        client.responses.connect() as connection,
    ):
        yield connection


class SteeringClient:
    def __init__(self, connection: AsyncResponsesConnection) -> None:
        self._connection = connection
        self.events: list[dict[str, Any]] = []

    async def create(self, **body: Any) -> None:
        await self._connection.send({"type": "response.create", "model": "fake", **body})  # type: ignore[arg-type]  # any

    async def steer(self, response_id: str, content: Any) -> None:
        await self._connection.send({"type": "response.steer", "previous_response_id": response_id, "input": content})

    async def receive_until(self, kind: str, is_valid: bool = True) -> dict[str, Any]:
        """Receive events up to the first one of this type.

        `is_valid=False`: the last event repeats invalid input unchanged, which the types of the openai package reject.
        """
        while True:
            async with asyncio.timeout(60):
                event: dict[str, Any] = json.loads(await self._connection.recv_bytes())
            if is_valid or event["type"] != kind:
                check_socket_event(event)
            self.events.append(event)
            if event["type"] == kind:
                return event


@pytest.fixture
def steering_client(connection: AsyncResponsesConnection) -> SteeringClient:
    return SteeringClient(connection)


@pytest.mark.parametrize("store", [False, True])
async def test_steering_ends_the_response_and_starts_a_successor_with_the_new_input(
    steering_client: SteeringClient, store: bool
) -> None:
    await steering_client.create(
        input="Tell me a long story about the sea and the wind. " * 20, store=store, stream_id="a"
    )
    first = (await steering_client.receive_until("response.created"))["response"]
    await steering_client.receive_until("response.output_text.delta")
    await steering_client.steer(first["id"], "No, about mountains")
    accepted = await steering_client.receive_until("response.steer.accepted")
    ended = (await steering_client.receive_until("response.incomplete"))["response"]
    assert ended["incomplete_details"] == {"reason": "steered"}
    assert ended["output"][0]["status"] == "incomplete"
    second = (await steering_client.receive_until("response.created"))["response"]
    assert (second["previous_response_id"], second["store"]) == (first["id"], store)
    final = (await steering_client.receive_until("response.completed"))["response"]
    assert final["output"][0]["content"][0]["text"] == "You said: No, about mountains"
    assert accepted["steer"]["id"].startswith("steer_")
    assert {event["stream_id"] for event in steering_client.events} == {"a"}


async def test_steering_a_response_with_a_tool_call_waits_for_the_tool_output(steering_client: SteeringClient) -> None:
    await steering_client.create(input="How is the weather in Oslo?", tools=[TOOL], store=False)
    first = (await steering_client.receive_until("response.created"))["response"]
    await steering_client.receive_until("response.output_item.added")
    await steering_client.steer(first["id"], [{"type": "message", "role": "user", "content": "And say it in French"}])
    await steering_client.receive_until("response.steer.accepted")
    call = (await steering_client.receive_until("response.completed"))["response"]["output"][0]
    pending = await steering_client.receive_until("response.steer.pending")
    assert pending["required_input"] == [
        {"type": "function_call_output", "call_id": call["call_id"], "name": "get_weather"}
    ]
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "rain"}
    await steering_client.create(input=[output], previous_response_id=first["id"], tools=[TOOL], store=False)
    final = (await steering_client.receive_until("response.completed"))["response"]
    assert final["output"][-1]["content"][0]["text"] == "Il pleut."


async def test_pending_steering_survives_a_rejected_create_with_the_tool_output(
    steering_client: SteeringClient,
) -> None:
    await steering_client.create(input="How is the weather in Oslo?", tools=[TOOL])
    first = (await steering_client.receive_until("response.created"))["response"]
    await steering_client.receive_until("response.output_item.added")
    await steering_client.steer(first["id"], "And say it in French")
    call = (await steering_client.receive_until("response.completed"))["response"]["output"][0]
    await steering_client.receive_until("response.steer.pending")
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "rain"}
    continuation = {"input": [output], "previous_response_id": first["id"], "tools": [TOOL]}
    # takes about three seconds
    await steering_client.create(input="Tell me about the sea, the wind and the sand. " * 5, store=False)
    for _ in range(64):
        await steering_client.create(input="Hi", generate=False, store=False)
    await steering_client.create(**continuation)
    assert (await steering_client.receive_until("error"))["status"] == 429
    for _ in range(65):
        await steering_client.receive_until("response.completed")
    await steering_client.create(**continuation)
    final = (await steering_client.receive_until("response.completed"))["response"]
    assert final["output"][-1]["content"][0]["text"] == "Il pleut."


async def test_steering_an_unknown_or_completed_response_fails_and_returns_the_input(
    steering_client: SteeringClient,
) -> None:
    await steering_client.steer("resp_unknown", "hello")
    refused = await steering_client.receive_until("response.steer.failed")
    assert refused["error"]["code"] == "response_not_found"
    assert refused["steer"] == {"previous_response_id": "resp_unknown", "input": "hello"}
    await steering_client.create(input="Hi", generate=False)
    warm = (await steering_client.receive_until("response.completed"))["response"]
    await steering_client.steer(warm["id"], "hello")
    assert (await steering_client.receive_until("response.steer.failed"))["error"][
        "code"
    ] == "response_already_completed"


@pytest.mark.parametrize("content", ["", [], [{"role": "developer", "content": "x"}], [{"type": "nothing"}], 7])
async def test_steering_accepts_only_user_messages(steering_client: SteeringClient, content: Any) -> None:
    await steering_client.steer("resp_any", content)
    assert (await steering_client.receive_until("response.steer.failed", is_valid=False))["error"][
        "code"
    ] == "invalid_input"
    await steering_client.create(input="Hi", generate=False)
    await steering_client.receive_until("response.completed")
