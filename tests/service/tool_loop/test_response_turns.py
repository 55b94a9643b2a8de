"""Complete responses with an example tool over the fake engine: the prompt of each turn, and the tools it offers.

Covers `service/prompting/prepared_request.py` and `service/tool_loop/toolkit.py`.
"""

import asyncio
from typing import Any

import pytest

from antiphon.agent.run import Run
from antiphon.agent.tool_loop import ToolLoopLimits
from antiphon.core.deltas import CallDelta, CallDone, CallStarted, Text
from antiphon.core.prompt import ChatPrompt, TokenCounts
from antiphon.egress import EgressClient
from antiphon.engines.fake import FakeEngine
from antiphon.errors import InvalidValue, UnsupportedParameter
from antiphon.limits import Limits
from antiphon.protocol.decoding.codec import decode_create, encode
from antiphon.protocol.types.response import Response
from antiphon.service.model_io.models import Models
from antiphon.service.persistence.history_loader import HistoryLoader
from antiphon.service.planning.planner import Planner, PlannerSettings
from antiphon.service.tool_loop.toolkit import Toolkit
from antiphon.stores.registry import make_store
from antiphon.tools.mcp.client import McpClient
from antiphon.tools.mcp.servers import McpSettings
from tests.service.example_tool import FILES, ExampleTool

pytestmark = pytest.mark.anyio

CLIENT_TOOL = {"type": "function", "name": "mine", "parameters": {"type": "object", "properties": {}}}


def make_planner(engine: FakeEngine, example_tool: ExampleTool, limits: ToolLoopLimits | None = None) -> Planner:
    toolkit = Toolkit(McpClient(McpSettings(), EgressClient()), [example_tool])
    history_loader = HistoryLoader(make_store("memory", 60.0))
    return Planner(
        Models(engine), history_loader, PlannerSettings(loop_limits=limits or ToolLoopLimits()), toolkit=toolkit
    )


async def run_response(planner: Planner, **fields: Any) -> Response:
    body = {"model": "fake", "input": "Where?", "tools": [FILES, CLIENT_TOOL], "store": False, **fields}
    planned = await planner.plan_response("default", decode_create(encode(body), Limits()))
    run = Run(planned.call, planned.make_emitter(None), lambda run: None, None, planned.multi_turn)
    async with asyncio.timeout(30):
        await run.drive(None)
    if run.error is not None:
        raise run.error
    return run.response


def get_prompt(engine: FakeEngine, turn: int) -> ChatPrompt:
    prompt = engine.seen[turn].prompt
    assert isinstance(prompt, ChatPrompt)
    return prompt


def make_call(key: int = 0) -> list[Any]:
    return [CallStarted(key, "find_in_files"), CallDelta(key, '{"q": "x"}'), CallDone(key)]


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


async def test_the_next_prompt_contains_the_tool_result(engine: FakeEngine) -> None:
    engine.says(*make_call())
    engine.says(Text("On page 7."))
    response = await run_response(make_planner(engine, ExampleTool()))
    assert [item.__struct_config__.tag for item in response.output] == ["file_search_call", "message"]
    question, call, result = get_prompt(engine, 1).messages
    assert question["content"] == "Where?"
    assert call["role"] == "assistant"
    assert result["content"] == "It is on page 7."
    assert [tool["function"]["name"] for tool in get_prompt(engine, 1).tools] == ["find_in_files", "mine"]


@pytest.mark.parametrize("size", [200_000, 20_000])
async def test_a_result_that_does_not_fit_the_context_is_shortened(engine: FakeEngine, size: int) -> None:
    example_tool = ExampleTool()
    example_tool.output = "x" * size
    engine.says(*make_call())
    engine.says(Text("Long."))
    response = await run_response(make_planner(engine, example_tool))
    assert response.status == "completed"
    content = get_prompt(engine, 1).messages[-1]["content"]
    assert content == example_tool.output if size < 100_000 else content.endswith("they do not fit the context.]")


