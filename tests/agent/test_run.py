"""`Run` over the fake engine: endings, failures, timeouts, cancellation, storing of the end, steering and warm-up.

Covers `agent/tool_loop.py`.
"""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from antiphon.admission import Admission
from antiphon.agent.choices import ExtraChoices
from antiphon.agent.engine_stream import ModelCall
from antiphon.agent.run import Run, StoreEnd
from antiphon.agent.timeouts import Timeouts
from antiphon.agent.tool_resolver import ToolCallResolver
from antiphon.core.deltas import CallDelta, CallDone, CallStarted, ReasoningDelta, Text
from antiphon.core.emitter.emitter import Emitter
from antiphon.core.emitter.event_log import RunEnded
from antiphon.core.prompt import Chunk, FinishKind, GenerationRequest
from antiphon.engines.fake import FakeEngine
from antiphon.errors import ContextTooLong, EngineFailed, Internal, Unavailable
from antiphon.ids import new_id
from antiphon.parsers.chat import ChatParser
from antiphon.protocol.types.events import Completed, Event, Failed, Incomplete
from antiphon.protocol.types.response import IncompleteDetails, Response
from antiphon.render.tools.offered_tools import OfferedTool
from tests.agent.run_endings import GENERATION, EndLog
from tests.oracles.fold import fold_events

pytestmark = pytest.mark.anyio


@pytest.fixture
def end_log() -> EndLog:
    return EndLog()


def make_run(
    engine: FakeEngine,
    end_log: EndLog,
    store_end: StoreEnd | None = None,
    strategy: ExtraChoices | None = None,
    **changes: object,
) -> Run:
    fields = {"resolver": ToolCallResolver({}), **changes}
    call = ModelCall(engine=engine, generation=GENERATION, parser=ChatParser(GENERATION.prompt), **fields)  # type: ignore[arg-type]  # any field of ModelCall
    emitter = Emitter(Response(id="resp_1", created_at=1, model="fake"), new_id, log=None if store_end is None else [])
    return Run(call, emitter, end_log, store_end, strategy=strategy)


async def drive_run(run: Run) -> list[Event]:
    received: list[Event] = []

    async def collect(events: list[Event]) -> None:
        received.extend(events)

    async with asyncio.timeout(30):
        await run.drive(collect)
    return received


@pytest.mark.shows("A.56")
async def test_a_run_ends_completed_and_folds_to_its_response(engine: FakeEngine, end_log: EndLog) -> None:
    engine.says(ReasoningDelta("hm"), Text("Hel"), Text("lo"))
    run = make_run(engine, end_log)
    events = await drive_run(run)
    assert isinstance(events[-1], Completed)
    assert fold_events(events) == run.response == events[-1].response
    assert end_log.runs == [run]


@pytest.mark.shows("A.53")
async def test_created_is_emitted_before_the_engine_is_called(engine: FakeEngine, end_log: EndLog) -> None:
    async def check_order(events: list[Event]) -> None:
        if events[0].type == "response.created":
            assert not engine.seen

    await make_run(engine, end_log).drive(check_order)
    assert len(engine.seen) == 1


@pytest.mark.shows("A.30")
async def test_an_answer_cut_by_the_engine_is_incomplete(engine: FakeEngine, end_log: EndLog) -> None:
    engine.says(Text("Hel"), finish="length")
    last = (await drive_run(make_run(engine, end_log)))[-1]
    assert isinstance(last, Incomplete)
    assert last.response.incomplete_details is not None
    assert last.response.incomplete_details.reason == "max_output_tokens"


@pytest.mark.shows("A.48", "C.28")
async def test_a_failing_engine_fails_the_response_with_and_without_a_reader(
    engine: FakeEngine, end_log: EndLog
) -> None:
    engine.says(Text("Hel"), Text("lo"))
    engine.fails(EngineFailed("It died."), after=1)
    events = await drive_run(make_run(engine, end_log))
    assert [event.type for event in events[-2:]] == ["error", "response.failed"]
    engine.says(Text("Hel"))
    engine.fails(EngineFailed("It died."), after=1)
    run = make_run(engine, end_log)
    await run.drive(None)
    assert isinstance(run.error, EngineFailed)
    assert (run.response.status, run.ending.status) == ("failed", "failed")


