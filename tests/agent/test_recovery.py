"""A run that another server takes over before the model has said anything: nothing that was asked for is left out."""

import pytest

from antiphon.agent.recovery import remains
from antiphon.core.deltas import Put, Text, Turned
from antiphon.core.emitter.event_log import Began
from antiphon.core.prompt import Counts
from antiphon.engines.fake import FakeEngine
from antiphon.protocol.types.items import McpCall, Message
from antiphon.tools.base import Use
from tests.agent.test_tool_loop import killed, kinds, resumed
from tests.agent.turn_policies import Errand, Listing
from tests.core.emitter.tool_item_examples import CLIENTS

pytestmark = pytest.mark.anyio

ALLOWED = Use(key=0, id="", name="add", namespace="srv", arguments="{}", approval="mcpr_1")


def listing(engine: FakeEngine, *approved: Use) -> Errand:
    errand = Errand(engine)
    errand.steps = [Listing()]
    errand.approved = [*approved]
    return errand


@pytest.mark.parametrize(("moment", "lists"), [("in_progress", 2), ("completed", 1)])
async def test_a_model_that_had_not_said_a_word_is_asked(engine: FakeEngine, moment: str, lists: int) -> None:
    entries = await killed(engine, listing(engine), f"response.mcp_list_tools.{moment}")
    engine.says(Text("Hello."))
    later = await resumed(listing(engine), entries)
    assert kinds(later) == ["mcp_list_tools"] * lists + ["message"]
    last = later.response.output[-1]
    assert isinstance(last, Message)
    assert "Hello." in str(last.content)


async def test_what_was_allowed_and_not_begun_is_done_once(engine: FakeEngine) -> None:
    entries = await killed(engine, listing(engine, ALLOWED), "response.mcp_list_tools.completed")
    engine.says(Text("It is 3."))
    again = listing(engine, ALLOWED)
    later = await resumed(again, entries)
    assert [use.approval for use in again.adder.uses] == ["mcpr_1"]
    assert kinds(later) == ["mcp_list_tools", "mcp_call", "message"]


async def test_what_was_allowed_and_begun_is_given_up(engine: FakeEngine) -> None:
    entries = await killed(engine, listing(engine, ALLOWED), "response.mcp_call_arguments.done")
    engine.says(Text("Nobody knows."))
    again = listing(engine, ALLOWED)
    later = await resumed(again, entries)
    assert again.adder.uses == []
    call = later.response.output[1]
    assert isinstance(call, McpCall)
    assert call.status == "failed"


def test_a_model_that_had_called_a_tool_of_the_clients_own_had_not_said_all() -> None:
    assert remains([Began(), Put(CLIENTS[0])]) is None
    assert remains([Began(), Put(CLIENTS[0]), Turned()]) is not None


async def test_a_response_that_is_the_clients_turn_ends_there(engine: FakeEngine) -> None:
    later = await resumed(listing(engine), [Began(), Put(CLIENTS[0]), Turned(Counts(input_tokens=1))])
    assert kinds(later) == ["shell_call"]
    assert later.response.status == "completed"
    assert not engine.seen
