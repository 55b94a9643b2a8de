import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from msgspec import Struct

from antiphon.admission import Admission
from antiphon.agent.completion_run import Exchange, Reword
from antiphon.agent.model_call import Plan
from antiphon.agent.timeouts import Deadlines
from antiphon.agent.tool_resolver import Declared
from antiphon.core.deltas import Text, Thought
from antiphon.core.dialects.chat.emitter import ChatEmitter, Manner
from antiphon.core.dialects.dialect import Head, Told
from antiphon.core.prompt import Chunk, Counts, Work
from antiphon.engines.fake import FakeEngine
from antiphon.errors import AntiphonError, ContextTooLong, EngineFailed, Internal, Unavailable
from antiphon.parsers.chat import ChatParser
from antiphon.protocol.types.chat.response import ChatChunk, ChatCompletion, StreamFault
from tests.agent.run_endings import WORK, Ends

pytestmark = pytest.mark.anyio
SHUTTING = Unavailable("The server is shutting down.")


@pytest.fixture
def ends() -> Ends:
    return Ends()


def make(engine: Any, ends: Ends, choices: int = 1, reword: Reword | None = None, **changes: Any) -> Exchange:
    tickets = changes.pop("tickets", [None] * choices)
    plans = [
        Plan(engine=engine, work=WORK, parser=ChatParser(WORK.prompt), declared=Declared({}), ticket=ticket, **changes)
        for ticket in tickets
    ]
    emitter = ChatEmitter(Head(id="chatcmpl-1", created=1, model="fake"), Manner(choices=choices), lambda: "call_1")
    return Exchange(plans, emitter, ends, reword)


class Heard:
    def __init__(self) -> None:
        self.told: list[Struct] = []
        self.lists = 0

    def __call__(self, told: Told) -> None:
        self.told += told
        self.lists += 1

    @property
    def texts(self) -> list[str]:
        """Of each choice."""
        said: dict[int, str] = {}
        for chunk in self.told:
            for choice in chunk.choices if isinstance(chunk, ChatChunk) else ():
                said[choice.index] = said.get(choice.index, "") + (choice.delta.content or "")
        return [said[index] for index in sorted(said)]


async def driven(exchange: Exchange) -> Heard:
    heard = Heard()
    async with asyncio.timeout(30):
        try:
            await exchange.begin()
            await exchange.drive(heard)
        finally:
            await exchange.leave()
    return heard


async def test_everything_is_told_and_the_end_comes_once(engine: FakeEngine, ends: Ends) -> None:
    engine.says(Thought("hm"), Text("Hel"), Text("lo"))
    exchange = make(engine, ends)
    heard = await driven(exchange)
    assert heard.texts == ["Hello"]
    assert exchange.status == "completed"
    assert exchange.first_at is not None
    assert ends.told == [exchange]
    assert engine.running == 0


async def test_the_json_body_is_the_fold_of_what_would_be_told(engine: FakeEngine, ends: Ends) -> None:
    engine.says(Text("Hel"), Text("lo"))
    exchange = make(engine, ends)
    async with asyncio.timeout(30):
        body = await exchange.result()
    assert isinstance(body, ChatCompletion)
    assert body.choices[0].message.content == "Hello"


async def test_what_fails_before_the_first_word_is_raised_and_nothing_is_told(engine: FakeEngine, ends: Ends) -> None:
    engine.fails(ContextTooLong("Too long.", param="input"))
    exchange = make(engine, ends)
    heard = Heard()
    with pytest.raises(ContextTooLong):
        await exchange.begin()
    await exchange.leave()
    assert heard.told == []
    assert exchange.status == "failed"
    assert ends.told == [exchange]


async def test_what_fails_later_is_told_as_the_last_thing(engine: FakeEngine, ends: Ends) -> None:
    engine.says(Text("Hel"))
    engine.fails(EngineFailed("It died."), after=1)
    exchange = make(engine, ends)
    heard = await driven(exchange)
    assert heard.texts == ["Hel"]
    assert isinstance(heard.told[-1], StreamFault)
    assert heard.told[-1].error.message == "It died."
    assert exchange.status == "failed"


async def test_a_json_body_that_fails_later_raises_it(engine: FakeEngine, ends: Ends) -> None:
    engine.says(Text("Hel"))
    engine.fails(EngineFailed("It died."), after=1)
    exchange = make(engine, ends)
    with pytest.raises(EngineFailed):
        await exchange.result()
    await exchange.leave()
    assert exchange.status == "failed"


async def test_a_failure_is_told_in_the_words_of_the_api(engine: FakeEngine, ends: Ends) -> None:
    def reword(error: AntiphonError) -> AntiphonError:
        return ContextTooLong("Too many messages.", param="messages")

    engine.fails(ContextTooLong("Too long.", param="input"))
    exchange = make(engine, ends, reword=reword)
    with pytest.raises(ContextTooLong) as raised:
        await exchange.begin()
    await exchange.leave()
    assert raised.value.param == "messages"