@pytest.mark.shows("A.29")
async def test_a_prompt_that_is_too_long_for_the_engine_fails_the_response_with_its_code(
    engine: FakeEngine, end_log: EndLog
) -> None:
    engine.fails(ContextTooLong("It has 9 tokens, and there is room for 8.", param="input"), after=0)
    events = await drive_run(make_run(engine, end_log))
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    last = events[-1]
    assert isinstance(last, Failed)
    assert last.response.error is not None
    assert last.response.error.code == "context_length_exceeded"


async def test_an_unexpected_exception_fails_the_response_without_details(
    engine: FakeEngine, end_log: EndLog, caplog: pytest.LogCaptureFixture
) -> None:
    engine.says(Text("Hel"))
    engine.fails(ZeroDivisionError("secret"), after=1)
    run = make_run(engine, end_log)
    last = (await drive_run(run))[-1]
    assert isinstance(last, Failed)
    assert isinstance(run.error, Internal)
    assert "secret" not in run.error.message
    assert "secret" in caplog.text


class HalfAnswer(FakeEngine):
    """An engine whose stream ends without a finish reason."""

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[list[Chunk], None]:
        yield [Chunk(text="Hel")]


@pytest.mark.shows("C.28")
async def test_an_engine_that_stops_without_a_finish_reason_fails_the_response(end_log: EndLog) -> None:
    last = (await drive_run(make_run(HalfAnswer(), end_log)))[-1]
    assert isinstance(last, Failed)


@pytest.mark.shows("C.28")
async def test_a_silent_engine_times_out(engine: FakeEngine, end_log: EndLog) -> None:
    engine.says(Text("Hel"), Text("lo"))
    engine.holds(after=1)
    run = make_run(engine, end_log, timeouts=Timeouts(first=5.0, idle=0.02, total=5.0))
    last = (await drive_run(run))[-1]
    assert isinstance(last, Failed)
    assert "sent no data for too long" in str(run.error)
    assert engine.running == 0


@pytest.mark.shows("C.28")
async def test_an_engine_that_never_starts_times_out(engine: FakeEngine, end_log: EndLog) -> None:
    engine.says(Text("Hel"))
    engine.holds(after=0)
    last = (await drive_run(make_run(engine, end_log, timeouts=Timeouts(first=0.02, idle=5.0, total=5.0))))[-1]
    assert isinstance(last, Failed)


async def test_a_run_ends_at_its_total_timeout(engine: FakeEngine, end_log: EndLog) -> None:
    engine.says(Text("Hel"), Text("lo"))
    engine.holds(after=1)
    run = make_run(engine, end_log, timeouts=Timeouts(first=0.04, idle=0.04, total=0.01))
    await drive_run(run)
    assert "longer" in str(run.error)


@pytest.mark.shows("A.49")
async def test_a_cancelled_driver_frees_the_engine_and_cancel_ends_the_response_once(
    engine: FakeEngine, end_log: EndLog
) -> None:
    engine.says(Text("Hel"), Text("lo"))
    gate = engine.holds(after=1)
    run = make_run(engine, end_log)
    driver = asyncio.ensure_future(run.drive(lambda events: None))
    async with asyncio.timeout(30):
        await gate.reached.wait()
        driver.cancel()
        await asyncio.wait([driver])
    assert driver.cancelled()
    assert engine.running == 0
    last = run.cancel()[-1]
    assert isinstance(last, Incomplete)
    assert (last.response.usage, run.chunk_count) == (None, 1)  # the engine reported no token counts
    assert last.response.status == "cancelled"
    assert run.cancel() == []
    assert end_log.runs == [run]


