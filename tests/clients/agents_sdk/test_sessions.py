"""The OpenAI Agents SDK against the fake engine: sessions stored in conversations, conversation_id,
previous_response_id, and tools within them.
"""

from typing import Any

import pytest
from agents import Agent, ModelSettings, OpenAIConversationsSession, OpenAIResponsesModel, Runner, function_tool
from agents.run import RunConfig
from openai import AsyncOpenAI

from tests.oracles.responses import check_conversation_item

pytestmark = pytest.mark.anyio
NO_TRACING = RunConfig(tracing_disabled=True)


@function_tool
def get_weather(city: str) -> str:
    """The weather of a city."""
    return "sunny"


@pytest.fixture
def agent(async_client: AsyncOpenAI) -> Agent[Any]:
    model = OpenAIResponsesModel(model="fake", openai_client=async_client)
    return Agent(name="parrot", instructions="Repeat.", model=model, model_settings=ModelSettings(store=True))


@pytest.fixture
def agent_with_tool(agent: Agent[Any]) -> Agent[Any]:
    return agent.clone(tools=[get_weather])


def item_kinds(items: list[Any]) -> list[str]:
    """Return the role of each message and the type of every other item."""
    return [item.get("role", item.get("type")) for item in items]


@pytest.mark.shows("I.14")
@pytest.mark.uses("agents-sdk", "answers", "stored state")
async def test_a_session_is_stored_in_a_conversation(agent: Agent[Any], async_client: AsyncOpenAI) -> None:
    session = OpenAIConversationsSession(openai_client=async_client)
    for text in ("one", "two"):
        result = await Runner.run(agent, text, session=session, run_config=NO_TRACING)
        assert result.final_output == f"You said: {text}"
    items = await session.get_items()
    assert item_kinds(items) == ["user", "assistant", "user", "assistant"]
    for item in items:
        check_conversation_item(dict(item))
    assert await session.get_items(limit=1) == items[-1:]
    last_item: Any = await session.pop_item()
    assert last_item["content"][0]["text"] == "You said: two"
    assert len(await session.get_items()) == 3
    await session.clear_session()
    assert await session.get_items() == []


@pytest.mark.shows("I.14")
async def test_a_session_with_a_tool_is_continued_by_its_id(
    agent_with_tool: Agent[Any], async_client: AsyncOpenAI
) -> None:
    session = OpenAIConversationsSession(openai_client=async_client)
    result = await Runner.run(agent_with_tool, "weather?", session=session, run_config=NO_TRACING)
    assert "sunny" in str(result.final_output)
    items = await session.get_items()
    assert item_kinds(items) == ["user", "function_call", "function_call_output", "assistant"]
    other = OpenAIConversationsSession(openai_client=async_client, conversation_id=session.session_id)
    await Runner.run(agent_with_tool, "and?", session=other, run_config=NO_TRACING)
    assert len(await session.get_items()) == 8


@pytest.mark.shows("I.14")
async def test_more_items_than_one_request_allows_are_added_in_several_requests(async_client: AsyncOpenAI) -> None:
    session = OpenAIConversationsSession(openai_client=async_client)
    await session.add_items([{"role": "user", "content": str(number)} for number in range(45)])
    items: list[Any] = await session.get_items()
    assert [item["content"][0]["text"] for item in items] == [str(number) for number in range(45)]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.shows("I.14", "B.22")
@pytest.mark.uses("agents-sdk", "streaming", "tools")
async def test_a_conversation_id_carries_the_turns(
    agent_with_tool: Agent[Any], async_client: AsyncOpenAI, streamed: bool
) -> None:
    conversation = await async_client.conversations.create()
    for _ in range(2):
        if streamed:
            stream = Runner.run_streamed(
                agent_with_tool, "weather?", conversation_id=conversation.id, run_config=NO_TRACING
            )
            assert [event async for event in stream.stream_events()]
            assert "sunny" in str(stream.final_output)
        else:
            result = await Runner.run(
                agent_with_tool, "weather?", conversation_id=conversation.id, run_config=NO_TRACING
            )
            assert "sunny" in str(result.final_output)
    items = [item async for item in async_client.conversations.items.list(conversation.id, order="asc")]
    turn = ["message", "function_call", "function_call_output", "message"]
    assert [item.type for item in items] == turn * 2


@pytest.mark.shows("I.14", "B.9")
async def test_a_previous_response_is_continued(agent_with_tool: Agent[Any], async_client: AsyncOpenAI) -> None:
    first = await Runner.run(
        agent_with_tool, "weather?", previous_response_id=None, auto_previous_response_id=True, run_config=NO_TRACING
    )
    assert "sunny" in str(first.final_output)
    assert first.last_response_id is not None
    second = await Runner.run(
        agent_with_tool, "and?", previous_response_id=first.last_response_id, run_config=NO_TRACING
    )
    assert second.last_response_id is not None
    stored = await async_client.responses.retrieve(second.last_response_id)
    assert stored.previous_response_id is not None
