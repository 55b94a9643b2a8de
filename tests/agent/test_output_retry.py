"""Several tries are one response: one time for all, one place at the model, one interruption that ends them."""

import asyncio

import pytest

from antiphon.admission import Admission
from antiphon.agent.model_call import Plan
from antiphon.agent.output_rules import Insistence, Misfit, Rules
from antiphon.agent.run import Run
from antiphon.agent.timeouts import Deadlines
from antiphon.agent.tool_resolver import Declared
from antiphon.core.deltas import CallDelta, CallDone, CallStarted, Text
from antiphon.core.emitter.emitter import Emitter
from antiphon.core.prompt import ChatPrompt, Prompt, Sampling, Work
from antiphon.engines.fake import FakeEngine, FakeSettings
from antiphon.errors import Unavailable
from antiphon.ids import new_id
from antiphon.parsers.base import Parser
from antiphon.parsers.chat import ChatParser
from antiphon.protocol.types.events import Event, Failed
from antiphon.protocol.types.response import Response
from antiphon.render.tools.declarations import Offer

pytestmark = pytest.mark.anyio
PROMPT = ChatPrompt(messages=({"role": "user", "content": "hi"},))
OFFERS = {"f": Offer("function", "f")}


async def again(misfit: Misfit) -> tuple[Prompt, Parser]:
    return PROMPT, ChatParser(PROMPT)


def make(engine: FakeEngine, *, tries: int = 2, **changes: object) -> Run:
    plan = Plan(
        engine=engine,
        work=Work(model="fake", prompt=PROMPT, sampling=Sampling()),
        parser=ChatParser(PROMPT),
        declared=Declared(OFFERS),
        insists=Insistence(rules=Rules(must=frozenset({(None, "f")})), again=again, tries=tries),
        **changes,  # type: ignore[arg-type]  # any field of a Plan
    )
    return Run(plan, Emitter(Response(id="resp_1", created_at=1, model="fake"), new_id), lambda run: None)


async def driven(run: Run) -> list[Event]:
    heard: list[Event] = []
    async with asyncio.timeout(30):
        await run.drive(heard.extend)
    return heard


@pytest.mark.parametrize("tries", [0, 1, 4])
async def test_there_are_as_many_tries_as_the_operator_allows(tries: int) -> None:
    engine = FakeEngine()
    engine.says(Text("No."))
    engine.repeats(tries)
    run = make(engine, tries=tries)
    events = await driven(run)
    assert [event.type for event in events] == [
        "response.created", "response.in_progress", "error", "response.failed",
    ]  # fmt: skip
    assert [*run.insisted] == [("no_call", "asked_again")] * tries + [("no_call", "failed")]


async def test_the_time_of_a_response_is_the_time_of_all_its_tries() -> None:
    engine = FakeEngine(FakeSettings(delay=0.2))
    engine.says(Text("No."))
    engine.repeats(9)
    last = (await driven(make(engine, tries=9, deadlines=Deadlines(total=0.5))))[-1]
    assert isinstance(last, Failed)
    assert last.response.error is not None
    assert "longer than this server allows" in last.response.error.message
    assert not engine.running


async def test_the_place_at_the_model_is_kept_until_the_last_try_is_over() -> None:
    engine, admission = FakeEngine(), Admission(slots=1, queue=1)
    engine.says(Text("No."))
    engine.says(CallStarted(0, "f"), CallDelta(0, "{}"), CallDone(0))
    run = make(engine, ticket=admission.enter())
    running: list[int] = []

    def tell(events: list[Event]) -> None:
        running.append(admission.running)

    async with asyncio.timeout(30):
        await run.drive(tell)
    assert run.response.status == "completed"
    assert set(running[:-1]) == {1}
    assert admission.running == 0


async def test_an_interruption_ends_a_later_try_too() -> None:
    engine = FakeEngine()
    engine.says(Text("No."))
    engine.says(Text("No."))
    gate = engine.holds(after=0)
    run = make(engine)
    task = asyncio.create_task(driven(run))
    async with asyncio.timeout(30):
        await gate.reached.wait()
        run.interrupt(Unavailable("The server is shutting down."))
        events = await task
    assert events[-1].type == "response.failed"
    assert run.error is not None
    assert not engine.running
