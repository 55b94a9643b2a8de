"""Runs of several turns over a scripted turn policy: server tools, approvals, client outputs, limits and recovery."""

import asyncio
from collections.abc import Sequence
from time import monotonic

import pytest
from msgspec.structs import replace

from antiphon.agent.recovery import read_checkpoint
from antiphon.agent.run import MultiTurn, Run
from antiphon.agent.timeouts import Timeouts
from antiphon.agent.tool_loop import INTERRUPTED, TOO_MANY_CALLS, ToolLoop, ToolLoopLimits
from antiphon.core.deltas import CallDelta, CallDone, CallStarted, Text
from antiphon.core.emitter.emitter import Emitter
from antiphon.core.emitter.event_log import LogEntry
from antiphon.core.prompt import TokenCounts
from antiphon.core.replay import Replay, reset_response
from antiphon.engines.fake import FakeEngine
from antiphon.errors import InvalidValue, Unavailable
from antiphon.ids import ItemIds
from antiphon.protocol.types.events import Completed, Event, Incomplete
from antiphon.protocol.types.items import FunctionCallOutput, McpApprovalRequest, McpCall, Message, OutputItem
from antiphon.protocol.types.response import Response
from antiphon.tools.base import ModelToolCall, ToolResult
from tests.agent.run_endings import EndLog
from tests.agent.turn_policies import AddTool, ScriptedTurnPolicy, list_tools, run_add, wait_forever
from tests.oracles.fold import fold_events

pytestmark = pytest.mark.anyio

ID = "resp_" + "0" * 32


def make_call(key: int, name: str, arguments: str = "{}") -> list[CallStarted | CallDelta | CallDone]:
    return [CallStarted(key, name), CallDelta(key, arguments), CallDone(key)]


def make_run(policy: ScriptedTurnPolicy, limits: ToolLoopLimits | None = None) -> Run:
    emitter = Emitter(Response(id=ID, created_at=1, model="fake"), ItemIds(ID), log=[])
    return Run(
        policy.make_first_call(), emitter, EndLog(), None, MultiTurn(policy=policy, limits=limits or ToolLoopLimits())
    )


async def drive_run(run: Run) -> list[Event]:
    received: list[Event] = []

    async def collect(events: list[Event]) -> None:
        received.extend(events)

    async with asyncio.timeout(30):
        await run.drive(collect)
    assert [event.sequence_number for event in received] == list(range(len(received)))
    assert fold_events(received) == run.response
    return received


def list_item_types(run: Run) -> list[str]:
    return [str(item.__struct_config__.tag) for item in run.response.output]


@pytest.mark.shows("E.1")
async def test_a_tool_call_is_run_and_the_model_is_called_again(engine: FakeEngine) -> None:
    engine.says(*make_call(0, "srv__add", '{"a": 1, "b": 2}'))
    engine.says(Text("It is 3."))
    policy = ScriptedTurnPolicy(engine)
    run = make_run(policy)
    events = await drive_run(run)
    assert isinstance(events[-1], Completed)
    assert list_item_types(run) == ["mcp_call", "message"]
    ran = run.response.output[0]
    assert isinstance(ran, McpCall)
    assert (ran.status, ran.output, ran.arguments) == ("completed", "3", '{"a": 1, "b": 2}')
    assert [tool_call.id for tool_call in policy.add_tool.calls] == [ran.id]
    assert policy.states[0].output[0] == ran
    assert policy.closed == 1


async def test_outcome_and_duration_of_each_call_are_recorded(engine: FakeEngine) -> None:
    engine.says(*make_call(0, "srv__add", "1"), *make_call(1, "srv__add", "2"), *make_call(2, "srv__add", "3"))
    engine.says(Text("Done."))

    async def fail_some(tool_call: ModelToolCall) -> ToolResult:
        if tool_call.arguments == "2":
            raise Unavailable("Not now.")
        result = await run_add(tool_call)
        return replace(
            result, item=replace(result.item, status="failed" if tool_call.arguments == "3" else "completed")
        )

    run = make_run(ScriptedTurnPolicy(engine, AddTool(fail_some)))
    started = monotonic()
    await drive_run(run)
    elapsed = monotonic() - started
    assert sorted(outcome for _, outcome, _ in run.tool_outcomes) == ["completed", "failed", "failed"]
    assert all(kind == "mcp" and 0 <= seconds <= elapsed for kind, _, seconds in run.tool_outcomes)


