"""`CompletionRun` over the fake engine: chunks, JSON bodies, failures, timeouts, interruptions and several choices.

Covers `agent/choices.py` and `agent/run_tracer.py`.
"""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from msgspec import Struct

from antiphon.admission import Admission
from antiphon.agent.completion_run import CompletionRun, ErrorMapper
from antiphon.agent.engine_stream import ModelCall
from antiphon.agent.moderation import ModerationPlan
from antiphon.agent.timeouts import Timeouts
from antiphon.agent.tool_resolver import ToolCallResolver
from antiphon.core.deltas import ReasoningDelta, Text
from antiphon.core.dialects.chat_emitter import ChatEmitter, ChatOutputOptions
from antiphon.core.dialects.dialect import CompletionHeader, WireEvents
from antiphon.core.prompt import Chunk, GenerationRequest, TokenCounts
from antiphon.engines.fake import FakeEngine
from antiphon.errors import AntiphonError, ContextTooLong, EngineFailed, Internal, Unavailable
from antiphon.parsers.chat import ChatParser
from antiphon.protocol.types.chat.response import ChatChunk, ChatCompletion, StreamFault
from tests.agent.run_endings import GENERATION, EndLog
from tests.agent.test_moderation import Judge

pytestmark = pytest.mark.anyio
SHUTDOWN = Unavailable("The server is shutting down.")


@pytest.fixture
def end_log() -> EndLog:
    return EndLog()


def make_run(
    engine: Any, end_log: EndLog, choices: int = 1, error_mapper: ErrorMapper | None = None, **changes: Any
) -> CompletionRun:
    tickets = changes.pop("tickets", [None] * choices)
    calls = [
        ModelCall(
            engine=engine,
            generation=GENERATION,
            parser=ChatParser(GENERATION.prompt),
            resolver=ToolCallResolver({}),
            ticket=ticket,
            **changes,
        )
        for ticket in tickets
    ]
    emitter = ChatEmitter(
        CompletionHeader(id="chatcmpl-1", created=1, model="fake"), ChatOutputOptions(choices=choices), lambda: "call_1"
    )
    return CompletionRun(calls, emitter, end_log, error_mapper)


class ChunkRecorder:
    """Chunk sink that records all chunks."""

    def __init__(self) -> None:
        self.chunks: list[Struct] = []
        self.batches = 0

    def __call__(self, chunks: WireEvents) -> None:
        self.chunks += chunks
        self.batches += 1

    @property
    def texts(self) -> list[str]:
        """The text of each choice."""
        texts: dict[int, str] = {}
        for chunk in self.chunks:
            for choice in chunk.choices if isinstance(chunk, ChatChunk) else ():
                texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
        return [texts[index] for index in sorted(texts)]


async def drive_run(run: CompletionRun) -> ChunkRecorder:
    recorder = ChunkRecorder()
    async with asyncio.timeout(30):
        try:
            await run.begin()
            await run.drive(recorder)
        finally:
            await run.close()
    return recorder


async def test_all_output_is_emitted_and_the_end_is_reported_once(engine: FakeEngine, end_log: EndLog) -> None:
    engine.says(ReasoningDelta("hm"), Text("Hel"), Text("lo"))
    run = make_run(engine, end_log)
    recorder = await drive_run(run)
    assert recorder.texts == ["Hello"]
    assert run.status == "completed"
    assert run.first_at is not None
    assert end_log.runs == [run]
    assert engine.running == 0


async def test_the_json_body_is_the_fold_of_the_chunks(engine: FakeEngine, end_log: EndLog) -> None:
    engine.says(Text("Hel"), Text("lo"))
    run = make_run(engine, end_log)
    async with asyncio.timeout(30):
        body = await run.fold()
    assert isinstance(body, ChatCompletion)
    assert body.choices[0].message.content == "Hello"


async def test_a_failure_before_the_first_chunk_is_raised_and_nothing_is_emitted(
    engine: FakeEngine, end_log: EndLog
) -> None:
    engine.fails(ContextTooLong("Too long.", param="input"))
    run = make_run(engine, end_log)
    recorder = ChunkRecorder()
    with pytest.raises(ContextTooLong):
        await run.begin()
    await run.close()
    assert recorder.chunks == []
    assert run.status == "failed"
    assert end_log.runs == [run]


