"""The openai package for Python over a WebSocket: turns, warm-up, errors, lanes and its session helpers, and the Agents
SDK on top of it.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from agents import Agent, ModelSettings, OpenAIResponsesWSModel, Runner, function_tool
from agents.run import RunConfig
from openai import AsyncOpenAI, NotFoundError, OpenAI
from openai.lib.responses_websocket import (
    AsyncResponsesWebSocketSession,
    ResponsesWebSocketAccumulator,
    ResponsesWebSocketError,
    ResponsesWebSocketLimits,
    ResponsesWebSocketSession,
)
from openai.resources.responses.responses import AsyncResponsesConnection, ResponsesConnection
from openai.types.responses import Response
from openai.types.responses.responses_server_event import ResponseWsError

from tests.clients.tool_definitions import WEATHER
from tests.oracles.responses import accumulate, check_event
from tests.support.server_process import ServerProcess

LIMITS = ResponsesWebSocketLimits(
    max_lanes=8, max_events_per_lane=1024, max_events=4096, max_bytes_per_lane=1 << 22, max_bytes=1 << 24
)
ENDS = ("response.completed", "response.incomplete", "response.failed", "error")
NORWAY, PEOPLE = "What is the capital of Norway?", "How many people live there?"


@pytest.fixture
def connection(guide_server: ServerProcess) -> Iterator[ResponsesConnection]:
    with OpenAI(base_url=guide_server.v1, api_key="unused") as client, client.responses.connect() as connection:
        yield connection


@pytest.fixture
async def async_guide_client(guide_server: ServerProcess) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=guide_server.v1, api_key="unused", max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture
async def async_connection(async_guide_client: AsyncOpenAI) -> AsyncIterator[AsyncResponsesConnection]:
    async with async_guide_client.responses.connect() as connection:
        yield connection


def run_turn(connection: ResponsesConnection, **request: Any) -> list[Any]:
    """Run one response and return its events."""
    connection.response.create(model="fake", **request)
    events: list[Any] = []
    for event in connection:
        events.append(event)
        if event.type in ENDS:
            break
    return events


def get_final_response(events: list[Any]) -> Response:
    response: Response = events[-1].response
    return response


def to_dicts(events: list[Any]) -> list[dict[str, Any]]:
    return [json.loads(event.model_dump_json(exclude_unset=True, by_alias=True)) for event in events]


@pytest.mark.shows("F.1", "F.2")
@pytest.mark.parametrize("fields", [{}, {"tools": [WEATHER]}, {"reasoning": {"effort": "low"}}], ids=str)
def test_websocket_events_match_the_events_of_a_stream(connection: ResponsesConnection, fields: dict[str, Any]) -> None:
    events = run_turn(connection, input="hi", **fields)
    for event in to_dicts(events):
        check_event(event)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert accumulate(to_dicts(events)) == get_final_response(events)


@pytest.mark.shows("F.4", "F3.2")
def test_a_response_that_is_not_stored_is_continued_on_its_connection(
    guide_server: ServerProcess, connection: ResponsesConnection
) -> None:
    first = get_final_response(run_turn(connection, input=NORWAY, store=False))
    second = get_final_response(run_turn(connection, input=PEOPLE, store=False, previous_response_id=first.id))
    assert second.output_text == "Some 700,000."
    assert second.previous_response_id == first.id
    with OpenAI(base_url=guide_server.v1, api_key="unused") as client, pytest.raises(NotFoundError):
        client.responses.retrieve(second.id)


@pytest.mark.shows("F.4")
def test_a_stored_response_is_continued_on_another_connection_and_over_http(guide_server: ServerProcess) -> None:
    with OpenAI(base_url=guide_server.v1, api_key="unused") as client:
        with client.responses.connect() as connection:
            first = get_final_response(run_turn(connection, input=NORWAY))
        with client.responses.connect() as connection:
            second = get_final_response(run_turn(connection, input=PEOPLE, previous_response_id=first.id))
        third = client.responses.create(model="fake", input=PEOPLE, previous_response_id=second.id)
    assert [first.output_text, second.output_text, third.output_text] == ["Oslo.", "Some 700,000.", "Some 700,000."]


@pytest.mark.shows("F.3")
def test_a_warm_up_has_no_output_and_can_be_continued(connection: ResponsesConnection) -> None:
    rules = [{"role": "developer", "content": "We are in Oslo."}]
    events = run_turn(connection, input=rules, generate=False, store=False)
    assert [event.type for event in events][:: len(events) - 1] == ["response.created", "response.completed"]
    warm = get_final_response(events)
    assert (warm.status, warm.output) == ("completed", [])
    assert get_final_response(
        run_turn(connection, input=PEOPLE, store=False, previous_response_id=warm.id)
    ).output_text == ("Some 700,000.")


@pytest.mark.shows("F.11", "F1.4")
def test_the_connection_stays_usable_after_an_error(connection: ResponsesConnection) -> None:
    (error,) = run_turn(connection, input="hi", previous_response_id="resp_unknown")
    assert isinstance(error, ResponseWsError)
    ResponseWsError.model_validate(to_dicts([error])[0], strict=True)
    assert (error.status, error.error.code, error.error.param) == (
        400, "previous_response_not_found", "previous_response_id",
    )  # fmt: skip
    assert get_final_response(run_turn(connection, input=NORWAY)).output_text == "Oslo."


@pytest.mark.shows("F.1")
def test_handlers_are_called_with_the_events(guide_server: ServerProcess) -> None:
    deltas: list[str] = []
    with OpenAI(base_url=guide_server.v1, api_key="unused") as client:
        manager = client.responses.connect()
        # queued until the connection is open
        manager.send({"type": "response.create", "model": "fake", "input": NORWAY})
        with manager as connection:
            connection.on("response.output_text.delta", lambda event: deltas.append(event.delta))
            connection.on("response.completed", lambda event: connection.close())
            connection.dispatch_events()
    assert deltas == ["Os", "lo", "."]


@pytest.mark.shows("F.1")
def test_the_accumulator_yields_the_final_response(connection: ResponsesConnection) -> None:
    accumulator = ResponsesWebSocketAccumulator()
    for event in run_turn(connection, input="hi", tools=[WEATHER]):
        accumulator.add_event(event)
    snapshot = accumulator.snapshot()
    assert [(item.type, item.name, item.arguments) for item in snapshot.output] == [
        ("function_call", "get_weather", '{"city":"","days":2}')
    ]
    call: Any = accumulator.get_final_response().output[0]
    assert (call.id, call.call_id) == (snapshot.output[0].item_id, snapshot.output[0].call_id)
    accumulator.reset()
    for event in run_turn(connection, input=NORWAY):
        accumulator.add_event(event)
    assert accumulator.snapshot().output_text == accumulator.get_final_response().output_text == "Oslo."


def test_a_synchronous_session_has_lanes(connection: ResponsesConnection) -> None:
    with ResponsesWebSocketSession(connection, limits=LIMITS) as session:
        lanes = [session.lane("one"), session.lane("two")]
        for lane, text in zip(lanes, (NORWAY, "What is the capital of Sweden?"), strict=True):
            lane.send({"type": "response.create", "model": "fake", "input": text})
        assert [lane.get_final_response(timeout=60).output_text for lane in lanes] == ["Oslo.", "Stockholm."]


@pytest.mark.anyio
@pytest.mark.shows("F.6")
@pytest.mark.uses("openai-python", "WebSocket")
async def test_two_lanes_run_side_by_side(async_connection: AsyncResponsesConnection) -> None:
    for lane in ("one", "two"):
        await async_connection.response.create(model="fake", input="Take your time.", stream_id=lane)
    ended = 0
    seen: list[tuple[str, str]] = []
    while ended < 2:
        event: Any = await asyncio.wait_for(async_connection.recv(), 60)
        seen.append((event.type, event.stream_id))
        ended += event.type in ENDS
    starts = [seen.index(("response.created", lane)) for lane in ("one", "two")]
    ends = [seen.index(("response.completed", lane)) for lane in ("one", "two")]
    assert max(starts) < min(ends)
    assert {lane for _, lane in seen} == {"one", "two"}


@pytest.mark.anyio
@pytest.mark.shows("F.6", "F.4")
async def test_lanes_of_a_session_are_continued_and_forked(async_connection: AsyncResponsesConnection) -> None:
    async def run_request(lane: Any, **request: Any) -> Response:
        await lane.send({"type": "response.create", "model": "fake", "store": False, **request})
        response: Response = await asyncio.wait_for(lane.get_final_response(), 60)
        return response

    async with AsyncResponsesWebSocketSession(async_connection, limits=LIMITS) as session:
        one, two = session.lane("one"), session.lane("two")
        norway, sweden = await asyncio.gather(
            run_request(one, input=NORWAY), run_request(two, input="What is the capital of Sweden?")
        )
        assert (norway.output_text, sweden.output_text) == ("Oslo.", "Stockholm.")
        both = await asyncio.gather(
            *(run_request(lane, input=PEOPLE, previous_response_id=norway.id) for lane in (one, two))
        )
        assert [response.output_text for response in both] == ["Some 700,000."] * 2
        assert (await run_request(session.default, input="hi")).output_text == "You said: hi"


@pytest.mark.anyio
@pytest.mark.shows("F.11", "F1.4")
async def test_an_error_on_one_lane_does_not_affect_the_other(async_connection: AsyncResponsesConnection) -> None:
    async with AsyncResponsesWebSocketSession(async_connection, limits=LIMITS) as session:
        one, two = session.lane("one"), session.lane("two")
        unknown_previous = {
            "type": "response.create",
            "model": "fake",
            "input": "hi",
            "previous_response_id": "resp_unknown",
        }
        await one.send(unknown_previous)  # type: ignore[arg-type]  # a plain dict
        await two.send({"type": "response.create", "model": "fake", "input": NORWAY})
        with pytest.raises(ResponsesWebSocketError) as failed:
            await asyncio.wait_for(one.get_final_response(), 60)
        event: Any = failed.value.event
        assert (event.stream_id, event.error.code) == ("one", "previous_response_not_found")
        assert (await asyncio.wait_for(two.get_final_response(), 60)).output_text == "Oslo."
        await one.send({"type": "response.create", "model": "fake", "input": NORWAY})
        assert (await asyncio.wait_for(one.get_final_response(), 60)).output_text == "Oslo."


@function_tool
def get_weather(city: str) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


@pytest.mark.anyio
@pytest.mark.shows("F.1", "F.4", "I.14")
@pytest.mark.uses("agents-sdk", "WebSocket")
async def test_the_agents_sdk_runs_all_turns_on_one_connection(
    guide_server: ServerProcess, async_guide_client: AsyncOpenAI
) -> None:
    """Nothing is stored: each turn continues from the response cache of the connection."""
    model = OpenAIResponsesWSModel("fake", openai_client=async_guide_client)
    agent: Agent[Any] = Agent(name="guide", model=model, tools=[get_weather], model_settings=ModelSettings(store=False))
    run_config = RunConfig(tracing_disabled=True)
    first = await Runner.run(
        agent, "What is the weather in Oslo?", auto_previous_response_id=True, run_config=run_config
    )
    assert first.final_output == "It is sunny in Oslo."
    second = Runner.run_streamed(agent, PEOPLE, previous_response_id=first.last_response_id, run_config=run_config)
    assert [event async for event in second.stream_events()]
    assert second.final_output == "Some 700,000."
    assert "antiphon_websocket_connections 1" in guide_server.get("/metrics")[1].decode().splitlines()
    await model.close()
