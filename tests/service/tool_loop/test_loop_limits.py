"""Every limit of the loop has one outcome, the same in a stream, in JSON and in the background."""

from typing import Any

import pytest

from antiphon.agent.tool_loop import TOO_MANY
from antiphon.core.deltas import CallDelta, CallDone, CallStarted, Text
from antiphon.core.prompt import ChatPrompt, Counts
from antiphon.protocol.types.response import Response
from tests.service.example_tool import FILES
from tests.service.service_nodes import House, heard, houses

pytestmark = pytest.mark.anyio

MINE = {"type": "function", "name": "mine", "parameters": {"type": "object", "properties": {}}}
MODES = pytest.mark.parametrize("mode", ["json", "stream", "background", "background stream"])


def calls(*keys: int) -> list[Any]:
    return [
        delta
        for key in keys or (0,)
        for delta in (CallStarted(key, "find_in_files"), CallDelta(key, '{"q": "x"}'), CallDone(key))
    ]


async def ended(house: House, mode: str, **body: Any) -> Response:
    """The response, as the store has it."""
    body = {"tools": [FILES, MINE], **body}
    if mode == "background":
        return await house.ended(await house.background(**body))
    accepted = await house.create(stream="stream" in mode, background="background" in mode, **body)
    assert accepted.source is not None
    events = await heard(accepted.source)
    response = events[-1].response  # type: ignore[attr-defined]  # the last one has it
    assert await house.get(response.id) == response
    return response  # type: ignore[no-any-return]  # as above


def kinds(response: Response) -> list[str]:
    return [str(item.__struct_config__.tag) for item in response.output]


@MODES
@pytest.mark.shows("E.2")
async def test_tokens_that_are_spent_leave_it_incomplete(mode: str) -> None:
    async with houses() as (house,):
        house.engine.says(*calls(), counts=Counts(input_tokens=5, output_tokens=20))
        response = await ended(house, mode, max_output_tokens=20)
        assert (response.status, kinds(response)) == ("incomplete", ["file_search_call"])
        assert response.incomplete_details is not None
        assert response.incomplete_details.reason == "max_output_tokens"


@MODES
@pytest.mark.shows("E.2")
async def test_time_that_is_over_fails_it(mode: str) -> None:
    for seconds in (0.2, 2.0, 10.0):  # a busy machine may not get as far as the tool in the first of them
        async with houses(seconds=seconds) as (house,):
            house.shelf.may_end.clear()
            house.engine.says(*calls())
            response = await ended(house, mode)
            assert (response.status, response.error is not None) == ("failed", True)
            assert "longer than this server allows" in str(response.error)
            if house.shelf.uses:
                break
    assert kinds(response) == ["file_search_call"]


@MODES
@pytest.mark.shows("A.31")
async def test_calls_beyond_the_last_one_are_told_and_not_run(mode: str) -> None:
    async with houses() as (house,):
        house.engine.says(*calls(0, 1))
        house.engine.says(Text("Enough."))
        response = await ended(house, mode, max_tool_calls=1)
        assert (response.status, kinds(response)) == ("completed", ["file_search_call"] * 2 + ["message"])
        assert len(house.shelf.uses) == 1
        prompt = house.engine.seen[-1].prompt
        assert isinstance(prompt, ChatPrompt)
        assert TOO_MANY in [message["content"] for message in prompt.messages]


@MODES
@pytest.mark.shows("E.2")
async def test_after_the_last_turn_with_tools_it_has_to_answer(mode: str) -> None:
    async with houses(turns=2) as (house,):
        for _ in range(2):
            house.engine.says(*calls())
        house.engine.says(Text("Enough."))
        response = await ended(house, mode)
        assert (response.status, kinds(response)) == ("completed", ["file_search_call"] * 2 + ["message"])


@MODES
async def test_a_clients_call_ends_it_when_the_servers_have_run(mode: str) -> None:
    async with houses() as (house,):
        house.engine.says(*calls(0), CallStarted(1, "mine"), CallDone(1))
        response = await ended(house, mode)
        assert (response.status, sorted(kinds(response))) == ("completed", ["file_search_call", "function_call"])
        assert len(house.shelf.uses) == 1