async def test_the_tokens_of_a_prelude_step_are_counted(engine: FakeEngine) -> None:
    async def count(context: ToolLoop) -> None:
        context.add_counts(TokenCounts(input_tokens=5, output_tokens=3))

    engine.says(Text("Hello."), counts=TokenCounts(input_tokens=2, output_tokens=1))
    policy = ScriptedTurnPolicy(engine)
    policy.steps = [count]
    run = make_run(policy)
    await drive_run(run)
    assert run.counts == TokenCounts(input_tokens=7, output_tokens=4)


async def test_new_keys_are_the_next_unused_numbers(engine: FakeEngine) -> None:
    keys: list[int] = []

    async def take_keys(context: ToolLoop) -> None:
        keys.extend([context.new_key(), context.new_key()])

    engine.says(*make_call(0, "srv__add"))
    engine.says(Text("It is 3."))
    policy = ScriptedTurnPolicy(engine)
    policy.steps = [take_keys, list_tools]
    run = make_run(policy)
    await drive_run(run)
    assert keys == [0, 1]


async def test_a_tool_runs_after_its_call_is_durable(engine: FakeEngine) -> None:
    engine.says(*make_call(0, "srv__add"))
    engine.says(Text("It is 3."))
    policy = ScriptedTurnPolicy(engine)
    run = make_run(policy)
    calls_run: list[int] = []

    async def wait_written() -> None:
        calls_run.append(len(policy.add_tool.calls))

    run.wait_written = wait_written
    await drive_run(run)
    assert calls_run[0] == 0
    assert len(policy.add_tool.calls) == 1


async def test_an_answer_without_a_call_is_one_turn(engine: FakeEngine) -> None:
    engine.says(Text("Hello."))
    policy = ScriptedTurnPolicy(engine)
    run = make_run(policy)
    await drive_run(run)
    assert (run.response.status, policy.states, policy.closed) == ("completed", [], 1)


async def test_prelude_steps_run_before_the_first_turn_and_their_items_are_passed_to_it(engine: FakeEngine) -> None:
    engine.says(Text("Hello."))
    policy = ScriptedTurnPolicy(engine)
    policy.steps = [list_tools]
    run = make_run(policy)
    events = await drive_run(run)
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    assert list_item_types(run) == ["mcp_list_tools", "message"]
    assert policy.states[0].is_first
    assert len(policy.states[0].output) == 1


@pytest.mark.shows("E.3")
async def test_parallel_calls_run_concurrently_and_their_items_keep_their_order(engine: FakeEngine) -> None:
    engine.says(*make_call(0, "srv__add", '{"n": 0}'), *make_call(1, "srv__add", '{"n": 1}'))
    engine.says(Text("Done."))
    first, second = asyncio.Event(), asyncio.Event()

    async def wait_for_other_call(tool_call: ModelToolCall) -> ToolResult:
        if tool_call.arguments == '{"n": 0}':
            first.set()
            await second.wait()
        else:
            await first.wait()
            second.set()
        return await run_add(tool_call)

    run = make_run(ScriptedTurnPolicy(engine, AddTool(wait_for_other_call)))
    await drive_run(run)
    arguments = [item.arguments for item in run.response.output if isinstance(item, McpCall)]
    assert arguments == ['{"n": 0}', '{"n": 1}']


async def test_concurrent_calls_are_limited(engine: FakeEngine) -> None:
    engine.says(*[delta for key in range(6) for delta in make_call(key, "srv__add")])
    engine.says(Text("Done."))
    running, peak = 0, 0

    async def count_running(tool_call: ModelToolCall) -> ToolResult:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        await asyncio.sleep(0)
        running -= 1
        return await run_add(tool_call)

    await drive_run(make_run(ScriptedTurnPolicy(engine, AddTool(count_running)), ToolLoopLimits(max_parallel=2)))
    assert peak == 2


async def test_a_failing_tool_gives_a_failed_item_and_the_run_continues(engine: FakeEngine) -> None:
    engine.says(*make_call(0, "srv__add", '{"n": 0}'), *make_call(1, "srv__add", '{"n": 1}'))
    engine.says(Text("Done."))

    async def fail(tool_call: ModelToolCall) -> ToolResult:
        if tool_call.arguments == '{"n": 0}':
            raise InvalidValue("There is no such number.")
        raise ZeroDivisionError

    policy = ScriptedTurnPolicy(engine, AddTool(fail))
    run = make_run(policy)
    events = await drive_run(run)
    assert isinstance(events[-1], Completed)
    failed = [item for item in run.response.output if isinstance(item, McpCall)]
    assert [item.status for item in failed] == ["failed", "failed"]
    assert sorted(policy.states[0].results.values(), key=str) == [
        "The server made a mistake while it ran this.",
        "There is no such number.",
    ]


