import asyncio
from contextlib import aclosing
from itertools import groupby

import pytest

from antiphon.core.deltas import CallDelta, CallDone, CallStarted, Citation, Refusal, Summary, Text, Thought
from antiphon.core.prompt import Chunk, Counts
from antiphon.engines.fake import FakeEngine, FakeSettings
from antiphon.errors import EngineFailed
from antiphon.protocol.types.response import Logprob
from tests.engines.fake.generation import ask, work

pytestmark = pytest.mark.anyio


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


async def test_each_delta_is_a_chunk_of_its_own(engine: FakeEngine) -> None:
    logprobs = (Logprob(token="lo", bytes=[108, 111], logprob=-0.1),)
    engine.says(Thought("hm"), Text("Hel"), Text("lo", logprobs), Refusal("no"))
    said = await ask(engine, "hi")
    assert said.lists[:-1] == [
        [Chunk(thought="hm")],
        [Chunk(text="Hel")],
        [Chunk(text="lo", logprobs=logprobs)],
        [Chunk(refusal="no")],
    ]
    assert said.finish == "stop"
    assert (said.counts.output_tokens, said.counts.reasoning_tokens) == (4, 1)


async def test_deltas_in_a_list_come_together(engine: FakeEngine) -> None:
    engine.says([Text("Hel"), Text("lo")], Text("!"))
    assert [len(chunks) for chunks in (await ask(engine, "hi")).lists] == [2, 1, 1]


async def test_calls_may_be_parallel(engine: FakeEngine) -> None:
    engine.says(
        CallStarted(0, "f"), CallStarted(1, "g"), CallDelta(1, "{"), CallDelta(0, "{}"), CallDelta(1, "}"),
        CallDone(0), CallDone(1),
    )  # fmt: skip
    said = await ask(engine, "hi")
    assert said.calls == {0: ("f", "{}"), 1: ("g", "{}")}
    assert said.finish == "tool_calls"
    assert len(said.chunks) == 6


@pytest.mark.parametrize("unsaid", [Summary("s"), Citation(annotation=None)])  # type: ignore[arg-type]  # never looked at
def test_what_no_engine_says_cannot_be_written(engine: FakeEngine, unsaid: Summary | Citation) -> None:
    with pytest.raises(TypeError, match=type(unsaid).__name__):
        engine.says(unsaid)


async def test_replies_are_played_in_order_and_then_it_answers_by_itself(engine: FakeEngine) -> None:
    engine.says(Text("one"))
    engine.answers()
    engine.says(Text("three"))
    assert [(await ask(engine, "hi")).text for _ in range(4)] == ["one", "You said: hi", "three", "You said: hi"]


async def test_the_last_reply_can_be_repeated(engine: FakeEngine) -> None:
    engine.says(Text("one"))
    engine.fails(EngineFailed("once"), after=1)
    engine.repeats()
    with pytest.raises(EngineFailed, match="once"):
        await ask(engine, "hi")
    assert (await ask(engine, "hi")).text == "one"
    engine.repeats(2)
    assert [(await ask(engine, "hi")).text for _ in range(3)] == ["one", "one", "You said: hi"]


def test_nothing_written_cannot_be_repeated(engine: FakeEngine) -> None:
    with pytest.raises(ValueError, match="nothing"):
        engine.repeats()


async def test_finish_and_counts_are_as_written(engine: FakeEngine) -> None:
    counts = Counts(input_tokens=1, cached_tokens=1, output_tokens=7, reasoning_tokens=3)
    engine.says(Text("Hel"), finish="length", counts=counts)
    said = await ask(engine, "hi")
    assert (said.finish, said.counts) == ("length", counts)


async def test_without_a_finish_it_breaks_off(engine: FakeEngine) -> None:
    engine.says(Text("Hel"), finish=None)
    assert (await ask(engine, "hi")).lists == [[Chunk(text="Hel")]]


async def test_raw_chunks_can_be_written_too(engine: FakeEngine) -> None:
    engine.says(Chunk(text="a", thought="b", tokens=(1, 2)))
    assert (await ask(engine, "hi")).chunks[0] == Chunk(text="a", thought="b", tokens=(1, 2))


