import asyncio

import pytest

from antiphon.agent.recovery import remains
from antiphon.agent.run import Beyond, Run
from antiphon.agent.timeouts import Deadlines
from antiphon.agent.tool_loop import INTERRUPTED, TOO_MANY, Bounds
from antiphon.core.deltas import CallDelta, CallDone, CallStarted, Text
from antiphon.core.emitter.emitter import Emitter
from antiphon.core.emitter.event_log import Entry
from antiphon.core.emitter.fold import fold
from antiphon.core.prompt import Counts
from antiphon.core.replay.replay import Replay, reopened
from antiphon.engines.fake import FakeEngine
from antiphon.errors import InvalidValue
from antiphon.ids import ItemIds
from antiphon.protocol.types.events import Completed, Event, Incomplete
from antiphon.protocol.types.items import FunctionCallOutput, McpApprovalRequest, McpCall, Message
from antiphon.protocol.types.response import Response
from antiphon.tools.base import Use, Used
from tests.agent.run_endings import Ends
from tests.agent.turn_policies import Adder, Errand, Listing, adds, never

pytestmark = pytest.mark.anyio

ID = "resp_" + "0" * 32


def call(key: int, name: str, arguments: str = "{}") -> list[CallStarted | CallDelta | CallDone]:
    return [CallStarted(key, name), CallDelta(key, arguments), CallDone(key)]


def make(errand: Errand, bounds: Bounds | None = None) -> Run:
    emitter = Emitter(Response(id=ID, created_at=1, model="fake"), ItemIds(ID), log=[])
    return Run(errand.first(), emitter, Ends(), None, Beyond(course=errand, bounds=bounds or Bounds()))


async def driven(run: Run) -> list[Event]:
    heard: list[Event] = []

    async def tell(events: list[Event]) -> None:
        heard.extend(events)

    async with asyncio.timeout(30):
        await run.drive(tell)
    assert [event.sequence_number for event in heard] == list(range(len(heard)))
    assert fold(heard) == run.response
    return heard


def kinds(run: Run) -> list[str]:
    return [str(item.__struct_config__.tag) for item in run.response.output]


@pytest.mark.shows("E.1")
async def test_what_a_model_calls_is_run_and_the_model_is_asked_again(engine: FakeEngine) -> None:
    engine.says(*call(0, "srv__add", '{"a": 1, "b": 2}'))
    engine.says(Text("It is 3."))
    errand = Errand(engine)
    run = make(errand)
    events = await driven(run)
    assert isinstance(events[-1], Completed)
    assert kinds(run) == ["mcp_call", "message"]
    ran = run.response.output[0]
    assert isinstance(ran, McpCall)
    assert (ran.status, ran.output, ran.arguments) == ("completed", "3", '{"a": 1, "b": 2}')
    assert [use.id for use in errand.adder.uses] == [ran.id]
    assert errand.sofar[0].output[0] == ran
    assert errand.closed == 1


async def test_an_answer_without_a_call_is_one_turn(engine: FakeEngine) -> None:
    engine.says(Text("Hello."))
    errand = Errand(engine)
    run = make(errand)
    await driven(run)
    assert (run.response.status, errand.sofar, errand.closed) == ("completed", [], 1)


async def test_steps_come_before_the_first_turn_and_their_items_are_known_to_it(engine: FakeEngine) -> None:
    engine.says(Text("Hello."))
    errand = Errand(engine)
    errand.steps = [Listing()]
    run = make(errand)
    events = await driven(run)
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    assert kinds(run) == ["mcp_list_tools", "message"]
    assert errand.sofar[0].first
    assert len(errand.sofar[0].output) == 1


@pytest.mark.shows("E.3")
async def test_parallel_calls_run_side_by_side_and_their_items_keep_their_places(engine: FakeEngine) -> None:
    engine.says(*call(0, "srv__add", '{"n": 0}'), *call(1, "srv__add", '{"n": 1}'))
    engine.says(Text("Done."))
    first, second = asyncio.Event(), asyncio.Event()

    async def crossed(use: Use) -> Used:
        if use.arguments == '{"n": 0}':
            first.set()
            await second.wait()
        else:
            await first.wait()
            second.set()
        return await adds(use)

    run = make(Errand(engine, Adder(crossed)))
    await driven(run)
    told = [item.arguments for item in run.response.output if isinstance(item, McpCall)]
    assert told == ['{"n": 0}', '{"n": 1}']


async def test_no_more_calls_run_at_once_than_are_allowed(engine: FakeEngine) -> None:
    engine.says(*[delta for key in range(6) for delta in call(key, "srv__add")])
    engine.says(Text("Done."))
    running, most = 0, 0

    async def counted(use: Use) -> Used:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return await adds(use)

    await driven(make(Errand(engine, Adder(counted)), Bounds(at_once=2)))
    assert most == 2


