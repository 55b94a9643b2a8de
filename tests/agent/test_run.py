import asyncio
from collections.abc import AsyncGenerator

import pytest

from antiphon.admission import Admission
from antiphon.agent.model_call import Plan
from antiphon.agent.run import Keep, Run
from antiphon.agent.timeouts import Deadlines
from antiphon.agent.tool_resolver import Declared
from antiphon.core.deltas import CallDelta, CallDone, CallStarted, Text, Thought
from antiphon.core.emitter.emitter import Emitter
from antiphon.core.emitter.event_log import Ended
from antiphon.core.emitter.fold import fold
from antiphon.core.prompt import Chunk, Work
from antiphon.engines.fake import FakeEngine
from antiphon.errors import ContextTooLong, EngineFailed, Internal, Unavailable
from antiphon.ids import new_id
from antiphon.parsers.chat import ChatParser
from antiphon.protocol.types.events import Completed, Event, Failed, Incomplete
from antiphon.protocol.types.response import IncompleteDetails, Response
from antiphon.render.tools.declarations import Offer
from tests.agent.run_endings import WORK, Ends

pytestmark = pytest.mark.anyio


@pytest.fixture
def ends() -> Ends:
    return Ends()


def make(engine: FakeEngine, ends: Ends, keep: Keep | None = None, **changes: object) -> Run:
    given = {"declared": Declared({}), **changes}
    plan = Plan(engine=engine, work=WORK, parser=ChatParser(WORK.prompt), **given)  # type: ignore[arg-type]  # any field of a Plan
    emitter = Emitter(Response(id="resp_1", created_at=1, model="fake"), new_id, log=None if keep is None else [])
    return Run(plan, emitter, ends, keep)


async def driven(run: Run) -> list[Event]:
    heard: list[Event] = []

    async def tell(events: list[Event]) -> None:
        heard.extend(events)

    async with asyncio.timeout(30):
        await run.drive(tell)
    return heard


@pytest.mark.shows("A.56")
async def test_a_run_ends_completed_and_folds_to_its_response(engine: FakeEngine, ends: Ends) -> None:
    engine.says(Thought("hm"), Text("Hel"), Text("lo"))
    run = make(engine, ends)
    events = await driven(run)
    assert isinstance(events[-1], Completed)
    assert fold(events) == run.response == events[-1].response
    assert ends.told == [run]


@pytest.mark.shows("A.53")
async def test_created_comes_before_the_engine_is_asked(engine: FakeEngine, ends: Ends) -> None:
    async def tell(events: list[Event]) -> None:
        if events[0].type == "response.created":
            assert not engine.seen

    await make(engine, ends).drive(tell)
    assert len(engine.seen) == 1


@pytest.mark.shows("A.30")
async def test_an_answer_cut_by_the_engine_is_incomplete(engine: FakeEngine, ends: Ends) -> None:
    engine.says(Text("Hel"), finish="length")
    last = (await driven(make(engine, ends)))[-1]
    assert isinstance(last, Incomplete)
    assert last.response.incomplete_details is not None
    assert last.response.incomplete_details.reason == "max_output_tokens"


@pytest.mark.shows("A.48", "C.28")
async def test_a_failing_engine_fails_the_response_whether_or_not_it_is_heard(engine: FakeEngine, ends: Ends) -> None:
    engine.says(Text("Hel"), Text("lo"))
    engine.fails(EngineFailed("It died."), after=1)
    events = await driven(make(engine, ends))
    assert [event.type for event in events[-2:]] == ["error", "response.failed"]
    engine.says(Text("Hel"))
    engine.fails(EngineFailed("It died."), after=1)
    run = make(engine, ends)
    await run.drive(None)
    assert isinstance(run.error, EngineFailed)
    assert (run.response.status, run.ending.status) == ("failed", "failed")


@pytest.mark.shows("A.29")
async def test_a_prompt_that_only_the_engine_finds_too_long_fails_the_response_with_its_code(
    engine: FakeEngine, ends: Ends
) -> None:
    engine.fails(ContextTooLong("It has 9 tokens, and there is room for 8.", param="input"), after=0)
    events = await driven(make(engine, ends))
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    last = events[-1]
    assert isinstance(last, Failed)
    assert last.response.error is not None
    assert last.response.error.code == "context_length_exceeded"