@pytest.mark.shows("C1.4")
async def test_a_run_waits_for_its_slot_before_it_is_in_progress(engine: FakeEngine, end_log: EndLog) -> None:
    admission = Admission(1, 1)
    first = admission.enter()
    await first.wait_turn()
    run = make_run(engine, end_log, ticket=admission.enter())
    created, begun = asyncio.Event(), asyncio.Event()

    async def observe(events: list[Event]) -> None:
        created.set()
        if events[0].type == "response.in_progress":
            begun.set()

    driver = asyncio.ensure_future(run.drive(observe))
    async with asyncio.timeout(30):
        await created.wait()
        assert not begun.is_set()
        first.leave()
        await driver
    assert begun.is_set()
    assert admission.running == 0


async def test_the_event_sink_is_awaited_so_a_slow_reader_slows_the_engine(engine: FakeEngine, end_log: EndLog) -> None:
    engine.says(Text("a"), Text("b"), Text("c"))
    emitted, go_on = asyncio.Event(), asyncio.Event()

    async def read_slowly(events: list[Event]) -> None:
        if events[-1].type == "response.output_text.delta":
            emitted.set()
            await go_on.wait()

    driver = asyncio.ensure_future(make_run(engine, end_log).drive(read_slowly))
    async with asyncio.timeout(30):
        await emitted.wait()
        assert engine.running == 1
        go_on.set()
        await driver
    assert engine.running == 0


async def test_cancelling_a_run_that_was_never_driven_releases_its_slot(engine: FakeEngine, end_log: EndLog) -> None:
    admission = Admission(1, 1)
    make_run(engine, end_log, ticket=admission.enter()).cancel()
    assert admission.running == 0


# ---- storing the end


async def test_the_end_is_stored_before_it_is_emitted(engine: FakeEngine, end_log: EndLog) -> None:
    received: list[Event] = []
    stored: list[tuple[str, int, int]] = []

    async def store_end(run: Run) -> None:
        stored.append((run.response.status, len(received), len(end_log.runs)))

    run = make_run(engine, end_log, store_end)
    async with asyncio.timeout(30):
        await run.drive(lambda events: received.extend(events))
    ((status, before, ended),) = stored
    assert (status, ended) == ("completed", 0)
    assert not any(isinstance(event, Completed) for event in received[:before])
    assert isinstance(received[-1], Completed)
    assert end_log.runs == [run]


@pytest.mark.parametrize("raised", [Unavailable("The store is gone."), ZeroDivisionError()])
async def test_an_end_that_cannot_be_stored_is_emitted_as_a_failure(
    engine: FakeEngine, end_log: EndLog, raised: Exception
) -> None:
    engine.says(Text("Hel"), Text("lo"))

    async def store_end(run: Run) -> None:
        raise raised

    run = make_run(engine, end_log, store_end)
    events = await drive_run(run)
    assert [event.type for event in events][-2:] == ["error", "response.failed"]
    assert [event.sequence_number for event in events] == [*range(len(events))]
    assert fold_events(events) == run.response
    assert (run.response.status, len(run.response.output)) == ("failed", 1)
    assert isinstance(run.log[-1][-1], RunEnded)
    assert run.log[-1][-1].status == "failed"
    assert type(run.error) is (Unavailable if isinstance(raised, Unavailable) else Internal)
    assert end_log.runs == [run]


async def test_a_failed_run_reports_its_own_error_if_it_cannot_be_stored(engine: FakeEngine, end_log: EndLog) -> None:
    engine.fails(EngineFailed("It broke."))

    async def store_end(run: Run) -> None:
        raise Unavailable("The store is gone.")

    run = make_run(engine, end_log, store_end)
    await run.drive(None)
    assert isinstance(run.error, EngineFailed)
    assert run.response.error is not None
    assert run.response.error.message == "It broke."


async def test_a_driver_cancelled_while_the_end_is_stored_has_ended_the_run(
    engine: FakeEngine, end_log: EndLog
) -> None:
    reached = asyncio.Event()

    async def store_end(run: Run) -> None:
        reached.set()
        await asyncio.Event().wait()

    run = make_run(engine, end_log, store_end)
    driver = asyncio.ensure_future(run.drive(None))
    async with asyncio.timeout(30):
        await reached.wait()
    driver.cancel()
    await asyncio.wait([driver])
    assert driver.cancelled()
    assert run.cancel() == []
    assert (run.response.status, end_log.runs) == ("completed", [run])