async def test_what_was_raised_before_can_be_told_in_a_stream_that_has_begun(engine: FakeEngine, ends: Ends) -> None:
    engine.fails(EngineFailed("It died."))
    exchange = make(engine, ends)
    with pytest.raises(EngineFailed):
        await exchange.begin()
    heard = Heard()
    await exchange.drive(heard)
    await exchange.leave()
    assert [type(each) for each in heard.told] == [StreamFault]


async def test_a_defect_is_told_as_one_of_ours_without_a_word_about_itself(engine: FakeEngine, ends: Ends) -> None:
    engine.says(Text("Hel"))
    engine.fails(RuntimeError("secret"), after=1)
    exchange = make(engine, ends)
    heard = await driven(exchange)
    assert isinstance(exchange.error, Internal)
    assert isinstance(heard.told[-1], StreamFault)
    assert "secret" not in heard.told[-1].error.message


@pytest.mark.parametrize("finish", [None, "no such word"])
async def test_an_engine_that_does_not_say_why_it_stopped_has_failed(
    engine: FakeEngine, ends: Ends, finish: Any
) -> None:
    engine.says(Text("Hel"), finish=finish)
    exchange = make(engine, ends)
    heard = await driven(exchange)
    assert isinstance(exchange.error, EngineFailed)
    assert isinstance(heard.told[-1], StreamFault)


async def test_who_leaves_frees_the_engine_and_its_place(engine: FakeEngine, ends: Ends) -> None:
    admission = Admission(slots=1, queue=1)
    engine.says(Text("Hel"), Text("lo"))
    engine.holds(after=1)
    exchange = make(engine, ends, tickets=[admission.enter()])
    await exchange.begin()
    assert (engine.running, admission.running) == (1, 1)
    await exchange.leave()
    assert (engine.running, engine.cancelled, admission.running) == (0, 1, 0)
    assert exchange.status == "cancelled"
    assert ends.told == [exchange]


async def test_a_driver_that_is_cancelled_frees_the_engine(engine: FakeEngine, ends: Ends) -> None:
    engine.says(Text("Hel"), Text("lo"))
    gate = engine.holds(after=1)
    exchange = make(engine, ends)
    driving = asyncio.ensure_future(driven(exchange))
    async with asyncio.timeout(30):
        await gate.reached.wait()
        driving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await driving
    assert engine.running == 0
    assert exchange.status == "cancelled"


async def test_an_interruption_is_told_at_once(engine: FakeEngine, ends: Ends) -> None:
    engine.says(Text("Hel"), Text("lo"))
    gate = engine.holds(after=1)
    exchange = make(engine, ends)
    driving = asyncio.ensure_future(driven(exchange))
    async with asyncio.timeout(30):
        await gate.reached.wait()
        exchange.interrupt(SHUTTING)
        heard = await driving
    assert isinstance(heard.told[-1], StreamFault)
    assert heard.told[-1].error.code == "service_unavailable"
    assert engine.running == 0


async def test_an_interruption_before_the_first_word_is_raised(engine: FakeEngine, ends: Ends) -> None:
    gate = engine.holds()
    exchange = make(engine, ends)
    beginning = asyncio.ensure_future(exchange.begin())
    async with asyncio.timeout(30):
        await gate.reached.wait()
        exchange.interrupt(SHUTTING)
        with pytest.raises(Unavailable):
            await beginning
        await exchange.leave()
    assert engine.running == 0


async def test_an_interruption_between_the_first_word_and_the_next_is_told(engine: FakeEngine, ends: Ends) -> None:
    engine.says(Text("Hel"), Text("lo"))
    exchange = make(engine, ends)
    await exchange.begin()
    exchange.interrupt(SHUTTING)
    heard = Heard()
    await exchange.drive(heard)
    await exchange.leave()
    assert isinstance(heard.told[-1], StreamFault)


async def test_an_engine_that_says_nothing_is_given_up(engine: FakeEngine, ends: Ends) -> None:
    engine.holds()
    exchange = make(engine, ends, deadlines=Deadlines(first=0.04, idle=0.04, total=5))
    async with asyncio.timeout(30):
        with pytest.raises(EngineFailed):
            await exchange.begin()
        await exchange.leave()
    assert engine.running == 0


async def test_an_engine_that_falls_silent_is_given_up(engine: FakeEngine, ends: Ends) -> None:
    engine.says(Text("Hel"), Text("lo"))
    engine.holds(after=1)
    exchange = make(engine, ends, deadlines=Deadlines(first=5, idle=0.04, total=5))
    heard = await driven(exchange)
    assert isinstance(exchange.error, EngineFailed)
    assert heard.texts == ["Hel"]