async def test_a_defect_fails_the_response_without_saying_anything_about_itself(
    engine: FakeEngine, ends: Ends, caplog: pytest.LogCaptureFixture
) -> None:
    engine.says(Text("Hel"))
    engine.fails(ZeroDivisionError("secret"), after=1)
    run = make(engine, ends)
    last = (await driven(run))[-1]
    assert isinstance(last, Failed)
    assert isinstance(run.error, Internal)
    assert "secret" not in run.error.message
    assert "secret" in caplog.text


class HalfAnswer(FakeEngine):
    """An engine whose connection ends in the middle, without a word."""

    async def generate(self, work: Work) -> AsyncGenerator[list[Chunk], None]:
        yield [Chunk(text="Hel")]


@pytest.mark.shows("C.28")
async def test_an_engine_that_just_stops_is_a_failure_and_never_completed(ends: Ends) -> None:
    last = (await driven(make(HalfAnswer(), ends)))[-1]
    assert isinstance(last, Failed)


@pytest.mark.shows("C.28")
async def test_a_silent_engine_is_given_up(engine: FakeEngine, ends: Ends) -> None:
    engine.says(Text("Hel"), Text("lo"))
    engine.holds(after=1)
    run = make(engine, ends, deadlines=Deadlines(first=5.0, idle=0.02, total=5.0))
    last = (await driven(run))[-1]
    assert isinstance(last, Failed)
    assert "silent" in str(run.error)
    assert engine.running == 0


@pytest.mark.shows("C.28")
async def test_an_engine_that_never_begins_is_given_up(engine: FakeEngine, ends: Ends) -> None:
    engine.says(Text("Hel"))
    engine.holds(after=0)
    last = (await driven(make(engine, ends, deadlines=Deadlines(first=0.02, idle=5.0, total=5.0))))[-1]
    assert isinstance(last, Failed)


async def test_a_run_takes_no_longer_than_its_deadline(engine: FakeEngine, ends: Ends) -> None:
    engine.says(Text("Hel"), Text("lo"))
    engine.holds(after=1)
    run = make(engine, ends, deadlines=Deadlines(first=0.04, idle=0.04, total=0.01))
    await driven(run)
    assert "longer" in str(run.error)


@pytest.mark.shows("A.49")
async def test_a_cancelled_driver_frees_the_engine_and_cancel_ends_the_response_once(
    engine: FakeEngine, ends: Ends
) -> None:
    engine.says(Text("Hel"), Text("lo"))
    gate = engine.holds(after=1)
    run = make(engine, ends)
    driver = asyncio.ensure_future(run.drive(lambda events: None))
    async with asyncio.timeout(30):
        await gate.reached.wait()
        driver.cancel()
        await asyncio.wait([driver])
    assert driver.cancelled()
    assert engine.running == 0
    last = run.cancel()[-1]
    assert isinstance(last, Incomplete)
    assert (last.response.usage, run.heard) == (None, 1)  # nobody had counted
    assert last.response.status == "cancelled"
    assert run.cancel() == []
    assert ends.told == [run]


@pytest.mark.shows("C1.4")
async def test_a_run_waits_for_its_place_before_it_is_in_progress(engine: FakeEngine, ends: Ends) -> None:
    admission = Admission(1, 1)
    first = admission.enter()
    await first.ready()
    run = make(engine, ends, ticket=admission.enter())
    created, begun = asyncio.Event(), asyncio.Event()

    async def tell(events: list[Event]) -> None:
        created.set()
        if events[0].type == "response.in_progress":
            begun.set()

    driver = asyncio.ensure_future(run.drive(tell))
    async with asyncio.timeout(30):
        await created.wait()
        assert not begun.is_set()
        first.leave()
        await driver
    assert begun.is_set()
    assert admission.running == 0


async def test_telling_is_awaited_so_a_slow_reader_slows_the_engine(engine: FakeEngine, ends: Ends) -> None:
    engine.says(Text("a"), Text("b"), Text("c"))
    told, go_on = asyncio.Event(), asyncio.Event()

    async def tell(events: list[Event]) -> None:
        if events[-1].type == "response.output_text.delta":
            told.set()
            await go_on.wait()

    driver = asyncio.ensure_future(make(engine, ends).drive(tell))
    async with asyncio.timeout(30):
        await told.wait()
        assert engine.running == 1
        go_on.set()
        await driver
    assert engine.running == 0


async def test_a_run_that_was_never_driven_gives_its_place_back(engine: FakeEngine, ends: Ends) -> None:
    admission = Admission(1, 1)
    make(engine, ends, ticket=admission.enter()).cancel()
    assert admission.running == 0


