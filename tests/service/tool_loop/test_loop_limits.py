"""Each limit of the tool loop has one outcome, the same in a stream, in JSON and in the background."""

from typing import Any

import pytest

from antiphon.agent.tool_loop import TOO_MANY_CALLS
from antiphon.core.deltas import CallDelta, CallDone, CallStarted, Text
from antiphon.core.prompt import ChatPrompt, TokenCounts
from antiphon.protocol.decoding.codec import encode
from antiphon.protocol.types.response import Response
from tests.service.example_tool import FILES
from tests.service.service_nodes import ServiceNode, read_all_events, start_nodes

pytestmark = pytest.mark.anyio

CLIENT_TOOL = {"type": "function", "name": "mine", "parameters": {"type": "object", "properties": {}}}
MODES = pytest.mark.parametrize("mode", ["json", "stream", "background", "background stream"])


def make_calls(*keys: int) -> list[Any]:
    return [
        delta
        for key in keys or (0,)
        for delta in (CallStarted(key, "find_in_files"), CallDelta(key, '{"q": "x"}'), CallDone(key))
    ]


async def run_response(node: ServiceNode, mode: str, **body: Any) -> Response:
    """Run a response in this mode and return it as stored."""
    body = {"tools": [FILES, CLIENT_TOOL], **body}
    if mode == "background":
        return await node.wait_ended(await node.create_background(**body))
    accepted = await node.create(stream="stream" in mode, background="background" in mode, **body)
    assert accepted.source is not None
    events = await read_all_events(accepted.source)
    response = events[-1].response  # type: ignore[attr-defined]  # the terminal event
    assert encode(await node.load_response(response.id)) == encode(response)
    return response  # type: ignore[no-any-return]  # as above


def list_item_types(response: Response) -> list[str]:
    return [str(item.__struct_config__.tag) for item in response.output]


@MODES
@pytest.mark.shows("E.2")
async def test_exhausted_output_tokens_end_the_response_incomplete(mode: str) -> None:
    async with start_nodes() as (node,):
        node.engine.says(*make_calls(), counts=TokenCounts(input_tokens=5, output_tokens=20))
        response = await run_response(node, mode, max_output_tokens=20)
        assert (response.status, list_item_types(response)) == ("incomplete", ["file_search_call"])
        assert response.incomplete_details is not None
        assert response.incomplete_details.reason == "max_output_tokens"


@MODES
@pytest.mark.shows("E.2")
async def test_exceeding_the_total_timeout_fails_the_response(mode: str) -> None:
    for seconds in (0.2, 2.0, 10.0):  # a busy machine may not reach the tool within the first limit
        async with start_nodes(seconds=seconds) as (node,):
            node.example_tool.may_finish.clear()
            node.engine.says(*make_calls())
            response = await run_response(node, mode)
            assert (response.status, response.error is not None) == ("failed", True)
            assert "longer than this server allows" in str(response.error)
            if node.example_tool.calls:
                break
    assert list_item_types(response) == ["file_search_call"]


@MODES
@pytest.mark.shows("A.31")
async def test_calls_beyond_max_tool_calls_are_reported_to_the_model_and_not_run(mode: str) -> None:
    async with start_nodes() as (node,):
        node.engine.says(*make_calls(0, 1))
        node.engine.says(Text("Enough."))
        response = await run_response(node, mode, max_tool_calls=1)
        assert (response.status, list_item_types(response)) == ("completed", ["file_search_call"] * 2 + ["message"])
        assert len(node.example_tool.calls) == 1
        prompt = node.engine.seen[-1].prompt
        assert isinstance(prompt, ChatPrompt)
        assert TOO_MANY_CALLS in [message["content"] for message in prompt.messages]


@MODES
@pytest.mark.shows("E.2")
async def test_after_the_last_turn_with_tools_the_model_must_answer(mode: str) -> None:
    async with start_nodes(turns=2) as (node,):
        for _ in range(2):
            node.engine.says(*make_calls())
        node.engine.says(Text("Enough."))
        response = await run_response(node, mode)
        assert (response.status, list_item_types(response)) == ("completed", ["file_search_call"] * 2 + ["message"])


@MODES
async def test_a_client_tool_call_ends_the_response_after_the_server_tools_ran(mode: str) -> None:
    async with start_nodes() as (node,):
        node.engine.says(*make_calls(0), CallStarted(1, "mine"), CallDone(1))
        response = await run_response(node, mode)
        assert (response.status, sorted(list_item_types(response))) == (
            "completed",
            ["file_search_call", "function_call"],
        )
        assert len(node.example_tool.calls) == 1