@pytest.mark.parametrize("after", [0, 1, 2, 9])
async def test_it_fails_after_so_many_chunks(engine: FakeEngine, after: int) -> None:
    engine.says(Text("Hel"), Text("lo"))
    engine.fails(EngineFailed("It died."), after=after)
    heard: list[str] = []

    async def hear() -> None:
        async with asyncio.timeout(30), aclosing(engine.generate(work("hi"))) as lists:
            async for chunks in lists:
                heard.extend(chunk.text for chunk in chunks)

    with pytest.raises(EngineFailed, match=r"It died\."):
        await hear()
    assert heard == ["Hel", "lo"][:after]
    assert (engine.running, engine.cancelled) == (0, 0)


async def test_it_can_fail_in_an_automatic_answer(engine: FakeEngine) -> None:
    engine.fails(EngineFailed("It died."), after=1)
    with pytest.raises(EngineFailed):
        await ask(engine, "hi")
    assert (await ask(engine, "hi")).text == "You said: hi"


async def test_a_gate_holds_it_at_a_chunk(engine: FakeEngine) -> None:
    engine.says(Text("Hel"), Text("lo"))
    gate = engine.holds(after=1)
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(ask(engine, "hi"))
        await gate.reached.wait()
        assert engine.running == 1
        assert not asking.done()
        gate.open()
    assert asking.result().text == "Hello"
    assert engine.running == 0


async def test_it_waits_for_an_event_of_the_test(engine: FakeEngine) -> None:
    event = asyncio.Event()
    engine.waits(event, after=2)
    async with asyncio.timeout(30), aclosing(engine.generate(work("hi"))) as lists:
        await anext(lists)
        await anext(lists)
        third = asyncio.ensure_future(anext(lists))
        await asyncio.wait([third], timeout=0.01)
        assert not third.done()
        event.set()
        assert (await third)[0].text


async def test_closing_the_iterator_cancels(engine: FakeEngine) -> None:
    lists = engine.generate(work("hi"))
    async with asyncio.timeout(30):
        await anext(lists)
        assert (engine.running, engine.cancelled) == (1, 0)
        await lists.aclose()
    assert (engine.running, engine.cancelled) == (0, 1)


async def test_cancelling_the_task_that_waits_cancels(engine: FakeEngine) -> None:
    gate = engine.holds()
    asking = asyncio.ensure_future(ask(engine, "hi"))
    async with asyncio.timeout(30):
        await gate.reached.wait()
        asking.cancel()
        await asyncio.wait([asking])
    assert asking.cancelled()
    assert (engine.running, engine.cancelled) == (0, 1)


async def test_closing_after_the_last_chunk_cancels_nothing(engine: FakeEngine) -> None:
    async with asyncio.timeout(30), aclosing(engine.generate(work("hi"))) as lists:
        async for chunks in lists:
            if chunks[-1].finish:
                break
    assert (engine.running, engine.cancelled) == (0, 0)


async def test_what_was_asked_can_be_seen_and_is_bounded(engine: FakeEngine) -> None:
    for number in range(100):
        await ask(engine, work("hi", model=f"model-{number}"))
    assert engine.seen[-1].model == "model-99"
    assert len(engine.seen) < 100


@pytest.mark.parametrize("burst", [1, 4])
async def test_streams_take_turns_after_each_burst(burst: int) -> None:
    engine = FakeEngine(FakeSettings(tokens=12, burst=burst))
    order: list[str] = []

    async def listen(name: str) -> None:
        async with aclosing(engine.generate(work("hi"))) as lists:
            async for _ in lists:
                order.append(name)

    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        tasks.create_task(listen("a"))
        tasks.create_task(listen("b"))
    turns = [len(list(group)) for _, group in groupby(order)]
    assert len(turns) > 4
    assert turns[2:4] == [burst, burst]


async def test_written_replies_do_not_wait_for_the_rate() -> None:
    engine = FakeEngine(FakeSettings(rate=0.001))
    engine.says(Text("Hel"), Text("lo"))
    assert (await ask(engine, "hi")).text == "Hello"
