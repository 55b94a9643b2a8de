"""How the openai package and the Agents SDK handle the end of a WebSocket and the warning before it.

`connection_expiring` is in no client's list of events, and all of them tolerate it.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from agents import Agent, OpenAIResponsesWSModel, Runner
from agents.run import RunConfig
from openai import AsyncOpenAI, OpenAI
from openai.lib.responses_websocket import (
    AsyncResponsesWebSocketSession,
    ResponsesWebSocketAccumulator,
    ResponsesWebSocketLimits,
)
from openai.types.websocket_reconnection import ReconnectingEvent, ReconnectingOverrides

from tests.support.server_process import ServerProcess, run_server

SLOW = "Take your time."  # answered within half a second
LIMITS = ResponsesWebSocketLimits(
    max_lanes=8, max_events_per_lane=1024, max_events=4096, max_bytes_per_lane=1 << 22, max_bytes=1 << 24
)
QUIET = RunConfig(tracing_disabled=True)


@pytest.fixture
async def expiring_client(expiring_server: ServerProcess) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=expiring_server.v1, api_key="unused", max_retries=0, timeout=60) as client:
        yield client


@pytest.mark.shows("F2.1")
def test_handlers_receive_the_expiry_warning(expiring_server: ServerProcess) -> None:
    seen: list[Any] = []
    texts: list[str] = []
    with (
        OpenAI(base_url=expiring_server.v1, api_key="unused") as client,
        client.responses.connect() as connection,
    ):
        connection.on("connection_expiring", seen.append)
        connection.on("response.output_text.done", lambda event: texts.append(event.text))
        connection.on("response.completed", lambda event: connection.close())
        connection.response.create(model="fake", input=SLOW)
        connection.dispatch_events()
    assert texts == ["One moment."]
    (warning,) = seen
    assert type(warning.expires_at) is int


@pytest.mark.anyio
@pytest.mark.shows("F2.1")
async def test_the_accumulator_ignores_the_expiry_warning(expiring_client: AsyncOpenAI) -> None:
    accumulator = ResponsesWebSocketAccumulator()
    kinds: list[str] = []
    async with expiring_client.responses.connect() as connection:
        await connection.response.create(model="fake", input=SLOW)
        async for event in connection:
            kinds.append(event.type)
            accumulator.add_event(event)
            if event.type == "response.completed":
                break
    assert "connection_expiring" in kinds
    assert accumulator.get_final_response().output_text == "One moment."


@pytest.mark.anyio
@pytest.mark.parametrize("lane", ["one", None])
@pytest.mark.shows("F2.1")
async def test_lanes_continue_after_the_expiry_warning_on_the_default_lane(
    expiring_client: AsyncOpenAI, lane: str | None
) -> None:
    async with (
        expiring_client.responses.connect() as connection,
        AsyncResponsesWebSocketSession(connection, limits=LIMITS) as session,
    ):
        used = session.default if lane is None else session.lane(lane)
        await used.send({"type": "response.create", "model": "fake", "input": SLOW})
        assert (await asyncio.wait_for(used.get_final_response(), 60)).output_text == "One moment."
        if lane is not None:
            warning: Any = await asyncio.wait_for(session.default.recv(), 60)
            assert warning.type == "connection_expiring"


@pytest.mark.anyio
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.shows("F2.1", "I.14")
async def test_an_agents_sdk_run_continues_after_the_expiry_warning(
    expiring_client: AsyncOpenAI, streamed: bool
) -> None:
    model = OpenAIResponsesWSModel("fake", openai_client=expiring_client)
    agent: Agent[Any] = Agent(name="slow", model=model)
    if streamed:
        stream = Runner.run_streamed(agent, SLOW, run_config=QUIET)
        kinds = [event.data.type async for event in stream.stream_events() if event.type == "raw_response_event"]
        assert "connection_expiring" in kinds
        assert stream.final_output == "One moment."
    else:
        assert (await Runner.run(agent, SLOW, run_config=QUIET)).final_output == "One moment."
    await model.close()


@pytest.fixture
def short_lived_server() -> Iterator[ServerProcess]:
    """A server whose WebSockets expire after a few seconds."""
    flags = ("--websocket-lifetime", "2.5", "--websocket-warning", "2.3")
    with run_server("--engine", "fake", *flags) as server:
        yield server


@pytest.mark.shows("F2.2")
def test_an_expired_connection_is_reopened(short_lived_server: ServerProcess) -> None:
    codes: list[int] = []
    events: list[Any] = []

    def create_again(event: ReconnectingEvent) -> None:
        codes.append(event.close_code)
        connection.response.create(model="fake", input="hi")  # sent on the new connection

    with (
        OpenAI(base_url=short_lived_server.v1, api_key="unused") as client,
        client.responses.connect(on_reconnecting=create_again, initial_delay=0.01) as connection,
    ):
        for event in connection:
            events.append(event)
            if event.type == "response.completed":
                break
    warning, error = events[:2]
    assert warning.type == "connection_expiring"
    assert (error.status, error.error.code) == (400, "websocket_connection_limit_reached")
    assert {*codes} == {1001}  # a busy machine may reconnect more than once
    assert events[-1].response.output_text == "You said: hi"


@pytest.mark.anyio
async def test_a_stopping_server_closes_with_1012_which_starts_a_reconnect() -> None:
    codes: list[int] = []

    def abort_reconnect(event: ReconnectingEvent) -> ReconnectingOverrides | None:
        codes.append(event.close_code)
        return {"abort": True}

    with run_server("--engine", "fake") as server:
        async with (
            AsyncOpenAI(base_url=server.v1, api_key="unused") as client,
            client.responses.connect(on_reconnecting=abort_reconnect, initial_delay=0.01) as connection,
        ):
            server.process.terminate()
            with pytest.raises(Exception, match="1012"):
                await asyncio.wait_for(anext(aiter(connection)), 60)
    assert codes == [1012]
