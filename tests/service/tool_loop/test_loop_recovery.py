"""A background response with tools whose server dies: what was done is done, and nothing is done twice."""

from typing import Any

import pytest

from antiphon.agent.tool_loop import INTERRUPTED
from antiphon.core.deltas import CallDelta, CallDone, CallStarted, Text
from antiphon.core.prompt import ChatPrompt
from antiphon.errors import Unavailable
from antiphon.protocol.bodies.tool_outputs import Submitted
from antiphon.protocol.types.events import Completed
from antiphon.protocol.types.response import Response
from tests.service.example_tool import FILES
from tests.service.runs.test_recovery import code, die
from tests.service.service_nodes import TENANT, Clock, House, Listener, houses, types, wire

pytestmark = pytest.mark.anyio

MINE = {"type": "function", "name": "mine", "parameters": {"type": "object", "properties": {}}}
BOTH = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "not-streamed"])


@pytest.fixture
def clock() -> Clock:
    return Clock()


def calls(name: str = "find_in_files", arguments: str = '{"q": "x"}') -> list[Any]:
    return [CallStarted(0, name), CallDelta(0, arguments), CallDone(0)]


async def started(house: House, stream: bool, **body: Any) -> str:
    body = {"tools": [FILES, MINE], **body}
    if not stream:
        return await house.background(**body)
    listener = await house.streaming(background=True, **body)
    await listener.go_away()
    return listener.id


def kinds(response: Response) -> list[str]:
    return [str(item.__struct_config__.tag) for item in response.output]


def told(house: House) -> Any:
    prompt = house.engine.seen[-1].prompt
    assert isinstance(prompt, ChatPrompt)
    return prompt.messages[-1]["content"]


@BOTH
async def test_a_call_that_ran_when_its_server_died_is_not_run_again_and_the_model_is_told(
    clock: Clock, stream: bool
) -> None:
    async with houses(2, clock) as (dead, other):
        dead.shelf.may_end.clear()
        dead.engine.says(*calls())
        response_id = await started(dead, stream)
        await dead.shelf.began.wait()
        await die(dead, clock)
        other.engine.says(Text("I do not know."))
        await other.jobs.scan()
        response = await other.ended(response_id)
        assert (response.status, kinds(response)) == ("completed", ["file_search_call", "message"])
        assert other.shelf.uses == []
        assert told(other) == INTERRUPTED


@BOTH
async def test_what_a_tool_had_said_is_known_to_who_goes_on(clock: Clock, stream: bool) -> None:
    async with houses(2, clock) as (dead, other):
        dead.engine.says(*calls())
        dead.engine.says(Text("Never heard."))
        gate = dead.engine.holds(after=0)
        response_id = await started(dead, stream)
        await gate.reached.wait()
        await die(dead, clock)
        other.engine.says(Text("On page 7."))
        await other.jobs.scan()
        response = await other.ended(response_id)
        assert (response.status, kinds(response)) == ("completed", ["file_search_call", "message"])
        assert (len(dead.shelf.uses), other.shelf.uses) == (1, [])
        assert told(other) == "It is on page 7."


async def test_one_stream_is_heard_over_both_servers(clock: Clock) -> None:
    async with houses(2, clock) as (dead, other):
        dead.shelf.may_end.clear()
        dead.engine.says(*calls())
        response_id = await started(dead, stream=True)
        await dead.shelf.began.wait()
        follower = Listener(await other.following.replay(TENANT, response_id)).start()
        await follower.until("response.file_search_call.in_progress")
        await die(dead, clock)
        other.engine.says(Text("I do not know."))
        await other.jobs.scan()
        events = await follower.all()
        assert isinstance(events[-1], Completed)
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert types(events).count("response.in_progress") == 1
        assert wire(events) == wire(await other.heard(response_id))


async def test_a_server_that_died_while_its_model_spoke_leaves_a_failure(clock: Clock) -> None:
    async with houses(2, clock) as (dead, other):
        dead.engine.says(*calls())
        dead.engine.says(Text("On "), Text("page 7."))
        response_id = await started(dead, stream=True)
        gate = dead.engine.holds(after=1)
        await gate.reached.wait()
        listener = Listener(await dead.following.replay(TENANT, response_id)).start()
        await listener.until("response.output_text.delta")
        await listener.go_away()
        await die(dead, clock)
        await other.jobs.scan()
        assert code(await other.ended(response_id)) == "server_restarted"
        assert other.shelf.uses == []


@pytest.mark.shows("A.12")
@BOTH
async def test_a_response_that_waits_for_its_client_waits_on_at_another_server(clock: Clock, stream: bool) -> None:
    async with houses(2, clock) as (dead, other):
        dead.engine.says(*calls("mine", "{}"))
        response_id = await started(dead, stream, wait_for_tool_outputs=True)
        await dead.store.expects.wait()
        pending = await dead.store.outputs(TENANT, response_id)
        await die(dead, clock)
        other.engine.says(Text("Sunny."))
        await other.jobs.scan()
        (call_id,) = pending
        await other.outputs.submit(
            TENANT, response_id, Submitted(call_id=call_id, output="22 degrees", param="call_id", ignored=[])
        )
        response = await other.ended(response_id)
        assert (response.status, kinds(response)) == (
            "completed",
            ["function_call", "function_call_output", "message"],
        )
        assert told(other) == "22 degrees"


@BOTH
async def test_a_server_that_stops_hands_over_what_waits_for_its_client(clock: Clock, stream: bool) -> None:
    async with houses(2, clock) as (stopping, other):
        stopping.engine.says(*calls("mine", "{}"))
        response_id = await started(stopping, stream, wait_for_tool_outputs=True)
        await stopping.store.expects.wait()
        (call_id,) = await stopping.store.outputs(TENANT, response_id)
        stopping.sessions.interrupt(Unavailable("The server is shutting down."))
        await stopping.sessions.drained()
        other.engine.says(Text("Sunny."))
        await other.jobs.scan()
        await other.outputs.submit(
            TENANT, response_id, Submitted(call_id=call_id, output="22 degrees", param="call_id", ignored=[])
        )
        assert (await other.ended(response_id)).status == "completed"