async def test_a_tool_that_takes_too_long_times_out(engine: FakeEngine) -> None:
    engine.says(*make_call(0, "srv__add"))
    engine.says(Text("Done."))
    adder = AddTool(wait_forever)
    adder.max_seconds = 0.01
    run = make_run(ScriptedTurnPolicy(engine, adder))
    assert isinstance((await drive_run(run))[-1], Completed)
    ran = run.response.output[0]
    assert isinstance(ran, McpCall)
    assert ran.status == "failed"


@pytest.mark.shows("A.31")
async def test_calls_beyond_max_tool_calls_are_not_run_and_are_reported_to_the_model(engine: FakeEngine) -> None:
    engine.says(*make_call(0, "srv__add"), *make_call(1, "srv__add"), *make_call(2, "srv__add"))
    engine.says(Text("Done."))
    policy = ScriptedTurnPolicy(engine)
    run = make_run(policy, ToolLoopLimits(max_calls=2))
    await drive_run(run)
    assert len(policy.add_tool.calls) == 2
    assert list(policy.states[0].results.values()) == [TOO_MANY_CALLS]
    assert policy.states[0].calls_exhausted
    assert [item.status for item in run.response.output if isinstance(item, McpCall)].count("failed") == 1


async def test_after_the_last_turn_with_tools_the_model_must_answer(engine: FakeEngine) -> None:
    for _ in range(3):
        engine.says(*make_call(0, "srv__add"))
    engine.says(Text("Enough."))
    policy = ScriptedTurnPolicy(engine)
    run = make_run(policy, ToolLoopLimits(max_turns=3))
    assert isinstance((await drive_run(run))[-1], Completed)
    assert [state.is_last for state in policy.states] == [False, False, True]
    assert list_item_types(run) == ["mcp_call"] * 3 + ["message"]


async def test_a_run_without_remaining_tokens_ends_incomplete(engine: FakeEngine) -> None:
    engine.says(*make_call(0, "srv__add"))
    policy = ScriptedTurnPolicy(engine)
    policy.has_tokens = False
    run = make_run(policy)
    last = (await drive_run(run))[-1]
    assert isinstance(last, Incomplete)
    assert last.response.incomplete_details is not None
    assert last.response.incomplete_details.reason == "max_output_tokens"


async def test_a_cut_call_is_never_run(engine: FakeEngine) -> None:
    engine.says(CallStarted(0, "srv__add"), CallDelta(0, '{"a":'), finish="length")
    policy = ScriptedTurnPolicy(engine)
    run = make_run(policy)
    assert isinstance((await drive_run(run))[-1], Incomplete)
    assert policy.add_tool.calls == []
    ran = run.response.output[0]
    assert isinstance(ran, McpCall)
    assert ran.status == "incomplete"


async def test_the_total_timeout_includes_tool_calls(engine: FakeEngine) -> None:
    engine.says(*make_call(0, "srv__add"))
    policy = ScriptedTurnPolicy(engine, AddTool(wait_forever))
    first = policy.make_first_call()
    model_call = type(first)(
        engine=engine,
        generation=first.generation,
        parser=first.parser,
        resolver=first.resolver,
        timeouts=Timeouts(total=0.05),
    )
    run = Run(model_call, make_run(policy)._emitter, EndLog(), None, MultiTurn(policy=policy))
    assert (await drive_run(run))[-1].type == "response.failed"
    assert policy.closed == 1


async def test_server_tools_run_before_a_client_call_ends_the_response(engine: FakeEngine) -> None:
    engine.says(*make_call(0, "mine"), *make_call(1, "srv__add"))
    policy = ScriptedTurnPolicy(engine)
    run = make_run(policy)
    assert isinstance((await drive_run(run))[-1], Completed)
    assert list_item_types(run) == ["function_call", "mcp_call"]
    assert len(policy.add_tool.calls) == 1
    assert policy.states == []


