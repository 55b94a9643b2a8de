"""How clients take the end of a WebSocket, and the word that it is near: `connection_expiring` is in no client's list
of events, and none minds it."""

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

from tests.support.server_process import Live, serving

SLOW = "Take your time."  # half a second
LIMITS = ResponsesWebSocketLimits(
    max_lanes=8, max_events_per_lane=1024, max_events=4096, max_bytes_per_lane=1 << 22, max_bytes=1 << 24
)
QUIET = RunConfig(tracing_disabled=True)


@pytest.fixture
async def hasty(brief: Live) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=brief.v1, api_key="unused", max_retries=0, timeout=60) as client:
        yield client


@pytest.mark.shows("F2.1")
def test_handlers_are_called_with_the_warning(brief: Live) -> None:
    seen: list[Any] = []
    said: list[str] = []
    with (
        OpenAI(base_url=brief.v1, api_key="unused") as client,
        client.responses.connect() as connection,
    ):
        connection.on("connection_expiring", seen.append)
        connection.on("response.output_text.done", lambda event: said.append(event.text))
        connection.on("response.completed", lambda event: connection.close())
        connection.response.create(model="fake", input=SLOW)
        connection.dispatch_events()
    assert said == ["One moment."]
    (warning,) = seen
    assert type(warning.expires_at) is int


@pytest.mark.anyio
@pytest.mark.shows("F2.1")
async def test_an_accumulator_takes_no_notice_of_the_warning(hasty: AsyncOpenAI) -> None:
    accumulator = ResponsesWebSocketAccumulator()
    kinds: list[str] = []
    async with hasty.responses.connect() as connection:
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
async def test_lanes_go_on_after_the_warning_which_the_default_lane_gets(hasty: AsyncOpenAI, lane: str | None) -> None:
    async with (
        hasty.responses.connect() as connection,
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
async def test_a_run_of_the_agents_sdk_goes_on_after_the_warning(hasty: AsyncOpenAI, streamed: bool) -> None:
    model = OpenAIResponsesWSModel("fake", openai_client=hasty)
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
def short_lived() -> Iterator[Live]:
    """Its WebSockets end after a few seconds."""
    flags = ("--websocket-lifetime", "2.5", "--websocket-warning", "2.3")
    with serving("--engine", "fake", *flags) as live:
        yield live


@pytest.mark.shows("F2.2")
def test_a_connection_that_was_too_old_is_opened_again(short_lived: Live) -> None:
    codes: list[int] = []
    events: list[Any] = []

    def again(event: ReconnectingEvent) -> None:
        codes.append(event.close_code)
        connection.response.create(model="fake", input="hi")  # for the new connection

    with (
        OpenAI(base_url=short_lived.v1, api_key="unused") as client,
        client.responses.connect(on_reconnecting=again, initial_delay=0.01) as connection,
    ):
        for event in connection:
            events.append(event)
            if event.type == "response.completed":
                break
    warning, error = events[:2]
    assert warning.type == "connection_expiring"
    assert (error.status, error.error.code) == (400, "websocket_connection_limit_reached")
    assert {*codes} == {1001}  # which a busy machine may bring about once more
    assert events[-1].response.output_text == "You said: hi"


@pytest.mark.anyio
async def test_a_server_that_stops_says_so_and_the_package_would_come_back() -> None:
    codes: list[int] = []

    def not_again(event: ReconnectingEvent) -> ReconnectingOverrides | None:
        codes.append(event.close_code)
        return {"abort": True}

    with serving("--engine", "fake") as live:
        async with (
            AsyncOpenAI(base_url=live.v1, api_key="unused") as client,
            client.responses.connect(on_reconnecting=not_again, initial_delay=0.01) as connection,
        ):
            live.process.terminate()
            with pytest.raises(Exception, match="1012"):
                await asyncio.wait_for(anext(aiter(connection)), 60)
    assert codes == [1012]
