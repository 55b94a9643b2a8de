"""Runs over an engine that tells by a call: the same events, the same patience, the same errors as by asking."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress

import pytest

from antiphon.agent.model_call import Plan
from antiphon.agent.run import Run
from antiphon.agent.timeouts import Deadlines
from antiphon.agent.tool_resolver import Declared
from antiphon.core.emitter.emitter import Emitter
from antiphon.core.emitter.fold import fold
from antiphon.core.prompt import CallPiece, ChatPrompt, Chunk, Counts, Sampling, Work
from antiphon.engines.base import Flow, Take
from antiphon.engines.fake import FakeEngine
from antiphon.errors import EngineFailed, Internal, Unavailable
from antiphon.ids import ItemIds
from antiphon.parsers.chat import ChatParser
from antiphon.protocol.types.events import Completed, Event, Failed
from antiphon.protocol.types.response import Response

pytestmark = pytest.mark.anyio
WORK = Work(model="fake", prompt=ChatPrompt(messages=({"role": "user", "content": "hi"},)), sampling=Sampling())
LAST = Chunk(finish="stop", counts=Counts(output_tokens=4))
LISTS = [[Chunk(text="a")], [Chunk(text="b"), Chunk(text="c")], [Chunk(thought="hm")], [Chunk(text="d"), LAST]]


class Pouring(FakeEngine):
    """Says what it is given, the first list by being asked; closes as every engine does."""

    def __init__(self, lists: list[list[Chunk]], then: Callable[[], Awaitable[None]] | None = None) -> None:
        super().__init__()
        self._lists = lists
        self._then = then  # what happens in the pour after all has been said
        self.poured = self.closed = False

    async def generate(self, work: Work) -> AsyncGenerator[list[Chunk], None]:
        try:
            yield self._lists[0]
            flow = _Flow(self._lists[1:], self._then)
            yield flow
            self.poured = flow.poured
            for chunks in flow.left:
                yield chunks
        finally:
            self.closed = True


class _Flow(Flow):
    def __init__(self, lists: list[list[Chunk]], then: Callable[[], Awaitable[None]] | None) -> None:
        self.left = lists
        self.poured = False
        self._then = then

    async def pour(self, take: Take) -> None:
        """From callbacks of the loop, as a connection does it."""
        self.poured = True
        loop = asyncio.get_running_loop()
        while self.left:
            told: asyncio.Future[Awaitable[None] | None] = loop.create_future()
            chunks = self.left.pop(0)
            loop.call_soon(lambda: told.set_result(take(chunks)))  # noqa: B023  # it is called before they change
            if (telling := await told) is not None:
                await telling
        if self._then is not None:
            await self._then()


def run_of(engine: FakeEngine, **deadlines: float) -> Run:
    plan = Plan(
        engine=engine,
        work=WORK,
        parser=ChatParser(WORK.prompt),
        declared=Declared({}),
        deadlines=Deadlines(**deadlines),
    )
    response = Response(id="resp_1", created_at=1, model="fake")
    return Run(plan, Emitter(response, ItemIds("resp_1")), lambda run: None)


async def driven(run: Run) -> list[Event]:
    heard: list[Event] = []
    async with asyncio.timeout(30):
        await run.drive(heard.extend)
    return heard


class Asked(FakeEngine):
    async def generate(self, work: Work) -> AsyncGenerator[list[Chunk], None]:
        for chunks in LISTS:
            yield chunks


async def test_what_is_poured_gives_the_events_that_asking_gives() -> None:
    engine = Pouring([*LISTS])
    run = run_of(engine)
    told = await driven(run)
    assert engine.poured
    assert engine.closed
    asked = await driven(run_of(Asked()))
    assert [type(event) for event in told] == [type(event) for event in asked]
    assert isinstance(told[-1], Completed)
    assert fold(told) == told[-1].response
    assert fold(told).output == fold(asked).output
    assert run.hearing.first_at is not None


async def test_a_reader_that_is_slow_is_waited_for_and_is_not_the_engines_silence() -> None:
    waiting: list[bool] = []

    async def patient() -> None:
        waiting.append(run.waits)
        with suppress(TimeoutError):
            async with asyncio.timeout(0.2):  # longer than the engine may be silent
                await asyncio.Event().wait()

    run = run_of(Pouring([*LISTS]), idle=0.04)
    heard: list[Event] = []

    def tell(events: list[Event]) -> Awaitable[None] | None:
        heard.extend(events)
        return patient() if any(getattr(event, "delta", "") == "b" for event in events) else None

    async with asyncio.timeout(30):
        await run.drive(tell)
    assert isinstance(heard[-1], Completed)
    assert waiting == [False]


async def test_an_engine_that_falls_silent_while_it_pours_is_given_up() -> None:
    engine = Pouring([*LISTS[:2]], then=asyncio.Event().wait)  # type: ignore[arg-type]  # what it gives is nobody's
    told = await driven(run_of(engine, idle=0.05))
    assert isinstance(told[-1], Failed)
    assert told[-1].response.error is not None
    assert "silent" in told[-1].response.error.message
    assert engine.closed


async def test_a_run_that_is_interrupted_while_it_pours_ends_for_that_reason() -> None:
    said = asyncio.Event()

    async def pause() -> None:
        said.set()
        await asyncio.Event().wait()

    engine = Pouring([*LISTS[:2]], then=pause)
    run = run_of(engine)
    driving = asyncio.create_task(driven(run))
    async with asyncio.timeout(30):
        await said.wait()
        run.interrupt(Unavailable("The server is shutting down."))
        told = await driving
    assert isinstance(told[-1], Failed)
    assert isinstance(run.error, Unavailable)
    assert engine.closed


async def test_what_a_parser_refuses_fails_the_run() -> None:
    nameless = [Chunk(calls=(CallPiece(index=0, arguments="{}"),))]
    run = run_of(Pouring([LISTS[0], nameless, [LAST]]))
    assert isinstance((await driven(run))[-1], Failed)
    assert isinstance(run.error, EngineFailed)


@pytest.mark.parametrize("at", [0, 3])
async def test_a_defect_in_a_callback_fails_the_run_and_is_not_lost(at: int, caplog: pytest.LogCaptureFixture) -> None:
    lists = [*LISTS]
    lists[at] = [Chunk(calls=7)]  # type: ignore[arg-type]  # nothing can be made of that
    run = run_of(Pouring(lists))
    with caplog.at_level("CRITICAL"):
        told = await driven(run)
    assert isinstance(told[-1], Failed)
    assert isinstance(run.error, Internal)