@pytest.mark.shows("A2.3")
async def test_a_waiting_run_continues_with_the_outputs_of_the_client_tool(engine: FakeEngine) -> None:
    engine.says(*make_call(0, "mine"))
    engine.says(Text("Sunny."))
    run = make_run(policy := ScriptedTurnPolicy(engine, outputs=[FunctionCallOutput(call_id="", output="22 degrees")]))
    scripted_outputs = policy.wait_for_outputs

    async def answer_calls(calls):  # type: ignore[no-untyped-def]  # signature of the replaced method
        (output,) = await scripted_outputs(calls) or ()
        return [FunctionCallOutput(call_id=calls[0].call_id, output=output.output)]

    policy.wait_for_outputs = answer_calls  # type: ignore[method-assign]
    await drive_run(run)
    assert list_item_types(run) == ["function_call", "function_call_output", "message"]


@pytest.mark.shows("E.9")
async def test_a_call_that_needs_approval_ends_the_response_with_a_request(engine: FakeEngine) -> None:
    engine.says(*make_call(0, "srv__drop", '{"all": true}'), *make_call(1, "srv__add"))
    policy = ScriptedTurnPolicy(engine)
    run = make_run(policy)
    await drive_run(run)
    assert list_item_types(run) == ["mcp_call", "mcp_approval_request"]
    request = run.response.output[1]
    assert isinstance(request, McpApprovalRequest)
    assert (request.name, request.server_label, request.arguments) == ("drop", "srv", '{"all": true}')
    assert [tool_call.id for tool_call in policy.approval_requests] == [request.id]
    assert [tool_call.name for tool_call in policy.add_tool.calls] == ["add"]


async def test_a_stream_has_no_gap_if_an_approval_request_cannot_be_stored(engine: FakeEngine) -> None:
    engine.says(*make_call(0, "srv__drop"))
    policy = ScriptedTurnPolicy(engine)

    async def fail(call: ModelToolCall, output: Sequence[OutputItem]) -> None:
        raise Unavailable("The store is away.")

    policy.record_approval_request = fail  # type: ignore[method-assign]
    events = await drive_run(run := make_run(policy))
    assert [event.sequence_number for event in events] == [*range(len(events))]
    assert (run.response.status, list_item_types(run)) == ("failed", ["mcp_approval_request"])


async def test_an_approval_request_is_stored_before_the_client_sees_it(engine: FakeEngine) -> None:
    engine.says(*make_call(0, "srv__drop"))
    policy, received = ScriptedTurnPolicy(engine), list[str]()
    store_request, seen_before = policy.record_approval_request, list[str]()

    async def record_approval_request(call: ModelToolCall, output: Sequence[OutputItem]) -> None:
        seen_before.extend(received)
        await store_request(call, output)

    policy.record_approval_request = record_approval_request  # type: ignore[method-assign]
    async with asyncio.timeout(30):
        await make_run(policy).drive(lambda events: received.extend(event.type for event in events))
    assert received.count("response.output_item.added") == 1
    assert "response.output_item.added" not in seen_before


async def test_an_approved_call_runs_once_before_the_model_is_called(engine: FakeEngine) -> None:
    engine.says(Text("Dropped."))
    policy = ScriptedTurnPolicy(engine)
    policy.approved = [ModelToolCall(key=0, id="", name="drop", namespace="srv", arguments="{}", approval_id="mcpr_1")]
    run = make_run(policy)
    await drive_run(run)
    assert list_item_types(run) == ["mcp_call", "message"]
    assert [tool_call.approval_id for tool_call in policy.consumed_approvals] == ["mcpr_1"]
    assert [tool_call.name for tool_call in policy.add_tool.calls] == ["drop"]


async def test_tool_output_that_is_not_in_the_item_is_passed_to_the_next_turn(engine: FakeEngine) -> None:
    engine.says(*make_call(0, "look"))
    engine.says(Text("Seen."))
    policy = ScriptedTurnPolicy(engine)
    run = make_run(policy)
    await drive_run(run)
    assert list_item_types(run) == ["web_search_call", "message"]
    assert dict(policy.states[0].results) == {run.response.output[0].id: "the page"}


async def test_usage_is_counted_for_each_turn(engine: FakeEngine) -> None:
    engine.says(*make_call(0, "srv__add"), counts=TokenCounts(input_tokens=10, output_tokens=5))
    engine.says(Text("Done."), counts=TokenCounts(input_tokens=40, output_tokens=3, cached_tokens=15))
    run = make_run(ScriptedTurnPolicy(engine))
    await drive_run(run)
    usage = run.response.usage
    assert usage is not None
    assert usage.input_tokens_details.input_tokens_per_turn == [10, 40]
    assert usage.output_tokens_details.tool_output_tokens_per_turn == [0, 25]
    assert (usage.input_tokens, usage.output_tokens) == (50, 8)


