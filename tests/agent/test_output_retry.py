"""Output retries belong to one response: they share its total timeout, its model slot and its interruption.

Covers `agent/output_gate.py` and `agent/output_rules.py`.
"""

import asyncio

import pytest

from antiphon.admission import Admission
from antiphon.agent.engine_stream import ModelCall
from antiphon.agent.output_gate import Emitted, OutputGate
from antiphon.agent.output_rules import OutputFormat, OutputRules, RenderRetry, RetryPolicy, ToolRule, Violation
from antiphon.agent.run import Run
from antiphon.agent.timeouts import Timeouts
from antiphon.agent.tool_resolver import ToolCallResolver, UnservedCall
from antiphon.core.deltas import CallDelta, CallDone, CallStarted, Delta, ReasoningDelta, Text
from antiphon.core.emitter.emitter import Emitter
from antiphon.core.prompt import ChatPrompt, GenerationRequest, Prompt, Sampling
from antiphon.engines.fake import FakeEngine, FakeSettings
from antiphon.errors import Unavailable
from antiphon.ids import new_id
from antiphon.parsers.base import Parser
from antiphon.parsers.chat import ChatParser
from antiphon.protocol.types.events import Event, Failed, OutputItemAdded
from antiphon.protocol.types.items import FunctionCall, Message, Reasoning
from antiphon.protocol.types.parts import OutputText
from antiphon.protocol.types.response import Response
from antiphon.render.tools.offered_tools import OfferedTool

pytestmark = pytest.mark.anyio
PROMPT = ChatPrompt(messages=({"role": "user", "content": "hi"},))
OFFERS = {"f": OfferedTool("function", "f")}


async def render_retry(violation: Violation) -> tuple[Prompt, Parser]:
    return PROMPT, ChatParser(PROMPT)


REQUIRED_CALL = OutputRules(required_tools=frozenset({(None, "f")}))
THOUGHT = ReasoningDelta("Hm.")
FEEDBACK_BYTES = len("No." + REQUIRED_CALL.make_missing_call_feedback())


def make_run(
    engine: FakeEngine,
    *,
    tries: int = 2,
    rules: OutputRules | None = REQUIRED_CALL,
    render: RenderRetry = render_retry,
    sampling: Sampling | None = None,
    **changes: object,
) -> Run:
    call = ModelCall(
        engine=engine,
        generation=GenerationRequest(model="fake", prompt=PROMPT, sampling=sampling or Sampling()),
        parser=ChatParser(PROMPT),
        resolver=ToolCallResolver(OFFERS),
        retry_policy=RetryPolicy(rules=rules, render_retry=render, max_retries=tries),
        **changes,  # type: ignore[arg-type]  # any field of ModelCall
    )
    return Run(call, Emitter(Response(id="resp_1", created_at=1, model="fake"), new_id), lambda run: None)


def call_tool(name: str, arguments: str = "{}") -> list[Delta]:
    return [CallStarted(0, name), CallDelta(0, arguments), CallDone(0)]


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


@pytest.mark.parametrize(("limit", "expected"), [(None, None), (1000, 1000 - FEEDBACK_BYTES), (300, 256), (100, 100)])
async def test_a_retry_has_another_seed_and_leaves_room_for_the_feedback(
    limit: int | None, expected: int | None
) -> None:
    engine = FakeEngine()
    engine.says(Text("No."))
    engine.says(*call_tool("f"))
    await drive_run(make_run(engine, sampling=Sampling(seed=5, max_tokens=limit)))
    assert (engine.seen[1].sampling.seed, engine.seen[1].sampling.max_tokens) == (6, expected)


async def test_a_retry_does_not_repeat_the_reasoning() -> None:
    engine = FakeEngine()
    engine.says(THOUGHT, Text("No."))
    engine.says(THOUGHT, *call_tool("f"))
    run = make_run(engine)
    await drive_run(run)
    assert [type(item) for item in run.response.output] == [Reasoning, FunctionCall]


async def test_the_input_of_a_tool_with_a_grammar_is_validated() -> None:
    rule = ToolRule(offered_name="f", lark='start: "x"+', takes_text=True)
    engine = FakeEngine()
    engine.says(*call_tool("f", "y"))
    engine.says(*call_tool("f", "x"))
    run = make_run(engine, rules=OutputRules(tools={(None, "f"): rule}))
    await drive_run(run)
    assert [*run.retry_outcomes] == [("arguments", "asked_again")]


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