async def test_a_later_failure_is_emitted_as_the_last_chunk(engine: FakeEngine, end_log: EndLog) -> None:
    engine.says(Text("Hel"))
    engine.fails(EngineFailed("It died."), after=1)
    run = make_run(engine, end_log)
    recorder = await drive_run(run)
    assert recorder.texts == ["Hel"]
    assert isinstance(recorder.chunks[-1], StreamFault)
    assert recorder.chunks[-1].error.message == "It died."
    assert run.status == "failed"


async def test_a_later_failure_of_a_json_body_is_raised(engine: FakeEngine, end_log: EndLog) -> None:
    engine.says(Text("Hel"))
    engine.fails(EngineFailed("It died."), after=1)
    run = make_run(engine, end_log)
    with pytest.raises(EngineFailed):
        await run.result()
    await run.close()
    assert run.status == "failed"


async def test_a_failure_is_mapped_to_the_terms_of_the_api(engine: FakeEngine, end_log: EndLog) -> None:
    def map_error(error: AntiphonError) -> AntiphonError:
        return ContextTooLong("Too many messages.", param="messages")

    engine.fails(ContextTooLong("Too long.", param="input"))
    run = make_run(engine, end_log, error_mapper=map_error)
    with pytest.raises(ContextTooLong) as raised:
        await run.begin()
    await run.close()
    assert raised.value.param == "messages"


async def test_a_failure_raised_at_the_start_can_be_emitted_in_an_open_stream(
    engine: FakeEngine, end_log: EndLog
) -> None:
    engine.fails(EngineFailed("It died."))
    run = make_run(engine, end_log)
    with pytest.raises(EngineFailed):
        await run.begin()
    recorder = ChunkRecorder()
    await run.drive(recorder)
    await run.close()
    assert [type(each) for each in recorder.chunks] == [StreamFault]


async def test_an_unexpected_exception_is_emitted_as_internal_without_details(
    engine: FakeEngine, end_log: EndLog
) -> None:
    engine.says(Text("Hel"))
    engine.fails(RuntimeError("secret"), after=1)
    run = make_run(engine, end_log)
    recorder = await drive_run(run)
    assert isinstance(run.error, Internal)
    assert isinstance(recorder.chunks[-1], StreamFault)
    assert "secret" not in recorder.chunks[-1].error.message


@pytest.mark.parametrize("finish", [None, "no such reason"])
async def test_a_missing_or_unknown_finish_reason_fails_the_run(
    engine: FakeEngine, end_log: EndLog, finish: Any
) -> None:
    engine.says(Text("Hel"), finish=finish)
    run = make_run(engine, end_log)
    recorder = await drive_run(run)
    assert isinstance(run.error, EngineFailed)
    assert isinstance(recorder.chunks[-1], StreamFault)


async def test_closing_the_run_frees_the_engine_and_its_slot(engine: FakeEngine, end_log: EndLog) -> None:
    admission = Admission(slots=1, queue=1)
    engine.says(Text("Hel"), Text("lo"))
    engine.holds(after=1)
    run = make_run(engine, end_log, tickets=[admission.enter()])
    await run.begin()
    assert (engine.running, admission.running) == (1, 1)
    await run.close()
    assert (engine.running, engine.cancelled, admission.running) == (0, 1, 0)
    assert run.status == "cancelled"
    assert end_log.runs == [run]


async def test_a_cancelled_driver_frees_the_engine(engine: FakeEngine, end_log: EndLog) -> None:
    engine.says(Text("Hel"), Text("lo"))
    gate = engine.holds(after=1)
    run = make_run(engine, end_log)
    driving = asyncio.ensure_future(drive_run(run))
    async with asyncio.timeout(30):
        await gate.reached.wait()
        driving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await driving
    assert engine.running == 0
    assert run.status == "cancelled"


async def test_an_interruption_is_emitted_immediately(engine: FakeEngine, end_log: EndLog) -> None:
    engine.says(Text("Hel"), Text("lo"))
    gate = engine.holds(after=1)
    run = make_run(engine, end_log)
    driving = asyncio.ensure_future(drive_run(run))
    async with asyncio.timeout(30):
        await gate.reached.wait()
        run.interrupt(SHUTDOWN)
        recorder = await driving
    assert isinstance(recorder.chunks[-1], StreamFault)
    assert recorder.chunks[-1].error.code == "service_unavailable"
    assert engine.running == 0


