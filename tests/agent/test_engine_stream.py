"""Runs over an engine that pushes chunks through a callback: events, timeouts and errors are the same as with
pulling.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress

import pytest

from antiphon.agent.engine_stream import ModelCall
from antiphon.agent.run import Run
from antiphon.agent.timeouts import Timeouts
from antiphon.agent.tool_resolver import ToolCallResolver
from antiphon.core.emitter.emitter import Emitter
from antiphon.core.prompt import CallPiece, ChatPrompt, Chunk, GenerationRequest, Sampling, TokenCounts
from antiphon.engines.base import ChunkSink, PushStream
from antiphon.engines.fake import FakeEngine
from antiphon.errors import EngineFailed, Internal, Unavailable
from antiphon.ids import ItemIds
from antiphon.parsers.chat import ChatParser
from antiphon.protocol.types.events import Completed, Event, Failed
from antiphon.protocol.types.response import Response
from tests.oracles.fold import fold_events

pytestmark = pytest.mark.anyio
GENERATION = GenerationRequest(
    model="fake", prompt=ChatPrompt(messages=({"role": "user", "content": "hi"},)), sampling=Sampling()
)
LAST = Chunk(finish="stop", counts=TokenCounts(output_tokens=4))
CHUNK_LISTS = [[Chunk(text="a")], [Chunk(text="b"), Chunk(text="c")], [Chunk(reasoning="hm")], [Chunk(text="d"), LAST]]


class PushingEngine(FakeEngine):
    """Yields the first list of chunks, pushes the others through a `PushStream`, and records that it was closed."""

    def __init__(self, lists: list[list[Chunk]], after_push: Callable[[], Awaitable[None]] | None = None) -> None:
        super().__init__()
        self._lists = lists
        self._after_push = after_push  # awaited after all lists were pushed
        self.pushed = self.closed = False

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[list[Chunk], None]:
        try:
            yield self._lists[0]
            stream = _ScriptedPushStream(self._lists[1:], self._after_push)
            yield stream
            self.pushed = stream.pushed
            for chunks in stream.remaining:
                yield chunks
        finally:
            self.closed = True


class _ScriptedPushStream(PushStream):
    def __init__(self, lists: list[list[Chunk]], after_push: Callable[[], Awaitable[None]] | None) -> None:
        self.remaining = lists
        self.pushed = False
        self._after_push = after_push

    async def push_to(self, take: ChunkSink) -> None:
        """Call the sink from callbacks of the event loop, as a connection does."""
        self.pushed = True
        loop = asyncio.get_running_loop()
        while self.remaining:
            result: asyncio.Future[Awaitable[None] | None] = loop.create_future()
            chunks = self.remaining.pop(0)
            loop.call_soon(lambda: result.set_result(take(chunks)))  # noqa: B023  # called before the variables change
            if (pending := await result) is not None:
                await pending
        if self._after_push is not None:
            await self._after_push()


def make_run(engine: FakeEngine, **timeouts: float) -> Run:
    call = ModelCall(
        engine=engine,
        generation=GENERATION,
        parser=ChatParser(GENERATION.prompt),
        resolver=ToolCallResolver({}),
        timeouts=Timeouts(**timeouts),
    )
    response = Response(id="resp_1", created_at=1, model="fake")
    return Run(call, Emitter(response, ItemIds("resp_1")), lambda run: None)


async def drive_run(run: Run) -> list[Event]:
    events: list[Event] = []
    async with asyncio.timeout(30):
        await run.drive(events.extend)
    return events


class PullingEngine(FakeEngine):
    async def generate(self, request: GenerationRequest) -> AsyncGenerator[list[Chunk], None]:
        for chunks in CHUNK_LISTS:
            yield chunks


async def test_a_pushing_engine_gives_the_same_events_as_a_pulling_engine() -> None:
    engine = PushingEngine([*CHUNK_LISTS])
    run = make_run(engine)
    pushed_events = await drive_run(run)
    assert engine.pushed
    assert engine.closed
    pulled_events = await drive_run(make_run(PullingEngine()))
    assert [type(event) for event in pushed_events] == [type(event) for event in pulled_events]
    assert isinstance(pushed_events[-1], Completed)
    assert fold_events(pushed_events) == pushed_events[-1].response
    assert fold_events(pushed_events).output == fold_events(pulled_events).output
    assert run.stream.first_at is not None


async def test_a_slow_reader_does_not_count_as_engine_silence() -> None:
    waiting: list[bool] = []

    async def pause() -> None:
        waiting.append(run.waits)
        with suppress(TimeoutError):
            async with asyncio.timeout(0.2):  # longer than the engine may be silent
                await asyncio.Event().wait()

    run = make_run(PushingEngine([*CHUNK_LISTS]), idle=0.04)
    received: list[Event] = []

    def emit(events: list[Event]) -> Awaitable[None] | None:
        received.extend(events)
        return pause() if any(getattr(event, "delta", "") == "b" for event in events) else None

    async with asyncio.timeout(30):
        await run.drive(emit)
    assert isinstance(received[-1], Completed)
    assert waiting == [False]


async def test_an_engine_that_falls_silent_while_pushing_times_out() -> None:
    engine = PushingEngine([*CHUNK_LISTS[:2]], after_push=asyncio.Event().wait)  # type: ignore[arg-type]  # the result is ignored
    events = await drive_run(make_run(engine, idle=0.05))
    assert isinstance(events[-1], Failed)
    assert events[-1].response.error is not None
    assert "sent no data for too long" in events[-1].response.error.message
    assert engine.closed


async def test_a_run_interrupted_while_pushing_ends_with_that_error() -> None:
    paused = asyncio.Event()

    async def pause() -> None:
        paused.set()
        await asyncio.Event().wait()

    engine = PushingEngine([*CHUNK_LISTS[:2]], after_push=pause)
    run = make_run(engine)
    driving = asyncio.create_task(drive_run(run))
    async with asyncio.timeout(30):
        await paused.wait()
        run.interrupt(Unavailable("The server is shutting down."))
        events = await driving
    assert isinstance(events[-1], Failed)
    assert isinstance(run.error, Unavailable)
    assert engine.closed


async def test_output_that_the_parser_rejects_fails_the_run() -> None:
    nameless = [Chunk(calls=(CallPiece(index=0, arguments="{}"),))]
    run = make_run(PushingEngine([CHUNK_LISTS[0], nameless, [LAST]]))
    assert isinstance((await drive_run(run))[-1], Failed)
    assert isinstance(run.error, EngineFailed)


@pytest.mark.parametrize("at", [0, 3])
async def test_an_exception_in_the_callback_fails_the_run(at: int, caplog: pytest.LogCaptureFixture) -> None:
    lists = [*CHUNK_LISTS]
    lists[at] = [Chunk(calls=7)]  # type: ignore[arg-type]  # invalid on purpose
    run = make_run(PushingEngine(lists))
    with caplog.at_level("CRITICAL"):
        events = await drive_run(run)
    assert isinstance(events[-1], Failed)
    assert isinstance(run.error, Internal)