async def run_until_killed(engine: FakeEngine, policy: ScriptedTurnPolicy, until: str) -> list[LogEntry]:
    """Return the log of a run that is killed when it emits this event."""
    run = make_run(policy)
    stopped = asyncio.get_running_loop().create_future()

    async def stop_at_event(events: list[Event]) -> None:
        if any(event.type == until for event in events) and not stopped.done():
            stopped.set_result([entry for entries in run.log for entry in entries])
            await asyncio.get_running_loop().create_future()

    task = asyncio.create_task(run.drive(stop_at_event))
    async with asyncio.timeout(30):
        entries: list[LogEntry] = await stopped
    task.cancel()
    await asyncio.wait([task])
    return entries


async def resume_run(policy: ScriptedTurnPolicy, entries: list[LogEntry], limits: ToolLoopLimits | None = None) -> Run:
    """Resume a killed run from its log, as another server does, and drive it to its end."""
    checkpoint = read_checkpoint(entries)
    assert checkpoint is not None
    replay = Replay(reset_response(Response(id=ID, created_at=1, model="fake")), False)
    replay.open()
    replay.feed(entries)
    multi_turn = MultiTurn(policy=policy, limits=limits or ToolLoopLimits(), checkpoint=checkpoint)
    run = Run(policy.make_first_call(), replay.emitter, EndLog(), None, multi_turn)
    async with asyncio.timeout(30):
        await run.drive(lambda events: None)
    return run


async def test_a_call_that_ran_during_a_crash_is_never_rerun(engine: FakeEngine) -> None:
    engine.says(*make_call(0, "srv__add"))
    policy = ScriptedTurnPolicy(engine, AddTool(wait_forever))
    run = make_run(policy)
    began = asyncio.Event()

    async def start_and_block(tool_call: ModelToolCall) -> ToolResult:
        began.set()
        return await wait_forever(tool_call)

    policy.add_tool._handler = start_and_block
    task = asyncio.create_task(run.drive(lambda events: None))
    async with asyncio.timeout(30):
        await began.wait()
    entries = [entry for each in run.log for entry in each]
    task.cancel()
    await asyncio.wait([task])
    engine.says(Text("It may have been added."))
    new_policy = ScriptedTurnPolicy(engine)
    later = await resume_run(new_policy, entries)
    assert later.response.status == "completed"
    assert new_policy.add_tool.calls == []
    assert list(new_policy.states[0].results.values()) == [INTERRUPTED]
    assert list_item_types(later) == ["mcp_call", "message"]
    assert later.response.usage is not None
    assert len(later.response.usage.input_tokens_details.input_tokens_per_turn or []) == 2


async def test_a_call_that_finished_before_a_crash_is_not_rerun_and_its_output_is_used(engine: FakeEngine) -> None:
    engine.says(*make_call(0, "look"))
    entries = await run_until_killed(engine, ScriptedTurnPolicy(engine), "response.web_search_call.completed")
    engine.says(Text("Seen."))
    new_policy = ScriptedTurnPolicy(engine)
    later = await resume_run(new_policy, entries)
    assert (later.response.status, new_policy.look_tool.calls) == ("completed", [])
    assert list(new_policy.states[0].results.values()) == ["the page"]
    last = later.response.output[-1]
    assert isinstance(last, Message)


@pytest.mark.shows("A.31")
async def test_calls_before_a_crash_count_towards_max_tool_calls(engine: FakeEngine) -> None:
    engine.says(*make_call(0, "look"))
    entries = await run_until_killed(engine, ScriptedTurnPolicy(engine), "response.web_search_call.completed")
    engine.says(*make_call(0, "srv__add"))
    engine.says(Text("Enough."))
    policy = ScriptedTurnPolicy(engine)
    later = await resume_run(policy, entries, ToolLoopLimits(max_calls=1))
    assert (later.response.status, policy.add_tool.calls) == ("completed", [])
    assert policy.states[0].calls_exhausted


async def test_a_crash_in_the_middle_of_a_turn_leaves_no_checkpoint(engine: FakeEngine) -> None:
    engine.says(Text("Hel"), Text("lo"))
    assert (
        read_checkpoint(await run_until_killed(engine, ScriptedTurnPolicy(engine), "response.output_text.delta"))
        is None
    )
    engine.says(*make_call(0, "srv__add"))
    assert (
        read_checkpoint(await run_until_killed(engine, ScriptedTurnPolicy(engine), "response.mcp_call_arguments.delta"))
        is None
    )
