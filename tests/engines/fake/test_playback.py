"""Scripted replies of the fake engine: order, repetition, failures, gates and cancellation."""

import asyncio
from contextlib import aclosing
from itertools import groupby

import pytest

from antiphon.core.deltas import CallDelta, CallDone, CallStarted, Citation, ReasoningDelta, Refusal, Summary, Text
from antiphon.core.prompt import Chunk, TokenCounts
from antiphon.engines.fake import FakeEngine, FakeSettings
from antiphon.errors import EngineFailed
from antiphon.protocol.types.parts import Logprob
from tests.engines.fake.generation import make_request, run_generation

pytestmark = pytest.mark.anyio


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


async def test_each_delta_is_a_chunk_of_its_own(engine: FakeEngine) -> None:
    logprobs = (Logprob(token="lo", bytes=[108, 111], logprob=-0.1),)
    engine.says(ReasoningDelta("hm"), Text("Hel"), Text("lo", logprobs), Refusal("no"))
    result = await run_generation(engine, "hi")
    assert result.lists[:-1] == [
        [Chunk(reasoning="hm")],
        [Chunk(text="Hel")],
        [Chunk(text="lo", logprobs=logprobs)],
        [Chunk(refusal="no")],
    ]
    assert result.finish == "stop"
    assert (result.counts.output_tokens, result.counts.reasoning_tokens) == (4, 1)


async def test_deltas_in_a_list_are_emitted_together(engine: FakeEngine) -> None:
    engine.says([Text("Hel"), Text("lo")], Text("!"))
    assert [len(chunks) for chunks in (await run_generation(engine, "hi")).lists] == [2, 1, 1]


async def test_calls_may_be_parallel(engine: FakeEngine) -> None:
    engine.says(
        CallStarted(0, "f"), CallStarted(1, "g"), CallDelta(1, "{"), CallDelta(0, "{}"), CallDelta(1, "}"),
        CallDone(0), CallDone(1),
    )  # fmt: skip
    result = await run_generation(engine, "hi")
    assert result.calls == {0: ("f", "{}"), 1: ("g", "{}")}
    assert result.finish == "tool_calls"
    assert len(result.chunks) == 6


@pytest.mark.parametrize("delta", [Summary("s"), Citation(annotation=None)])  # type: ignore[arg-type]  # the annotation is never read
def test_a_delta_that_no_engine_emits_is_rejected(engine: FakeEngine, delta: Summary | Citation) -> None:
    with pytest.raises(TypeError, match=type(delta).__name__):
        engine.says(delta)


async def test_replies_are_played_in_order_before_automatic_answers(engine: FakeEngine) -> None:
    engine.says(Text("one"))
    engine.answers()
    engine.says(Text("three"))
    assert [(await run_generation(engine, "hi")).text for _ in range(4)] == [
        "one",
        "You said: hi",
        "three",
        "You said: hi",
    ]


async def test_the_last_reply_can_be_repeated(engine: FakeEngine) -> None:
    engine.says(Text("one"))
    engine.fails(EngineFailed("once"), after=1)
    engine.repeats()
    with pytest.raises(EngineFailed, match="once"):
        await run_generation(engine, "hi")
    assert (await run_generation(engine, "hi")).text == "one"
    engine.repeats(2)
    assert [(await run_generation(engine, "hi")).text for _ in range(3)] == ["one", "one", "You said: hi"]


def test_repeating_without_a_reply_raises_an_error(engine: FakeEngine) -> None:
    with pytest.raises(ValueError, match="no earlier reply to repeat"):
        engine.repeats()


async def test_a_reply_sets_the_finish_reason_and_the_counts(engine: FakeEngine) -> None:
    counts = TokenCounts(input_tokens=1, cached_tokens=1, output_tokens=7, reasoning_tokens=3)
    engine.says(Text("Hel"), finish="length", counts=counts)
    result = await run_generation(engine, "hi")
    assert (result.finish, result.counts) == ("length", counts)


async def test_a_reply_without_a_finish_reason_ends_without_a_last_chunk(engine: FakeEngine) -> None:
    engine.says(Text("Hel"), finish=None)
    assert (await run_generation(engine, "hi")).lists == [[Chunk(text="Hel")]]


