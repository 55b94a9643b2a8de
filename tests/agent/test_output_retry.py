"""Output retries belong to one response: they share its total timeout, its model slot and its interruption.

Covers `agent/output_gate.py` and `agent/output_rules.py`.
"""

import asyncio

import pytest

from antiphon.admission import Admission
from antiphon.agent.engine_stream import ModelCall
from antiphon.agent.output_rules import OutputRules, RetryPolicy, Violation
from antiphon.agent.run import Run
from antiphon.agent.timeouts import Timeouts
from antiphon.agent.tool_resolver import ToolCallResolver
from antiphon.core.deltas import CallDelta, CallDone, CallStarted, Text
from antiphon.core.emitter.emitter import Emitter
from antiphon.core.prompt import ChatPrompt, GenerationRequest, Prompt, Sampling
from antiphon.engines.fake import FakeEngine, FakeSettings
from antiphon.errors import Unavailable
from antiphon.ids import new_id
from antiphon.parsers.base import Parser
from antiphon.parsers.chat import ChatParser
from antiphon.protocol.types.events import Event, Failed
from antiphon.protocol.types.response import Response
from antiphon.render.tools.offered_tools import OfferedTool

pytestmark = pytest.mark.anyio
PROMPT = ChatPrompt(messages=({"role": "user", "content": "hi"},))
OFFERS = {"f": OfferedTool("function", "f")}


async def render_retry(violation: Violation) -> tuple[Prompt, Parser]:
    return PROMPT, ChatParser(PROMPT)


def make_run(engine: FakeEngine, *, tries: int = 2, **changes: object) -> Run:
    call = ModelCall(
        engine=engine,
        generation=GenerationRequest(model="fake", prompt=PROMPT, sampling=Sampling()),
        parser=ChatParser(PROMPT),
        resolver=ToolCallResolver(OFFERS),
        retry_policy=RetryPolicy(
            rules=OutputRules(required_tools=frozenset({(None, "f")})), render_retry=render_retry, max_retries=tries
        ),
        **changes,  # type: ignore[arg-type]  # any field of ModelCall
    )
    return Run(call, Emitter(Response(id="resp_1", created_at=1, model="fake"), new_id), lambda run: None)


async def drive_run(run: Run) -> list[Event]:
    events: list[Event] = []
    async with asyncio.timeout(30):
        await run.drive(events.extend)
    return events


@pytest.mark.parametrize("tries", [0, 1, 4])
async def test_the_number_of_retries_is_limited_by_the_policy(tries: int) -> None:
    engine = FakeEngine()
    engine.says(Text("No."))
    engine.repeats(tries)
    run = make_run(engine, tries=tries)
    events = await drive_run(run)
    assert [event.type for event in events] == [
        "response.created", "response.in_progress", "error", "response.failed",
    ]  # fmt: skip
    assert [*run.retry_outcomes] == [("no_call", "asked_again")] * tries + [("no_call", "failed")]


async def test_the_total_timeout_covers_all_retries() -> None:
    engine = FakeEngine(FakeSettings(delay=0.2))
    engine.says(Text("No."))
    engine.repeats(9)
    last = (await drive_run(make_run(engine, tries=9, timeouts=Timeouts(total=0.5))))[-1]
    assert isinstance(last, Failed)
    assert last.response.error is not None
    assert "longer than this server allows" in last.response.error.message
    assert not engine.running


async def test_the_model_slot_is_held_until_the_last_retry_ends() -> None:
    engine, admission = FakeEngine(), Admission(slots=1, queue=1)
    engine.says(Text("No."))
    engine.says(CallStarted(0, "f"), CallDelta(0, "{}"), CallDone(0))
    run = make_run(engine, ticket=admission.enter())
    running: list[int] = []

    def record_running(events: list[Event]) -> None:
        running.append(admission.running)

    async with asyncio.timeout(30):
        await run.drive(record_running)
    assert run.response.status == "completed"
    assert set(running[:-1]) == {1}
    assert admission.running == 0


async def test_an_interruption_ends_a_retry() -> None:
    engine = FakeEngine()
    engine.says(Text("No."))
    engine.says(Text("No."))
    gate = engine.holds(after=0)
    run = make_run(engine)
    task = asyncio.create_task(drive_run(run))
    async with asyncio.timeout(30):
        await gate.reached.wait()
        run.interrupt(Unavailable("The server is shutting down."))
        events = await task
    assert events[-1].type == "response.failed"
    assert run.error is not None
    assert not engine.running