async def test_several_answers_are_heard_side_by_side_and_the_prompt_counts_once(
    engine: FakeEngine, ends: Ends
) -> None:
    counts = Counts(input_tokens=7, output_tokens=2)
    engine.says(Text("a"), Text("b"), counts=counts)
    engine.repeats(2)
    exchange = make(engine, ends, choices=3)
    heard = await driven(exchange)
    assert heard.texts == ["ab", "ab", "ab"]
    assert exchange.counts == Counts(input_tokens=7, output_tokens=6)
    assert exchange.status == "completed"


async def test_nothing_of_several_answers_gets_lost_while_a_reader_is_slow(engine: FakeEngine, ends: Ends) -> None:
    """The second answer begins while the first is being told."""
    engine.says(Text("a"), Text("b"))
    engine.says(Text("c"), Text("d"))
    gate = engine.holds()
    exchange, heard = make(engine, ends, choices=2), Heard()

    async def slow(told: Told) -> None:
        heard([*told])
        if heard.texts == ["a", ""]:
            gate.open()
            for _ in range(10):
                await asyncio.sleep(0)

    async with asyncio.timeout(30):
        await exchange.begin()
        await exchange.drive(slow)
        await exchange.leave()
    assert heard.texts == ["ab", "cd"]


async def test_several_answers_at_a_model_with_one_place_come_one_after_the_other(
    engine: FakeEngine, ends: Ends
) -> None:
    admission = Admission(slots=1, queue=0)
    tickets = [admission.enter(), admission.patient(), admission.patient()]
    engine.says(Text("a"), Text("b"))
    engine.repeats(2)
    exchange = make(engine, ends, choices=3, tickets=tickets)
    heard = await driven(exchange)
    assert heard.texts == ["ab", "ab", "ab"]
    assert (admission.running, admission.waiting) == (0, 0)


async def test_the_first_of_several_that_fails_ends_them_all(engine: FakeEngine, ends: Ends) -> None:
    engine.says(Text("a"), Text("b"))
    engine.holds(after=1)
    engine.says(Text("c"), Text("d"))
    engine.fails(EngineFailed("It died."), after=1)
    exchange = make(engine, ends, choices=2)
    running: list[int] = []

    def tell(told: Told) -> None:
        running.extend(engine.running for each in told if isinstance(each, StreamFault))

    async with asyncio.timeout(30):
        await exchange.drive(tell)
        await exchange.leave()
    assert running == [0]


async def test_one_of_several_that_fails_before_the_first_word_is_raised(engine: FakeEngine, ends: Ends) -> None:
    engine.holds()
    engine.answers()
    engine.fails(Unavailable("Not ready."))
    exchange = make(engine, ends, choices=2)
    async with asyncio.timeout(30):
        with pytest.raises(Unavailable):
            await exchange.begin()
        await exchange.leave()
    assert engine.running == 0


async def test_several_answers_end_with_who_leaves(engine: FakeEngine, ends: Ends) -> None:
    for _ in range(2):
        engine.says(Text("a"), Text("b"))
        engine.holds(after=1)
    exchange = make(engine, ends, choices=2)
    async with asyncio.timeout(30):
        await exchange.begin()
        await exchange.leave()
    assert engine.running == 0
    assert exchange.status == "cancelled"


async def test_several_answers_are_interrupted_together(engine: FakeEngine, ends: Ends) -> None:
    gates = []
    for _ in range(2):
        engine.says(Text("a"), Text("b"))
        gates.append(engine.holds(after=1))
    exchange = make(engine, ends, choices=2)
    driving = asyncio.ensure_future(driven(exchange))
    async with asyncio.timeout(30):
        for gate in gates:
            await gate.reached.wait()
        exchange.interrupt(SHUTTING)
        heard = await driving
    assert isinstance(heard.told[-1], StreamFault)
    assert engine.running == 0


class Greedy:
    """Counts how often it was asked for more."""

    name = "greedy"
    asked = 0

    async def generate(self, work: Work) -> AsyncGenerator[list[Chunk], None]:
        for _ in range(50):
            self.asked += 1
            yield [Chunk(text="x")]
        yield [Chunk(finish="stop", counts=Counts())]


async def test_a_slow_reader_slows_the_engine_down(ends: Ends) -> None:
    engine, stuck, unread = Greedy(), asyncio.Event(), asyncio.Event()
    told = 0

    async def slow(chunks: Told) -> None:
        nonlocal told
        told += 1
        if told == 3:
            stuck.set()
            await unread.wait()

    exchange = make(engine, ends)
    driving = asyncio.ensure_future(exchange.drive(slow))
    async with asyncio.timeout(30):
        await stuck.wait()
        for _ in range(10):
            await asyncio.sleep(0)
        assert engine.asked == 3
        unread.set()
        await driving
        await exchange.leave()
    assert engine.asked == 50