@pytest.mark.parametrize("choice", ["required", {"type": "file_search"}, {"type": "function", "name": "find_in_files"}])
async def test_a_forced_tool_choice_applies_to_the_first_turn_only(engine: FakeEngine, choice: Any) -> None:
    if isinstance(choice, dict) and choice["type"] == "function":
        with pytest.raises(InvalidValue):
            await run_response(make_planner(engine, ExampleTool()), tool_choice=choice)
        return
    engine.says(*make_call())
    engine.says(Text("On page 7."))
    await run_response(make_planner(engine, ExampleTool()), tool_choice=choice)
    assert (get_prompt(engine, 0).tool_choice != "auto", get_prompt(engine, 1).tool_choice) == (True, "auto")


@pytest.mark.shows("E.2")
async def test_max_output_tokens_covers_all_turns(engine: FakeEngine) -> None:
    engine.says(*make_call(), counts=TokenCounts(input_tokens=5, output_tokens=30))
    engine.says(Text("On page 7."), counts=TokenCounts(input_tokens=9, output_tokens=4))
    await run_response(make_planner(engine, ExampleTool()), max_output_tokens=100)
    assert [generation.sampling.max_tokens for generation in engine.seen] == [100, 70]


@pytest.mark.shows("E.2")
async def test_a_response_without_tokens_for_another_turn_is_incomplete(engine: FakeEngine) -> None:
    engine.says(*make_call(), counts=TokenCounts(input_tokens=5, output_tokens=50))
    response = await run_response(make_planner(engine, ExampleTool()), max_output_tokens=50)
    assert (response.status, len(engine.seen)) == ("incomplete", 1)
    assert response.output[0].__struct_config__.tag == "file_search_call"


@pytest.mark.shows("A.31")
async def test_after_max_tool_calls_only_client_tools_are_offered(engine: FakeEngine) -> None:
    engine.says(*make_call())
    engine.says(Text("On page 7."))
    await run_response(make_planner(engine, ExampleTool()), max_tool_calls=1)
    assert [tool["function"]["name"] for tool in get_prompt(engine, 1).tools] == ["mine"]


async def test_after_the_last_turn_with_tools_no_tool_is_offered(engine: FakeEngine) -> None:
    engine.says(*make_call())
    engine.says(*make_call())
    engine.says(Text("On page 7."))
    response = await run_response(make_planner(engine, ExampleTool(), ToolLoopLimits(max_turns=2)))
    assert response.status == "completed"
    assert (get_prompt(engine, 2).tools, get_prompt(engine, 2).tool_choice) == ((), "none")


@pytest.mark.shows("E.26")
async def test_an_unconfigured_tool_is_rejected_with_the_flag_that_enables_it(engine: FakeEngine) -> None:
    planner = make_planner(engine, ExampleTool(missing="Set it up with --files."))
    for choice, param in (("auto", "tools[0]"), ({"type": "file_search"}, "tool_choice")):
        with pytest.raises(UnsupportedParameter, match="--files") as refused:
            await run_response(planner, tool_choice=choice)
        assert refused.value.param == param


async def test_two_mcp_servers_with_one_label_are_rejected(engine: FakeEngine) -> None:
    server = {"type": "mcp", "server_label": "s", "server_url": "https://mcp.example"}
    with pytest.raises(InvalidValue) as refused:
        await run_response(make_planner(engine, ExampleTool()), tools=[server, server])
    assert refused.value.param == "tools[1].server_label"


async def test_a_request_with_only_client_functions_takes_one_turn(engine: FakeEngine) -> None:
    body = {"model": "fake", "input": "Where?", "tools": [CLIENT_TOOL], "store": False}
    planned = await make_planner(engine, ExampleTool()).plan_response("default", decode_create(encode(body), Limits()))
    assert planned.multi_turn is None
    planned.leave()