async def test_a_failing_tool_is_an_item_with_an_error_and_the_run_goes_on(engine: FakeEngine) -> None:
    engine.says(*call(0, "srv__add", '{"n": 0}'), *call(1, "srv__add", '{"n": 1}'))
    engine.says(Text("Done."))

    async def fails(use: Use) -> Used:
        if use.arguments == '{"n": 0}':
            raise InvalidValue("There is no such number.")
        raise ZeroDivisionError

    errand = Errand(engine, Adder(fails))
    run = make(errand)
    events = await driven(run)
    assert isinstance(events[-1], Completed)
    failed = [item for item in run.response.output if isinstance(item, McpCall)]
    assert [item.status for item in failed] == ["failed", "failed"]
    assert sorted(errand.sofar[0].said.values(), key=str) == [
        "The server made a mistake while it ran this.",
        "There is no such number.",
    ]


async def test_a_tool_that_takes_too_long_is_given_up(engine: FakeEngine) -> None:
    engine.says(*call(0, "srv__add"))
    engine.says(Text("Done."))
    adder = Adder(never)
    adder.longest = 0.01
    run = make(Errand(engine, adder))
    assert isinstance((await driven(run))[-1], Completed)
    ran = run.response.output[0]
    assert isinstance(ran, McpCall)
    assert ran.status == "failed"


@pytest.mark.shows("A.31")
async def test_calls_beyond_max_tool_calls_are_not_run_and_the_model_is_told(engine: FakeEngine) -> None:
    engine.says(*call(0, "srv__add"), *call(1, "srv__add"), *call(2, "srv__add"))
    engine.says(Text("Done."))
    errand = Errand(engine)
    run = make(errand, Bounds(calls=2))
    await driven(run)
    assert len(errand.adder.uses) == 2
    assert list(errand.sofar[0].said.values()) == [TOO_MANY]
    assert errand.sofar[0].spent
    assert [item.status for item in run.response.output if isinstance(item, McpCall)].count("failed") == 1


async def test_after_the_last_turn_with_tools_the_model_has_to_answer(engine: FakeEngine) -> None:
    for _ in range(3):
        engine.says(*call(0, "srv__add"))
    engine.says(Text("Enough."))
    errand = Errand(engine)
    run = make(errand, Bounds(turns=3))
    assert isinstance((await driven(run))[-1], Completed)
    assert [sofar.last for sofar in errand.sofar] == [False, False, True]
    assert kinds(run) == ["mcp_call"] * 3 + ["message"]


async def test_without_tokens_left_it_ends_incomplete(engine: FakeEngine) -> None:
    engine.says(*call(0, "srv__add"))
    errand = Errand(engine)
    errand.tokens = False
    run = make(errand)
    last = (await driven(run))[-1]
    assert isinstance(last, Incomplete)
    assert last.response.incomplete_details is not None
    assert last.response.incomplete_details.reason == "max_output_tokens"


async def test_a_call_that_was_cut_is_never_run(engine: FakeEngine) -> None:
    engine.says(CallStarted(0, "srv__add"), CallDelta(0, '{"a":'), finish="length")
    errand = Errand(engine)
    run = make(errand)
    assert isinstance((await driven(run))[-1], Incomplete)
    assert errand.adder.uses == []
    ran = run.response.output[0]
    assert isinstance(ran, McpCall)
    assert ran.status == "incomplete"


async def test_the_time_for_all_of_it_counts_while_tools_run(engine: FakeEngine) -> None:
    engine.says(*call(0, "srv__add"))
    errand = Errand(engine, Adder(never))
    first = errand.first()
    plan = type(first)(
        engine=engine, work=first.work, parser=first.parser, declared=first.declared, deadlines=Deadlines(total=0.05)
    )
    run = Run(plan, make(errand)._emitter, Ends(), None, Beyond(course=errand))
    assert (await driven(run))[-1].type == "response.failed"
    assert errand.closed == 1


async def test_server_tools_run_and_then_the_client_has_the_word(engine: FakeEngine) -> None:
    engine.says(*call(0, "mine"), *call(1, "srv__add"))
    errand = Errand(engine)
    run = make(errand)
    assert isinstance((await driven(run))[-1], Completed)
    assert kinds(run) == ["function_call", "mcp_call"]
    assert len(errand.adder.uses) == 1
    assert errand.sofar == []


@pytest.mark.shows("A2.3")
async def test_a_run_that_waits_goes_on_with_what_the_clients_tool_gave(engine: FakeEngine) -> None:
    engine.says(*call(0, "mine"))
    engine.says(Text("Sunny."))
    run = make(errand := Errand(engine, outputs=[FunctionCallOutput(call_id="", output="22 degrees")]))
    errand_outputs = errand.outputs

    async def answered(calls):  # type: ignore[no-untyped-def]  # as the course has it
        (given,) = await errand_outputs(calls) or ()
        return [FunctionCallOutput(call_id=calls[0].call_id, output=given.output)]

    errand.outputs = answered  # type: ignore[method-assign]
    await driven(run)
    assert kinds(run) == ["function_call", "function_call_output", "message"]


