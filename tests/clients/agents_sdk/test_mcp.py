"""The OpenAI Agents SDK with a hosted MCP tool against the MCP reference server: with and without approvals, streamed
and not streamed.
"""

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

NO_TRACING = RunConfig(tracing_disabled=True)
SUM = "The tool said: The sum of 2 and 40 is 42."


def make_agent(client: AsyncOpenAI, config: dict[str, Any], **options: Any) -> Agent[Any]:
    tool: Any = {"type": "mcp", "server_label": "everything", **config}
    return Agent(
        name="calculator",
        model=OpenAIResponsesModel(model="fake", openai_client=client),
        model_settings=ModelSettings(store=True),
        tools=[HostedMCPTool(tool_config=tool, **options)],
    )


async def run_agent(agent: Agent[Any], prompt: Any, streamed: bool, **options: Any) -> Any:
    if not streamed:
        return await Runner.run(agent, prompt, run_config=NO_TRACING, **options)
    result = Runner.run_streamed(agent, prompt, run_config=NO_TRACING, **options)
    async with asyncio.timeout(100):
        async for _ in result.stream_events():
            pass
    return result


def item_types(items: Any) -> list[str]:
    return [item.type for item in items]


@pytest.fixture(params=[False, True], ids=["run", "run_streamed"])
def streamed(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.mark.shows("E.1", "E.4", "I.14")
@pytest.mark.uses("agents-sdk", "hosted tools")
async def test_a_hosted_tool_is_called_and_the_model_answers(
    async_agent_client: AsyncOpenAI, everything: str, streamed: bool
) -> None:
    calculator = make_agent(async_agent_client, {"server_url": everything, "require_approval": "never"})
    result = await run_agent(calculator, "play sum.", streamed)
    assert result.final_output == SUM
    assert item_types(result.new_items) == ["mcp_list_tools_item", "tool_call_item", "message_output_item"]


@pytest.mark.parametrize("approve", [True, False], ids=["approved", "denied"])
@pytest.mark.shows("E.9", "I.14")
async def test_a_callback_approves_or_denies(
    async_agent_client: AsyncOpenAI, everything: str, streamed: bool, approve: bool
) -> None:
    requested: list[str] = []

    def decide(request: MCPToolApprovalRequest) -> MCPToolApprovalFunctionResult:
        requested.append(f"{request.data.name} {request.data.arguments}")
        return {"approve": approve, "reason": "too dear"}

    config = {"server_url": everything, "require_approval": "always"}
    calculator = make_agent(async_agent_client, config, on_approval_request=decide)
    result = await run_agent(calculator, "play sum.", streamed)
    assert requested == ['get-sum {"a": 2, "b": 40}']
    assert result.final_output == (SUM if approve else "The tool said: [The user did not allow this call: too dear]")
    assert any(isinstance(item, MCPApprovalResponseItem) for item in result.new_items)


@pytest.mark.parametrize("approve", [True, False], ids=["approved", "denied"])
@pytest.mark.shows("E.9", "I.14")
async def test_an_interrupted_run_resumes_after_a_decision(
    async_agent_client: AsyncOpenAI, everything: str, streamed: bool, approve: bool
) -> None:
    calculator = make_agent(async_agent_client, {"server_url": everything, "require_approval": "always"})
    first = await run_agent(calculator, "play sum.", streamed)
    (interruption,) = first.interruptions
    # serialised, because the decision may come after the process has ended
    state = await RunState.from_json(calculator, first.to_state().to_json())
    if approve:
        state.approve(state.get_interruptions()[0])
    else:
        state.reject(state.get_interruptions()[0])
    second = await run_agent(calculator, state, streamed)
    assert interruption.type == "tool_approval_item"
    assert not second.interruptions
    assert (SUM if approve else "did not allow this call") in second.final_output


@pytest.mark.shows("E.9", "I.14")
async def test_an_approval_completes_a_round_trip_in_a_conversation(
    async_agent_client: AsyncOpenAI, everything: str, streamed: bool
) -> None:
    calculator = make_agent(async_agent_client, {"server_url": everything, "require_approval": "always"})
    conversation = await async_agent_client.conversations.create()
    first = await run_agent(calculator, "play sum.", streamed, conversation_id=conversation.id)
    state = first.to_state()
    state.approve(first.interruptions[0])
    second = await run_agent(calculator, state, streamed, conversation_id=conversation.id)
    assert second.final_output == SUM
    items = [item async for item in async_agent_client.conversations.items.list(conversation.id, order="asc")]
    assert item_types(items) == [
        "message", "mcp_list_tools", "mcp_approval_request", "mcp_approval_response", "mcp_call", "message",
    ]  # fmt: skip


@pytest.mark.shows("E.5", "I.14")
async def test_a_session_lists_the_tools_of_a_server_once(async_agent_client: AsyncOpenAI, streamed: bool) -> None:
    calculator = make_agent(async_agent_client, {"server_label": "http", "require_approval": "never"})
    session = OpenAIConversationsSession(openai_client=async_agent_client)
    first = await run_agent(calculator, "play sum.", streamed, session=session)
    second = await run_agent(calculator, "play echo.", streamed, session=session)
    assert (first.final_output, second.final_output) == (SUM, "The tool said: Echo: hallo")
    assert item_types(second.new_items) == ["tool_call_item", "message_output_item"]
    stored: list[Any] = await session.get_items()
    assert [item["type"] for item in stored].count("mcp_list_tools") == 1


async def test_a_previous_response_is_continued_without_listing_the_tools_again(
    async_agent_client: AsyncOpenAI, everything: str
) -> None:
    calculator = make_agent(async_agent_client, {"server_url": everything, "require_approval": "never"})
    first = await Runner.run(calculator, "play sum.", auto_previous_response_id=True, run_config=NO_TRACING)
    second = await Runner.run(
        calculator, "play echo.", previous_response_id=first.last_response_id, run_config=NO_TRACING
    )
    assert item_types(second.new_items) == ["tool_call_item", "message_output_item"]
