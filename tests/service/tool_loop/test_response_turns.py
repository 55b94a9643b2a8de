"""A whole response with a tool of the tests' own: what each turn of the model is shown, and what it may still do."""

import asyncio
from typing import Any

import pytest

from antiphon.agent.run import Run
from antiphon.agent.tool_loop import Bounds
from antiphon.core.deltas import CallDelta, CallDone, CallStarted, Text
from antiphon.core.prompt import ChatPrompt, Counts
from antiphon.egress import Egress
from antiphon.engines.fake import FakeEngine
from antiphon.errors import InvalidValue, UnsupportedParameter
from antiphon.limits import Limits
from antiphon.protocol.decoding.codec import decode_create, encode
from antiphon.protocol.types.response import Response
from antiphon.service.model_io.models import Models
from antiphon.service.persistence.history_loader import Past
from antiphon.service.planning.planner import Planner, Terms
from antiphon.service.tool_loop.toolkit import Toolkit
from antiphon.stores.registry import make_store
from antiphon.tools.mcp.client import Mcp, McpSettings
from tests.service.example_tool import FILES, Shelf

pytestmark = pytest.mark.anyio

MINE = {"type": "function", "name": "mine", "parameters": {"type": "object", "properties": {}}}


def planner_of(engine: FakeEngine, shelf: Shelf, bounds: Bounds | None = None) -> Planner:
    toolkit = Toolkit(Mcp(McpSettings(), Egress()), [shelf])
    past = Past(make_store("memory", 60.0))
    return Planner(Models([engine]), past, Terms(bounds=bounds or Bounds()), toolkit=toolkit)


async def answered(planner: Planner, **fields: Any) -> Response:
    body = {"model": "fake", "input": "Where?", "tools": [FILES, MINE], "store": False, **fields}
    undertaking = await planner.plan("default", decode_create(encode(body), Limits()))
    run = Run(undertaking.plan, undertaking.emitter(None), lambda run: None, None, undertaking.beyond)
    async with asyncio.timeout(30):
        await run.drive(None)
    if run.error is not None:
        raise run.error
    return run.response


def shown(engine: FakeEngine, turn: int) -> ChatPrompt:
    prompt = engine.seen[turn].prompt
    assert isinstance(prompt, ChatPrompt)
    return prompt


def finds(key: int = 0) -> list[Any]:
    return [CallStarted(key, "find_in_files"), CallDelta(key, '{"q": "x"}'), CallDone(key)]


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


async def test_the_next_turn_is_told_what_the_tool_said(engine: FakeEngine) -> None:
    engine.says(*finds())
    engine.says(Text("On page 7."))
    response = await answered(planner_of(engine, Shelf()))
    assert [item.__struct_config__.tag for item in response.output] == ["file_search_call", "message"]
    asked, called, told = shown(engine, 1).messages
    assert asked["content"] == "Where?"
    assert called["role"] == "assistant"
    assert told["content"] == "It is on page 7."
    assert [tool["function"]["name"] for tool in shown(engine, 1).tools] == ["find_in_files", "mine"]


@pytest.mark.parametrize("size", [200_000, 20_000])
async def test_a_result_that_does_not_fit_the_context_is_told_in_part(engine: FakeEngine, size: int) -> None:
    shelf = Shelf()
    shelf.says = "x" * size
    engine.says(*finds())
    engine.says(Text("Long."))
    response = await answered(planner_of(engine, shelf))
    assert response.status == "completed"
    told = shown(engine, 1).messages[-1]["content"]
    assert told == shelf.says if size < 100_000 else told.endswith("they do not fit the context.]")


@pytest.mark.parametrize("choice", ["required", {"type": "file_search"}, {"type": "function", "name": "find_in_files"}])
async def test_what_is_demanded_is_demanded_of_the_first_turn_alone(engine: FakeEngine, choice: Any) -> None:
    if isinstance(choice, dict) and choice["type"] == "function":
        with pytest.raises(InvalidValue):
            await answered(planner_of(engine, Shelf()), tool_choice=choice)
        return
    engine.says(*finds())
    engine.says(Text("On page 7."))
    await answered(planner_of(engine, Shelf()), tool_choice=choice)
    assert (shown(engine, 0).tool_choice != "auto", shown(engine, 1).tool_choice) == (True, "auto")


@pytest.mark.shows("E.2")
async def test_tokens_are_counted_over_all_turns(engine: FakeEngine) -> None:
    engine.says(*finds(), counts=Counts(input_tokens=5, output_tokens=30))
    engine.says(Text("On page 7."), counts=Counts(input_tokens=9, output_tokens=4))
    await answered(planner_of(engine, Shelf()), max_output_tokens=100)
    assert [work.sampling.max_tokens for work in engine.seen] == [100, 70]


@pytest.mark.shows("E.2")
async def test_without_tokens_for_another_turn_it_is_incomplete(engine: FakeEngine) -> None:
    engine.says(*finds(), counts=Counts(input_tokens=5, output_tokens=50))
    response = await answered(planner_of(engine, Shelf()), max_output_tokens=50)
    assert (response.status, len(engine.seen)) == ("incomplete", 1)
    assert response.output[0].__struct_config__.tag == "file_search_call"


@pytest.mark.shows("A.31")
async def test_when_all_calls_are_made_only_the_clients_tools_are_offered(engine: FakeEngine) -> None:
    engine.says(*finds())
    engine.says(Text("On page 7."))
    await answered(planner_of(engine, Shelf()), max_tool_calls=1)
    assert [tool["function"]["name"] for tool in shown(engine, 1).tools] == ["mine"]


async def test_after_the_last_turn_with_tools_none_is_offered(engine: FakeEngine) -> None:
    engine.says(*finds())
    engine.says(*finds())
    engine.says(Text("On page 7."))
    response = await answered(planner_of(engine, Shelf(), Bounds(turns=2)))
    assert response.status == "completed"
    assert (shown(engine, 2).tools, shown(engine, 2).tool_choice) == ((), "none")


@pytest.mark.shows("E.26")
async def test_a_tool_that_is_not_set_up_is_not_offered_and_refused_only_when_it_is_demanded(
    engine: FakeEngine,
) -> None:
    planner = planner_of(engine, Shelf(missing="Set it up with --files."))
    body = {"model": "fake", "input": "Where?", "tools": [FILES, MINE], "store": False}
    undertaking = await planner.plan("default", decode_create(encode(body), Limits()))
    assert (undertaking.beyond, undertaking.ignored) == (None, ["file_search"])
    undertaking.leave()
    with pytest.raises(UnsupportedParameter, match="--files") as refused:
        await answered(planner, tool_choice={"type": "file_search"})
    assert refused.value.param == "tool_choice"


async def test_two_servers_of_one_label_are_refused(engine: FakeEngine) -> None:
    server = {"type": "mcp", "server_label": "s", "server_url": "https://mcp.example"}
    with pytest.raises(InvalidValue) as refused:
        await answered(planner_of(engine, Shelf()), tools=[server, server])
    assert refused.value.param == "tools[1].server_label"


async def test_a_client_that_only_has_functions_of_its_own_takes_one_turn(engine: FakeEngine) -> None:
    body = {"model": "fake", "input": "Where?", "tools": [MINE], "store": False}
    undertaking = await planner_of(engine, Shelf()).plan("default", decode_create(encode(body), Limits()))
    assert undertaking.beyond is None
    undertaking.leave()