async def test_an_interruption_before_the_first_chunk_is_raised(engine: FakeEngine, end_log: EndLog) -> None:
    gate = engine.holds()
    run = make_run(engine, end_log)
    beginning = asyncio.ensure_future(run.begin())
    async with asyncio.timeout(30):
        await gate.reached.wait()
        run.interrupt(SHUTDOWN)
        with pytest.raises(Unavailable):
            await beginning
        await run.close()
    assert engine.running == 0


async def test_an_interruption_after_the_first_chunk_is_emitted(engine: FakeEngine, end_log: EndLog) -> None:
    engine.says(Text("Hel"), Text("lo"))
    run = make_run(engine, end_log)
    await run.begin()
    run.interrupt(SHUTDOWN)
    recorder = ChunkRecorder()
    await run.drive(recorder)
    await run.close()
    assert isinstance(recorder.chunks[-1], StreamFault)


async def test_an_engine_that_sends_nothing_times_out(engine: FakeEngine, end_log: EndLog) -> None:
    engine.holds()
    run = make_run(engine, end_log, timeouts=Timeouts(first=0.04, idle=0.04, total=5))
    async with asyncio.timeout(30):
        with pytest.raises(EngineFailed):
            await run.begin()
        await run.close()
    assert engine.running == 0


async def test_an_engine_that_falls_silent_times_out(engine: FakeEngine, end_log: EndLog) -> None:
    engine.says(Text("Hel"), Text("lo"))
    engine.holds(after=1)
    run = make_run(engine, end_log, timeouts=Timeouts(first=5, idle=0.04, total=5))
    recorder = await drive_run(run)
    assert isinstance(run.error, EngineFailed)
    assert recorder.texts == ["Hel"]


async def test_several_choices_run_in_parallel_and_the_prompt_is_counted_once(
    engine: FakeEngine, end_log: EndLog
) -> None:
    counts = TokenCounts(input_tokens=7, output_tokens=2)
    engine.says(Text("a"), Text("b"), counts=counts)
    engine.repeats(2)
    run = make_run(engine, end_log, choices=3)
    recorder = await drive_run(run)
    assert recorder.texts == ["ab", "ab", "ab"]
    assert run.counts == TokenCounts(input_tokens=7, output_tokens=6)
    assert run.status == "completed"


async def test_no_choice_loses_chunks_while_the_reader_is_slow(engine: FakeEngine, end_log: EndLog) -> None:
    """The second choice starts while the first is being emitted."""
    engine.says(Text("a"), Text("b"))
    engine.says(Text("c"), Text("d"))
    gate = engine.holds()
    run, recorder = make_run(engine, end_log, choices=2), ChunkRecorder()

    async def read_slowly(chunks: WireEvents) -> None:
        recorder([*chunks])
        if recorder.texts == ["a", ""]:
            gate.open()
            for _ in range(10):
                await asyncio.sleep(0)

    async with asyncio.timeout(30):
        await run.begin()
        await run.drive(read_slowly)
        await run.close()
    assert recorder.texts == ["ab", "cd"]


async def test_several_choices_run_one_after_another_on_a_model_with_one_slot(
    engine: FakeEngine, end_log: EndLog
) -> None:
    admission = Admission(slots=1, queue=0)
    tickets = [admission.enter(), admission.enter_later(), admission.enter_later()]
    engine.says(Text("a"), Text("b"))
    engine.repeats(2)
    run = make_run(engine, end_log, choices=3, tickets=tickets)
    recorder = await drive_run(run)
    assert recorder.texts == ["ab", "ab", "ab"]
    assert (admission.running, admission.waiting) == (0, 0)


async def test_the_first_choice_that_fails_ends_all_choices(engine: FakeEngine, end_log: EndLog) -> None:
    engine.says(Text("a"), Text("b"))
    engine.holds(after=1)
    engine.says(Text("c"), Text("d"))
    engine.fails(EngineFailed("It died."), after=1)
    run = make_run(engine, end_log, choices=2)
    running: list[int] = []

    def record_running(chunks: WireEvents) -> None:
        running.extend(engine.running for each in chunks if isinstance(each, StreamFault))

    async with asyncio.timeout(30):
        await run.drive(record_running)
        await run.close()
    assert running == [0]