# ---- what is kept


async def test_the_end_is_kept_before_it_is_told(engine: FakeEngine, ends: Ends) -> None:
    told: list[Event] = []
    kept: list[tuple[str, int, int]] = []

    async def keep(run: Run) -> None:
        kept.append((run.response.status, len(told), len(ends.told)))

    run = make(engine, ends, keep)
    async with asyncio.timeout(30):
        await run.drive(lambda events: told.extend(events))
    ((status, before, ended),) = kept
    assert (status, ended) == ("completed", 0)
    assert not any(isinstance(event, Completed) for event in told[:before])
    assert isinstance(told[-1], Completed)
    assert ends.told == [run]


@pytest.mark.parametrize("raised", [Unavailable("The store is gone."), ZeroDivisionError()])
async def test_an_end_that_cannot_be_kept_is_told_as_a_failure(
    engine: FakeEngine, ends: Ends, raised: Exception
) -> None:
    engine.says(Text("Hel"), Text("lo"))

    async def keep(run: Run) -> None:
        raise raised

    run = make(engine, ends, keep)
    events = await driven(run)
    assert [event.type for event in events][-2:] == ["error", "response.failed"]
    assert [event.sequence_number for event in events] == [*range(len(events))]
    assert fold(events) == run.response
    assert (run.response.status, len(run.response.output)) == ("failed", 1)
    assert isinstance(run.log[-1][-1], Ended)
    assert run.log[-1][-1].status == "failed"
    assert type(run.error) is (Unavailable if isinstance(raised, Unavailable) else Internal)
    assert ends.told == [run]


async def test_one_that_had_failed_is_told_why_though_that_cannot_be_kept(engine: FakeEngine, ends: Ends) -> None:
    engine.fails(EngineFailed("It broke."))

    async def keep(run: Run) -> None:
        raise Unavailable("The store is gone.")

    run = make(engine, ends, keep)
    await run.drive(None)
    assert isinstance(run.error, EngineFailed)
    assert run.response.error is not None
    assert run.response.error.message == "It broke."


async def test_a_driver_that_goes_away_while_the_end_is_kept_has_ended_the_run_all_the_same(
    engine: FakeEngine, ends: Ends
) -> None:
    reached = asyncio.Event()

    async def keep(run: Run) -> None:
        reached.set()
        await asyncio.Event().wait()

    run = make(engine, ends, keep)
    driver = asyncio.ensure_future(run.drive(None))
    async with asyncio.timeout(30):
        await reached.wait()
    driver.cancel()
    await asyncio.wait([driver])
    assert driver.cancelled()
    assert run.cancel() == []
    assert (run.response.status, ends.told) == ("completed", [run])


@pytest.mark.shows("F.10")
async def test_a_run_that_is_steered_ends_where_it_is(engine: FakeEngine, ends: Ends) -> None:
    engine.says(Text("Once"), Text(" upon"), Text(" a time"))
    gate = engine.holds(after=1)
    run = make(engine, ends)
    driving = asyncio.create_task(driven(run))
    async with asyncio.timeout(30):
        await gate.reached.wait()
        assert run.steer()
        events = await driving
    assert isinstance(events[-1], Incomplete)
    response = events[-1].response
    assert (response.status, response.incomplete_details) == ("incomplete", IncompleteDetails(reason="steered"))
    assert run.error is None


@pytest.mark.shows("F.10")
async def test_a_call_that_has_begun_is_not_broken_off(engine: FakeEngine, ends: Ends) -> None:
    engine.says(CallStarted(0, "look"), CallDelta(0, "{}"), CallDone(0))
    gate = engine.holds(after=1)
    run = make(engine, ends, declared=Declared({"look": Offer("function", "look")}))
    driving = asyncio.create_task(driven(run))
    async with asyncio.timeout(30):
        await gate.reached.wait()
        assert not run.steer()
        gate.open()
        assert isinstance((await driving)[-1], Completed)


@pytest.mark.shows("F.3")
async def test_a_run_that_warms_up_tells_nothing_of_what_the_engine_says(engine: FakeEngine, ends: Ends) -> None:
    engine.says(Text("Once"))
    events = await driven(make(engine, ends, warms=True))
    assert [event.type for event in events] == ["response.created", "response.in_progress", "response.completed"]
    assert isinstance(events[-1], Completed)
    assert events[-1].response.output == []