@pytest.mark.shows("E.9")
async def test_a_call_that_needs_it_is_asked_about_and_ends_the_response(engine: FakeEngine) -> None:
    engine.says(*call(0, "srv__drop", '{"all": true}'), *call(1, "srv__add"))
    errand = Errand(engine)
    run = make(errand)
    await driven(run)
    assert kinds(run) == ["mcp_call", "mcp_approval_request"]
    asked = run.response.output[1]
    assert isinstance(asked, McpApprovalRequest)
    assert (asked.name, asked.server_label, asked.arguments) == ("drop", "srv", '{"all": true}')
    assert [use.id for use in errand.asked] == [asked.id]
    assert [use.name for use in errand.adder.uses] == ["add"]


async def test_what_was_approved_is_run_once_before_the_model_speaks(engine: FakeEngine) -> None:
    engine.says(Text("Dropped."))
    errand = Errand(engine)
    errand.approved = [Use(key=0, id="", name="drop", namespace="srv", arguments="{}", approval="mcpr_1")]
    run = make(errand)
    await driven(run)
    assert kinds(run) == ["mcp_call", "message"]
    assert [use.approval for use in errand.allowed] == ["mcpr_1"]
    assert [use.name for use in errand.adder.uses] == ["drop"]


async def test_what_a_tool_said_beyond_its_item_is_known_to_the_next_turn(engine: FakeEngine) -> None:
    engine.says(*call(0, "look"))
    engine.says(Text("Seen."))
    errand = Errand(engine)
    run = make(errand)
    await driven(run)
    assert kinds(run) == ["web_search_call", "message"]
    assert dict(errand.sofar[0].said) == {run.response.output[0].id: "the page"}


async def test_usage_is_counted_for_each_turn(engine: FakeEngine) -> None:
    engine.says(*call(0, "srv__add"), counts=Counts(input_tokens=10, output_tokens=5))
    engine.says(Text("Done."), counts=Counts(input_tokens=40, output_tokens=3, cached_tokens=15))
    run = make(Errand(engine))
    await driven(run)
    usage = run.response.usage
    assert usage is not None
    assert usage.input_tokens_details.input_tokens_per_turn == [10, 40]
    assert usage.output_tokens_details.tool_output_tokens_per_turn == [0, 25]
    assert (usage.input_tokens, usage.output_tokens) == (50, 8)


async def killed(engine: FakeEngine, errand: Errand, until: str) -> list[Entry]:
    """The log of a run that died when this event was told."""
    run = make(errand)
    stopped = asyncio.get_running_loop().create_future()

    async def tell(events: list[Event]) -> None:
        if any(event.type == until for event in events) and not stopped.done():
            stopped.set_result([entry for entries in run.log for entry in entries])
            await asyncio.get_running_loop().create_future()

    task = asyncio.create_task(run.drive(tell))
    async with asyncio.timeout(30):
        entries: list[Entry] = await stopped
    task.cancel()
    await asyncio.wait([task])
    return entries


async def resumed(errand: Errand, entries: list[Entry]) -> Run:
    found = remains(entries)
    assert found is not None
    replay = Replay(reopened(Response(id=ID, created_at=1, model="fake")), False)
    replay.open()
    replay.feed(entries)
    run = Run(errand.first(), replay.emitter, Ends(), None, Beyond(course=errand, remains=found))
    async with asyncio.timeout(30):
        await run.drive(lambda events: None)
    return run


async def test_a_call_that_was_running_when_the_server_died_is_never_run_again(engine: FakeEngine) -> None:
    engine.says(*call(0, "srv__add"))
    errand = Errand(engine, Adder(never))
    run = make(errand)
    began = asyncio.Event()

    async def begins(use: Use) -> Used:
        began.set()
        return await never(use)

    errand.adder._doing = begins
    task = asyncio.create_task(run.drive(lambda events: None))
    async with asyncio.timeout(30):
        await began.wait()
    entries = [entry for each in run.log for entry in each]
    task.cancel()
    await asyncio.wait([task])
    engine.says(Text("It may have been added."))
    again = Errand(engine)
    later = await resumed(again, entries)
    assert later.response.status == "completed"
    assert again.adder.uses == []
    assert list(again.sofar[0].said.values()) == [INTERRUPTED]
    assert kinds(later) == ["mcp_call", "message"]
    assert later.response.usage is not None
    assert len(later.response.usage.input_tokens_details.input_tokens_per_turn or []) == 2


async def test_what_had_run_when_the_server_died_is_known_and_not_run_again(engine: FakeEngine) -> None:
    engine.says(*call(0, "look"))
    entries = await killed(engine, Errand(engine), "response.web_search_call.completed")
    engine.says(Text("Seen."))
    again = Errand(engine)
    later = await resumed(again, entries)
    assert (later.response.status, again.looker.uses) == ("completed", [])
    assert list(again.sofar[0].said.values()) == ["the page"]
    last = later.response.output[-1]
    assert isinstance(last, Message)


async def test_a_server_that_died_in_the_middle_of_a_turn_leaves_nothing_to_go_on_with(engine: FakeEngine) -> None:
    engine.says(Text("Hel"), Text("lo"))
    assert remains(await killed(engine, Errand(engine), "response.output_text.delta")) is None
    engine.says(*call(0, "srv__add"))
    assert remains(await killed(engine, Errand(engine), "response.mcp_call_arguments.delta")) is None