async def test_a_choice_that_fails_before_the_first_chunk_raises(engine: FakeEngine, end_log: EndLog) -> None:
    engine.holds()
    engine.answers()
    engine.fails(Unavailable("Not ready."))
    run = make_run(engine, end_log, choices=2)
    async with asyncio.timeout(30):
        with pytest.raises(Unavailable):
            await run.begin()
        await run.close()
    assert engine.running == 0


async def test_closing_the_run_ends_all_choices(engine: FakeEngine, end_log: EndLog) -> None:
    for _ in range(2):
        engine.says(Text("a"), Text("b"))
        engine.holds(after=1)
    run = make_run(engine, end_log, choices=2)
    async with asyncio.timeout(30):
        await run.begin()
        await run.close()
    assert engine.running == 0
    assert run.status == "cancelled"


async def test_several_choices_are_interrupted_together(engine: FakeEngine, end_log: EndLog) -> None:
    gates = []
    for _ in range(2):
        engine.says(Text("a"), Text("b"))
        gates.append(engine.holds(after=1))
    run = make_run(engine, end_log, choices=2)
    driving = asyncio.ensure_future(drive_run(run))
    async with asyncio.timeout(30):
        for gate in gates:
            await gate.reached.wait()
        run.interrupt(SHUTDOWN)
        recorder = await driving
    assert isinstance(recorder.chunks[-1], StreamFault)
    assert engine.running == 0


class CountingEngine:
    """An engine that counts how many lists of chunks were requested."""

    name = "greedy"
    requested = 0

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[list[Chunk], None]:
        for _ in range(50):
            self.requested += 1
            yield [Chunk(text="x")]
        yield [Chunk(finish="stop", counts=TokenCounts())]


async def test_a_slow_reader_slows_the_engine_down(end_log: EndLog) -> None:
    engine, stuck, unread = CountingEngine(), asyncio.Event(), asyncio.Event()
    batches = 0

    async def read_slowly(chunks: WireEvents) -> None:
        nonlocal batches
        batches += 1
        if batches == 3:
            stuck.set()
            await unread.wait()

    run = make_run(engine, end_log)
    driving = asyncio.ensure_future(run.drive(read_slowly))
    async with asyncio.timeout(30):
        await stuck.wait()
        for _ in range(10):
            await asyncio.sleep(0)
        assert engine.requested == 3
        unread.set()
        await driving
        await run.close()
    assert engine.requested == 50


def make_plan(judge: Judge, words: str = "good", blocks: bool = True) -> ModerationPlan:
    return ModerationPlan(
        judge_input=lambda: judge.judge_output(words),
        judge_output=judge.judge_output,
        blocks_input=blocks,
        blocks_output=blocks,
    )


@pytest.mark.parametrize("choices", [1, 2])
async def test_a_flagged_input_calls_no_model(engine: FakeEngine, end_log: EndLog, choices: int) -> None:
    run = make_run(engine, end_log, choices=choices, moderation=make_plan(Judge(), "bad"))
    body = await run.fold()
    assert isinstance(body, ChatCompletion)
    assert [choice.finish_reason for choice in body.choices] == ["content_filter"] * choices
    assert not engine.seen
    assert run.status == "incomplete"


async def test_a_flagged_choice_has_no_text_and_the_others_have_theirs(engine: FakeEngine, end_log: EndLog) -> None:
    engine.says(Text("so "), Text("bad"))
    engine.says(Text("fine"))
    run = make_run(engine, end_log, choices=2, moderation=make_plan(Judge()))
    body = await run.fold()
    assert isinstance(body, ChatCompletion)
    shown = [(choice.finish_reason, choice.message.content or "") for choice in body.choices]
    assert shown == [("content_filter", ""), ("stop", "fine")]
    assert body.moderation


async def test_a_flagged_answer_is_only_reported_where_nothing_is_blocked(engine: FakeEngine, end_log: EndLog) -> None:
    engine.says(Text("bad"))
    run = make_run(engine, end_log, moderation=make_plan(Judge(), "bad", blocks=False))
    recorder = await drive_run(run)
    assert recorder.texts == ["bad"]
    assert run.status == "completed"
