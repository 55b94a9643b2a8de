"""Runs that another server recovers before the model produced output: no requested step is skipped."""

import pytest

from antiphon.agent.recovery import read_checkpoint
from antiphon.core.deltas import (
    CallDelta,
    CallKind,
    CallStarted,
    ItemAdded,
    ServerItemDone,
    ServerItemStarted,
    Text,
    TurnEnded,
)
from antiphon.core.emitter.event_log import RunStarted
from antiphon.core.prompt import TokenCounts
from antiphon.engines.fake import FakeEngine
from antiphon.protocol.types.items import (
    McpApprovalRequest,
    McpCall,
    McpListTools,
    Message,
    ShellAction,
    ShellCall,
)
from antiphon.protocol.types.tools import ContainerReference
from antiphon.tools.base import ModelToolCall
from tests.agent.test_tool_loop import list_item_types, resume_run, run_until_killed
from tests.agent.turn_policies import ScriptedTurnPolicy, list_tools
from tests.core.emitter.tool_item_examples import CLIENT_ITEMS

pytestmark = pytest.mark.anyio

APPROVED_CALL = ModelToolCall(key=0, id="", name="add", namespace="srv", arguments="{}", approval_id="mcpr_1")


def make_policy(engine: FakeEngine, *approved: ModelToolCall) -> ScriptedTurnPolicy:
    """Return a policy that lists tools first and has these approved calls."""
    policy = ScriptedTurnPolicy(engine)
    policy.steps = [list_tools]
    policy.approved = [*approved]
    return policy


@pytest.mark.parametrize(("moment", "lists"), [("in_progress", 2), ("completed", 1)])
async def test_a_model_without_output_is_called_after_recovery(engine: FakeEngine, moment: str, lists: int) -> None:
    entries = await run_until_killed(engine, make_policy(engine), f"response.mcp_list_tools.{moment}")
    engine.says(Text("Hello."))
    later = await resume_run(make_policy(engine), entries)
    assert list_item_types(later) == ["mcp_list_tools"] * lists + ["message"]
    last = later.response.output[-1]
    assert isinstance(last, Message)
    assert "Hello." in str(last.content)


async def test_an_approved_call_that_had_not_started_runs_once(engine: FakeEngine) -> None:
    entries = await run_until_killed(engine, make_policy(engine, APPROVED_CALL), "response.mcp_list_tools.completed")
    engine.says(Text("It is 3."))
    policy = make_policy(engine, APPROVED_CALL)
    later = await resume_run(policy, entries)
    assert [call.approval_id for call in policy.add_tool.calls] == ["mcpr_1"]
    assert list_item_types(later) == ["mcp_list_tools", "mcp_call", "message"]


async def test_an_approved_call_that_had_started_is_failed(engine: FakeEngine) -> None:
    entries = await run_until_killed(engine, make_policy(engine, APPROVED_CALL), "response.mcp_call_arguments.done")
    engine.says(Text("Nobody knows."))
    policy = make_policy(engine, APPROVED_CALL)
    later = await resume_run(policy, entries)
    assert policy.add_tool.calls == []
    call = later.response.output[1]
    assert isinstance(call, McpCall)
    assert call.status == "failed"


def test_a_shell_call_before_the_first_turn_is_one_that_a_client_approved() -> None:
    reference = ContainerReference(container_id="cntr_1")
    call = ShellCall(call_id="", action=ShellAction(commands=["ls"]), environment=reference)
    first = read_checkpoint([RunStarted(), ServerItemStarted(0, call)])
    assert first is not None
    assert first.approved_started
    later = read_checkpoint([RunStarted(), TurnEnded(TokenCounts(input_tokens=1)), ServerItemStarted(0, call)])
    assert later is not None
    assert not later.approved_started


@pytest.mark.parametrize(("kind", "field"), [("mcp", "arguments"), ("code_interpreter", "code")])
def test_a_call_that_had_not_ended_has_the_arguments_that_were_streamed(kind: CallKind, field: str) -> None:
    ended, unended = (CallStarted(key, "add", kind, "srv", approval=f"mcpr_{key}") for key in range(2))
    result = McpCall(server_label="srv", name="add", arguments="{}", output="3")
    checkpoint = read_checkpoint(
        [
            RunStarted(),
            ended,
            CallDelta(0, "{}"),
            ServerItemDone(0, result),
            unended,
            CallDelta(1, "1"),
            CallDelta(1, "+2"),
        ]
    )
    assert checkpoint is not None
    assert {key: getattr(item, field) for key, item in checkpoint.open_items.items()} == {1: "1+2"}
    assert (checkpoint.call_count, checkpoint.approved_started) == (2, True)


def test_a_request_for_approval_is_open_until_the_turn_ends() -> None:
    request = ItemAdded(McpApprovalRequest(server_label="srv", name="add", arguments="{}"))
    tools = ServerItemStarted(0, McpListTools(id="mcpl_0", server_label="srv", tools=[]))
    for entries, requested in (([request], True), ([tools], False), ([request, TurnEnded()], False)):
        checkpoint = read_checkpoint([RunStarted(), *entries])
        assert checkpoint is not None
        assert checkpoint.approval_requested == requested


def test_a_turn_with_a_client_call_has_a_checkpoint_only_after_its_end() -> None:
    assert read_checkpoint([RunStarted(), ItemAdded(CLIENT_ITEMS[0])]) is None
    assert read_checkpoint([RunStarted(), ItemAdded(CLIENT_ITEMS[0]), TurnEnded()]) is not None


async def test_a_recovered_response_with_a_client_call_ends_completed(engine: FakeEngine) -> None:
    later = await resume_run(
        make_policy(engine), [RunStarted(), ItemAdded(CLIENT_ITEMS[0]), TurnEnded(TokenCounts(input_tokens=1))]
    )
    assert list_item_types(later) == ["shell_call"]
    assert later.response.status == "completed"
    assert not engine.seen


def test_the_next_key_follows_the_highest_of_the_log() -> None:
    started = [
        ServerItemStarted(key=key, item=McpListTools(id=f"mcpl_{key}", server_label="srv", tools=[])) for key in (4, 2)
    ]
    checkpoint = read_checkpoint([RunStarted(), *started])
    assert checkpoint is not None
    assert checkpoint.next_key == 5
