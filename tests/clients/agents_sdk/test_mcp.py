"""The Agents SDK with a hosted MCP tool, against the reference server: with and without approvals, streamed or not."""

import asyncio
from typing import Any

import pytest
from agents import (
    Agent,
    HostedMCPTool,
    MCPApprovalResponseItem,
    MCPToolApprovalFunctionResult,
    MCPToolApprovalRequest,
    ModelSettings,
    OpenAIConversationsSession,
    OpenAIResponsesModel,
    Runner,
    RunState,
)
from agents.run import RunConfig
from openai import AsyncOpenAI

pytestmark = [pytest.mark.anyio, pytest.mark.needs("node")]

QUIET = RunConfig(tracing_disabled=True)
SUM = "The tool said: The sum of 2 and 40 is 42."


def agent(client: AsyncOpenAI, config: dict[str, Any], **more: Any) -> Agent[Any]:
    tool: Any = {"type": "mcp", "server_label": "everything", **config}
    return Agent(
        name="reckoner",
        model=OpenAIResponsesModel(model="fake", openai_client=client),
        model_settings=ModelSettings(store=True),
        tools=[HostedMCPTool(tool_config=tool, **more)],
    )


async def run(agent: Agent[Any], given: Any, streamed: bool, **more: Any) -> Any:
    if not streamed:
        return await Runner.run(agent, given, run_config=QUIET, **more)
    result = Runner.run_streamed(agent, given, run_config=QUIET, **more)
    async with asyncio.timeout(100):
        async for _ in result.stream_events():
            pass
    return result


def kinds(items: Any) -> list[str]:
    return [item.type for item in items]


@pytest.fixture(params=[False, True], ids=["run", "run_streamed"])
def streamed(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.mark.shows("E.1", "E.4", "I.14")
async def test_a_hosted_tool_is_called_and_the_model_answers(
    async_agent_client: AsyncOpenAI, everything: str, streamed: bool
) -> None:
    reckoner = agent(async_agent_client, {"server_url": everything, "require_approval": "never"})
    result = await run(reckoner, "play sum.", streamed)
    assert result.final_output == SUM
    assert kinds(result.new_items) == ["mcp_list_tools_item", "tool_call_item", "message_output_item"]


@pytest.mark.parametrize("approve", [True, False], ids=["approved", "denied"])
@pytest.mark.shows("E.9", "I.14")
async def test_a_callback_approves_or_denies(
    async_agent_client: AsyncOpenAI, everything: str, streamed: bool, approve: bool
) -> None:
    asked: list[str] = []

    def decide(request: MCPToolApprovalRequest) -> MCPToolApprovalFunctionResult:
        asked.append(f"{request.data.name} {request.data.arguments}")
        return {"approve": approve, "reason": "too dear"}

    config = {"server_url": everything, "require_approval": "always"}
    reckoner = agent(async_agent_client, config, on_approval_request=decide)
    result = await run(reckoner, "play sum.", streamed)
    assert asked == ['get-sum {"a": 2, "b": 40}']
    assert result.final_output == (SUM if approve else "The tool said: [The user did not allow this call: too dear]")
    assert any(isinstance(item, MCPApprovalResponseItem) for item in result.new_items)


@pytest.mark.parametrize("approve", [True, False], ids=["approved", "denied"])
@pytest.mark.shows("E.9", "I.14")
async def test_an_interrupted_run_goes_on_after_a_human_has_decided(
    async_agent_client: AsyncOpenAI, everything: str, streamed: bool, approve: bool
) -> None:
    reckoner = agent(async_agent_client, {"server_url": everything, "require_approval": "always"})
    first = await run(reckoner, "play sum.", streamed)
    (interruption,) = first.interruptions
    state = await RunState.from_json(reckoner, first.to_state().to_json())  # a human takes longer than a process lives
    if approve:
        state.approve(state.get_interruptions()[0])
    else:
        state.reject(state.get_interruptions()[0])
    second = await run(reckoner, state, streamed)
    assert interruption.type == "tool_approval_item"
    assert not second.interruptions
    assert (SUM if approve else "did not allow this call") in second.final_output


@pytest.mark.shows("E.9", "I.14")
async def test_an_approval_round_trip_in_a_conversation(
    async_agent_client: AsyncOpenAI, everything: str, streamed: bool
) -> None:
    reckoner = agent(async_agent_client, {"server_url": everything, "require_approval": "always"})
    conversation = await async_agent_client.conversations.create()
    first = await run(reckoner, "play sum.", streamed, conversation_id=conversation.id)
    state = first.to_state()
    state.approve(first.interruptions[0])
    second = await run(reckoner, state, streamed, conversation_id=conversation.id)
    assert second.final_output == SUM
    items = [item async for item in async_agent_client.conversations.items.list(conversation.id, order="asc")]
    assert kinds(items) == [
        "message", "mcp_list_tools", "mcp_approval_request", "mcp_approval_response", "mcp_call", "message",
    ]  # fmt: skip


@pytest.mark.shows("E.5", "I.14")
async def test_a_session_lists_the_tools_of_a_server_once(async_agent_client: AsyncOpenAI, streamed: bool) -> None:
    reckoner = agent(async_agent_client, {"server_label": "http", "require_approval": "never"})
    session = OpenAIConversationsSession(openai_client=async_agent_client)
    first = await run(reckoner, "play sum.", streamed, session=session)
    second = await run(reckoner, "play echo.", streamed, session=session)
    assert (first.final_output, second.final_output) == (SUM, "The tool said: Echo: hallo")
    assert kinds(second.new_items) == ["tool_call_item", "message_output_item"]
    stored: list[Any] = await session.get_items()
    assert [item["type"] for item in stored].count("mcp_list_tools") == 1


async def test_a_previous_response_is_continued(async_agent_client: AsyncOpenAI, everything: str) -> None:
    reckoner = agent(async_agent_client, {"server_url": everything, "require_approval": "never"})
    first = await Runner.run(reckoner, "play sum.", auto_previous_response_id=True, run_config=QUIET)
    second = await Runner.run(reckoner, "play echo.", previous_response_id=first.last_response_id, run_config=QUIET)
    assert kinds(second.new_items) == ["tool_call_item", "message_output_item"]