async def test_a_reply_may_contain_raw_chunks(engine: FakeEngine) -> None:
    engine.says(Chunk(text="a", reasoning="b", tokens=(1, 2)))
    assert (await run_generation(engine, "hi")).chunks[0] == Chunk(text="a", reasoning="b", tokens=(1, 2))


@pytest.mark.parametrize("after", [0, 1, 2, 9])
async def test_the_engine_fails_after_the_given_number_of_chunks(engine: FakeEngine, after: int) -> None:
    engine.says(Text("Hel"), Text("lo"))
    engine.fails(EngineFailed("It died."), after=after)
    texts: list[str] = []

    async def read_chunks() -> None:
        async with asyncio.timeout(30), aclosing(engine.generate(make_request("hi"))) as lists:
            async for chunks in lists:
                texts.extend(chunk.text for chunk in chunks)

    with pytest.raises(EngineFailed, match=r"It died\."):
        await read_chunks()
    assert texts == ["Hel", "lo"][:after]
    assert (engine.running, engine.cancelled) == (0, 0)


async def test_a_failure_can_interrupt_an_automatic_answer(engine: FakeEngine) -> None:
    engine.fails(EngineFailed("It died."), after=1)
    with pytest.raises(EngineFailed):
        await run_generation(engine, "hi")
    assert (await run_generation(engine, "hi")).text == "You said: hi"


async def test_a_gate_pauses_the_answer_at_a_chunk(engine: FakeEngine) -> None:
    engine.says(Text("Hel"), Text("lo"))
    gate = engine.holds(after=1)
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        task = tasks.create_task(run_generation(engine, "hi"))
        await gate.reached.wait()
        assert engine.running == 1
        assert not task.done()
        gate.open()
    assert task.result().text == "Hello"
    assert engine.running == 0


async def test_a_reply_waits_for_an_event(engine: FakeEngine) -> None:
    event = asyncio.Event()
    engine.waits(event, after=2)
    async with asyncio.timeout(30), aclosing(engine.generate(make_request("hi"))) as lists:
        await anext(lists)
        await anext(lists)
        third = asyncio.ensure_future(anext(lists))
        await asyncio.wait([third], timeout=0.01)
        assert not third.done()
        event.set()
        assert (await third)[0].text


async def test_closing_the_iterator_cancels_the_request(engine: FakeEngine) -> None:
    lists = engine.generate(make_request("hi"))
    async with asyncio.timeout(30):
        await anext(lists)
        assert (engine.running, engine.cancelled) == (1, 0)
        await lists.aclose()
    assert (engine.running, engine.cancelled) == (0, 1)


async def test_cancelling_the_waiting_task_cancels_the_request(engine: FakeEngine) -> None:
    gate = engine.holds()
    task = asyncio.ensure_future(run_generation(engine, "hi"))
    async with asyncio.timeout(30):
        await gate.reached.wait()
        task.cancel()
        await asyncio.wait([task])
    assert task.cancelled()
    assert (engine.running, engine.cancelled) == (0, 1)


async def test_closing_after_the_last_chunk_cancels_nothing(engine: FakeEngine) -> None:
    async with asyncio.timeout(30), aclosing(engine.generate(make_request("hi"))) as lists:
        async for chunks in lists:
            if chunks[-1].finish:
                break
    assert (engine.running, engine.cancelled) == (0, 0)


async def test_recorded_requests_are_bounded(engine: FakeEngine) -> None:
    for number in range(100):
        await run_generation(engine, make_request("hi", model=f"model-{number}"))
    assert engine.seen[-1].model == "model-99"
    assert len(engine.seen) < 100


@pytest.mark.parametrize("burst", [1, 4])
async def test_streams_take_turns_after_each_burst(burst: int) -> None:
    engine = FakeEngine(FakeSettings(tokens=12, burst=burst))
    order: list[str] = []

    async def read_stream(name: str) -> None:
        async with aclosing(engine.generate(make_request("hi"))) as lists:
            async for _ in lists:
                order.append(name)

    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        tasks.create_task(read_stream("a"))
        tasks.create_task(read_stream("b"))
    turns = [len(list(group)) for _, group in groupby(order)]
    assert len(turns) > 4
    assert turns[2:4] == [burst, burst]


async def test_scripted_replies_ignore_the_token_rate() -> None:
    engine = FakeEngine(FakeSettings(rate=0.001))
    engine.says(Text("Hel"), Text("lo"))
    assert (await run_generation(engine, "hi")).text == "Hello"