@pytest.mark.parametrize("first", [[THOUGHT], [THOUGHT, Text("\n")], [THOUGHT, *call_tool("python")]], ids=repr)
@pytest.mark.parametrize("rules", [None, OutputRules(tools={})], ids=["no rules", "rules"])
@pytest.mark.shows("D.20")
async def test_output_without_an_answer_is_continued_by_another_attempt(
    first: list[Delta], rules: OutputRules | None
) -> None:
    engine = FakeEngine()
    engine.says(*first)
    engine.says(ReasoningDelta("So."), Text("Yes."))
    run = make_run(engine, rules=rules)
    events = await drive_run(run)
    assert run.response.status == "completed"
    added = [event.item for event in events if isinstance(event, OutputItemAdded)]
    blank = [Message] if Text("\n") in first else []
    assert [type(item) for item in added] == [Reasoning, *blank, Reasoning, Message]
    assert run.retry_outcomes == [("no_answer", "asked_again")]


@pytest.mark.parametrize(
    ("reply", "code"), [([THOUGHT], "invalid_output"), (call_tool("python"), "invalid_tool_call")], ids=repr
)
@pytest.mark.shows("D.20")
async def test_a_response_without_an_answer_fails_after_the_last_retry(reply: list[Delta], code: str) -> None:
    engine = FakeEngine()
    engine.says(*reply)
    engine.repeats(2)
    run = make_run(engine, rules=None)
    last = (await drive_run(run))[-1]
    assert isinstance(last, Failed)
    assert last.response.error is not None
    assert last.response.error.code == code
    assert run.retry_outcomes == [("no_answer", "asked_again")] * 2 + [("no_answer", "failed")]


@pytest.mark.parametrize(
    "reply", [[], [Text("Yes.")], [THOUGHT, Text("Yes.")], call_tool("f"), [THOUGHT, *call_tool("f")]], ids=repr
)
async def test_an_answer_is_not_retried(reply: list[Delta]) -> None:
    engine = FakeEngine()
    engine.says(*reply)
    run = make_run(engine, rules=None)
    await drive_run(run)
    assert run.response.status == "completed"
    assert len(engine.seen) == 1


async def test_reasoning_that_was_cut_is_not_retried() -> None:
    engine = FakeEngine()
    engine.says(THOUGHT, finish="length")
    run = make_run(engine, rules=None)
    await drive_run(run)
    assert (run.response.status, len(engine.seen)) == ("incomplete", 1)


async def test_every_retry_repeats_the_unserved_calls_of_all_attempts() -> None:
    engine, violations = FakeEngine(), list[Violation]()

    async def record_violation(violation: Violation) -> tuple[Prompt, Parser]:
        violations.append(violation)
        return await render_retry(violation)

    engine.says(*call_tool("python", "1 + 1"))
    engine.says(*call_tool("browser.search"))
    engine.says(Text("Two."))
    await drive_run(make_run(engine, rules=None, render=record_violation))
    python, browser = UnservedCall("python", "1 + 1"), UnservedCall("browser.search", "{}")
    assert [[*violation.calls] for violation in violations] == [[python], [python, browser]]


@pytest.mark.parametrize("is_held", [False, True], ids=["enforced", "validated"])
async def test_an_unserved_call_beside_an_answer_in_the_required_format_is_dropped(is_held: bool) -> None:
    engine = FakeEngine()
    engine.says(Text('{"a": 1}'), *call_tool("python"))
    rules = OutputRules(output_format=OutputFormat(schema={"type": "object"}, is_held=is_held))
    run = make_run(engine, rules=rules)
    await drive_run(run)
    assert (run.response.status, len(engine.seen)) == ("completed", 1)


@pytest.mark.parametrize(("text", "shown"), [('{"a": 1}', ['{"a": 1}']), ("Let me see.", [])])
async def test_text_beside_a_call_stays_only_if_it_has_the_required_format(text: str, shown: list[str]) -> None:
    engine = FakeEngine()
    engine.says(Text(text), *call_tool("f"))
    run = make_run(engine, rules=OutputRules(output_format=OutputFormat(schema={"type": "object"}, is_held=True)))
    await drive_run(run)
    messages = [item for item in run.response.output if isinstance(item, Message)]
    texts = [part.text for message in messages for part in message.content if isinstance(part, OutputText)]
    assert (run.response.status, texts) == ("completed", shown)


def test_text_before_the_required_call_is_held_and_text_after_it_passes_at_once() -> None:
    gate = OutputGate(REQUIRED_CALL, Emitted())
    before, after = Text("Let me see."), Text("Done.")
    assert gate.feed([before]) == []
    assert gate.feed(call_tool("f")) == [before, *call_tool("f")]
    assert gate.feed([after]) == [after]
    assert gate.try_pass([after])


async def test_a_repaired_answer_is_counted() -> None:
    engine = FakeEngine()
    engine.says(Text('```json\n{"a": 1}\n```'))
    run = make_run(engine, rules=OutputRules(output_format=OutputFormat(schema={"type": "object"}, is_held=True)))
    await drive_run(run)
    assert [*run.retry_outcomes] == [("format", "mended")]