@pytest.mark.shows("F.10")
async def test_a_steered_run_ends_incomplete(engine: FakeEngine, end_log: EndLog) -> None:
    engine.says(Text("Once"), Text(" upon"), Text(" a time"))
    gate = engine.holds(after=1)
    run = make_run(engine, end_log)
    driving = asyncio.create_task(drive_run(run))
    async with asyncio.timeout(30):
        await gate.reached.wait()
        assert run.steer()
        events = await driving
    assert isinstance(events[-1], Incomplete)
    response = events[-1].response
    assert (response.status, response.incomplete_details) == ("incomplete", IncompleteDetails(reason="steered"))
    assert run.error is None


@pytest.mark.shows("F.10")
async def test_steering_does_not_interrupt_an_open_call(engine: FakeEngine, end_log: EndLog) -> None:
    engine.says(CallStarted(0, "look"), CallDelta(0, "{}"), CallDone(0))
    gate = engine.holds(after=1)
    run = make_run(engine, end_log, resolver=ToolCallResolver({"look": OfferedTool("function", "look")}))
    driving = asyncio.create_task(drive_run(run))
    async with asyncio.timeout(30):
        await gate.reached.wait()
        assert not run.steer()
        gate.open()
        assert isinstance((await driving)[-1], Completed)


@pytest.mark.parametrize(("finish", "status"), [("stop", "completed"), ("length", "incomplete")])
async def test_a_call_that_was_cut_is_incomplete(
    engine: FakeEngine, end_log: EndLog, finish: FinishKind, status: str
) -> None:
    engine.says(CallStarted(0, "look"), CallDelta(0, "{}"), finish=finish)
    run = make_run(engine, end_log, resolver=ToolCallResolver({"look": OfferedTool("function", "look")}))
    await run.drive(None)
    assert [getattr(item, "status", None) for item in run.response.output] == [status]


@pytest.mark.shows("F.3")
async def test_a_warmup_run_emits_no_output(engine: FakeEngine, end_log: EndLog) -> None:
    engine.says(Text("Once"))
    events = await drive_run(make_run(engine, end_log, is_warmup=True))
    assert [event.type for event in events] == ["response.created", "response.in_progress", "response.completed"]
    assert isinstance(events[-1], Completed)
    assert events[-1].response.output == []
    assert events[-1].response.usage is not None
    assert events[-1].response.usage.input_tokens > 0
    assert events[-1].response.usage.output_tokens == 0


async def test_a_run_without_a_reader_renders_no_events(engine: FakeEngine, end_log: EndLog) -> None:
    run = make_run(engine, end_log)
    await run.drive(None)
    assert run.status == "completed"
    assert run._emitter.suppress_events


async def test_the_event_sink_of_several_choices_is_awaited(engine: FakeEngine, end_log: EndLog) -> None:
    engine.says(Text("a"))
    engine.says(Text("b"))
    others = [
        ModelCall(
            engine=engine, generation=GENERATION, parser=ChatParser(GENERATION.prompt), resolver=ToolCallResolver({})
        )
    ]
    run = make_run(engine, end_log, strategy=ExtraChoices(others=others, hide_logprobs=True))
    events = await drive_run(run)
    assert [event.type for event in events].count("response.output_text.delta") == 2
    assert [event.type for event in events][:2] == ["response.created", "response.in_progress"]
    assert run.counts.output_tokens == 2


@pytest.mark.parametrize("finishes", [("stop", "length"), ("length", "stop")])
async def test_one_choice_that_was_cut_makes_the_response_incomplete(
    engine: FakeEngine, end_log: EndLog, finishes: tuple[FinishKind, FinishKind]
) -> None:
    for finish in finishes:
        engine.says(Text("a"), finish=finish)
    other = make_run(engine, end_log)._call
    run = make_run(engine, end_log, strategy=ExtraChoices(others=[other], hide_logprobs=True))
    await run.drive(None)
    assert run.response.incomplete_details == IncompleteDetails(reason="max_output_tokens")
