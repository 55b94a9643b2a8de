"""Pushing of events from the callback that received them: no event is lost, duplicated, reordered or delayed.

The same holds while the event loop is saturated, and each piece of data has to wait for its turn.
"""

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from itertools import groupby

import pytest
from msgspec import Struct
from msgspec.json import Decoder

from antiphon.engines import turn_scheduler
from antiphon.engines.client import MAX_EVENT_BYTES, EngineClient, EngineTimeouts, EventStream
from antiphon.engines.connection import MAX_UNREAD_BYTES, SLICE_BYTES, UnixAddress
from antiphon.errors import EngineFailed
from tests.engines.unix_server import END, STREAM, http_chunk, read_request, sse_event, upstream
from tests.support.local_servers import Reader, Writer

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True, params=["free", "saturated"])
def load(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "saturated":
        monkeypatch.setattr(turn_scheduler, "BUDGET_SECONDS", 1e-9)


class Word(Struct):
    word: str


WORD = Decoder(Word)
SHORT_TIMEOUTS = EngineTimeouts(connect=0.3, first_byte=0.3, idle=0.3)


def make_client(path: str, timeouts: EngineTimeouts | None = None) -> EngineClient:
    return EngineClient(UnixAddress(path), "The engine", timeouts)


def word_event(text: str) -> bytes:
    return sse_event(b'{"word":"%b"}' % text.encode())


class RecordingSink:
    """Records the pushed events, and whether each call ran in a task or in a callback of the loop."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.in_task: list[bool] = []
        self.received = asyncio.Event()

    def __call__(self, events: list[Word]) -> Awaitable[None] | None:
        self.texts += [event.word for event in events]
        self.in_task.append(asyncio.current_task() is not None)
        self.received.set()
        return None

    async def wait_next(self) -> None:
        await self.received.wait()
        self.received.clear()


async def read_remaining(stream: EventStream[Word]) -> list[str]:
    return [event.word async for events in stream for event in events]


@pytest.mark.parametrize("done", [True, False])
async def test_events_are_pushed_from_the_callback_that_received_them(done: bool) -> None:
    sink = RecordingSink()

    async def behave(reader: Reader, writer: Writer) -> None:
        while True:
            await read_request(reader)
            writer.write(STREAM + word_event("a"))
            await sink.wait_next()
            for text in ("b", "c"):
                writer.write(word_event(text))
                await sink.wait_next()
            writer.write((http_chunk(b"data: [DONE]\n\n") if done else b"") + END)

    async with upstream(behave) as path, asyncio.timeout(30):
        engine = make_client(path)
        for _ in range(2):  # the second request reuses the connection
            stream = await engine.post_stream("/", b"{}", WORD)
            assert await anext(stream) == [Word("a")]
            sink.received.set()
            await stream.push_to(sink)
            assert await read_remaining(stream) == []
        assert sink.texts == ["b", "c"] * 2
        assert sink.in_task == [False] * 4
        assert len(engine._idle) == 1
        engine.close()


async def test_events_received_before_push_to_are_pushed_too() -> None:
    async def behave(reader: Reader, writer: Writer) -> None:
        await read_request(reader)
        writer.write(STREAM + word_event("a"))
        await writer.drain()
        await reader.read(1)

    async with upstream(behave) as path, asyncio.timeout(30):
        stream = await make_client(path).post_stream("/", b"{}", WORD)
        sink = RecordingSink()
        pushing = asyncio.create_task(stream.push_to(sink))
        await sink.wait_next()
        pushing.cancel()
        await asyncio.wait([pushing])
        stream.close()
    assert sink.texts == ["a"]


async def test_reading_pauses_until_the_awaitable_of_the_sink_is_done() -> None:
    free = asyncio.Event()
    texts: list[str] = []
    sent = 0

    async def behave(reader: Reader, writer: Writer) -> None:
        nonlocal sent
        await read_request(reader)
        writer.write(STREAM)
        for _ in range(4000):
            writer.write(word_event("x" * 1000))
            await writer.drain()
            sent += 1000
        writer.write(END)

    def take(events: list[Word]) -> Awaitable[None] | None:
        texts.extend(event.word for event in events)
        return None if free.is_set() else wait()

    async def wait() -> None:
        await free.wait()

    async with upstream(behave) as path, asyncio.timeout(20):
        stream = await make_client(path).post_stream("/", b"{}", WORD)
        pushing = asyncio.create_task(stream.push_to(take))
        before = -1
        while sent != before or not texts:  # until the sender stalls
            before = sent
            for _ in range(200):
                await asyncio.sleep(0)
        assert sent < 4 * MAX_UNREAD_BYTES
        free.set()
        await pushing
        assert await read_remaining(stream) == []
    assert len(texts) == 4000


async def test_a_failing_sink_ends_the_push_with_its_error_even_at_the_last_event() -> None:
    async def behave(reader: Reader, writer: Writer) -> None:
        await read_request(reader)
        writer.write(STREAM + word_event("a") + http_chunk(b"data: [DONE]\n\n") + END)
        await reader.read(1)

    async def fail() -> None:
        raise ZeroDivisionError

    async with upstream(behave) as path, asyncio.timeout(30):
        stream = await make_client(path).post_stream("/", b"{}", WORD)
        with pytest.raises(ZeroDivisionError):
            await stream.push_to(lambda events: fail())
        stream.close()


async def test_events_after_stop_pushing_are_read_by_iteration() -> None:
    async def behave(reader: Reader, writer: Writer) -> None:
        await read_request(reader)
        writer.write(STREAM + word_event("a"))
        await sink.wait_next()
        writer.write(word_event("b") + END)

    sink = RecordingSink()

    def take(events: list[Word]) -> Awaitable[None] | None:
        stream.stop_pushing()
        return sink(events)

    async with upstream(behave) as path, asyncio.timeout(30):
        stream = await make_client(path).post_stream("/", b"{}", WORD)
        await stream.push_to(take)
        assert sink.texts == ["a"]
        assert await read_remaining(stream) == ["b"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (b"", "closed the connection in the middle"),
        (sse_event(b"nonsense"), "cannot be decoded"),
        (http_chunk(b"data: " + b"x" * (MAX_EVENT_BYTES + 9)), "exceeds the size limit"),
        (b"zz\r\n", "sent invalid HTTP"),
    ],
)
async def test_an_error_during_the_push_is_raised_by_the_next_read(wrong: bytes, message: str) -> None:
    async def behave(reader: Reader, writer: Writer) -> None:
        await read_request(reader)
        writer.write(STREAM + word_event("a"))
        await sink.wait_next()
        writer.write(wrong)
        await writer.drain()

    sink = RecordingSink()
    async with upstream(behave) as path, asyncio.timeout(30):
        stream = await make_client(path).post_stream("/", b"{}", WORD)
        await stream.push_to(sink)
        assert sink.texts == ["a"]
        with pytest.raises(EngineFailed, match=message):
            await anext(stream)
        stream.close()


@pytest.mark.parametrize("shortened", [False, True])
async def test_the_idle_timeout_ends_the_push(shortened: bool) -> None:
    async def behave(reader: Reader, writer: Writer) -> None:
        await read_request(reader)
        writer.write(STREAM + word_event("a"))
        await reader.read(1)

    def take(events: list[Word]) -> None:
        if shortened:
            stream.shorten_timeout(0.05)

    async with upstream(behave) as path, asyncio.timeout(30):
        stream = await make_client(
            path, EngineTimeouts(idle=60.0, first_byte=60.0) if shortened else SHORT_TIMEOUTS
        ).post_stream("/", b"{}", WORD)
        await stream.push_to(take)
        with pytest.raises(EngineFailed, match="stopped sending"):
            await anext(stream)
        stream.close()


async def test_slow_events_do_not_trigger_the_idle_timeout() -> None:
    for idle in (0.3, 1.5, 6.0):  # on a busy machine a third of the timeout may take as long as all of it
        with suppress(EngineFailed):
            assert await _push_slow_events(idle) == ["a"] * 5
            return
    raise AssertionError("Slow events triggered the idle timeout in every attempt.")


async def _push_slow_events(idle: float) -> list[str]:
    sink = RecordingSink()

    async def behave(reader: Reader, writer: Writer) -> None:
        await read_request(reader)
        writer.write(STREAM)
        for _ in range(5):
            writer.write(word_event("a"))
            await sink.wait_next()
            with suppress(TimeoutError):
                async with asyncio.timeout(idle / 3):
                    await reader.read(1)
        writer.write(END)

    async with upstream(behave) as path, asyncio.timeout(30):
        stream = await make_client(path, EngineTimeouts(idle=idle)).post_stream("/", b"{}", WORD)
        await stream.push_to(sink)
        assert await read_remaining(stream) == []
    return sink.texts


async def test_streams_with_much_data_take_turns() -> None:
    """The data of one read is pushed in slices, and a stream does not wait for the end of another."""
    count = 4 * SLICE_BYTES // len(word_event("a"))
    order: list[str] = []

    async def behave(reader: Reader, writer: Writer) -> None:
        name = (await read_request(reader))[1:2].decode()
        writer.write(STREAM + word_event(name) * count + END)
        await writer.drain()
        await reader.read(1)

    async def push(name: str, client: EngineClient) -> None:
        stream = await client.post_stream(f"/{name}", b"{}", WORD)
        await stream.push_to(lambda events: order.extend(event.word for event in events))
        assert await read_remaining(stream) == []
        stream.close()

    async with upstream(behave) as path, asyncio.timeout(30):
        client = make_client(path)
        await asyncio.gather(push("a", client), push("b", client))
        client.close()
    assert [order.count(name) for name in "ab"] == [count, count]
    assert len([*groupby(order)]) > 2


async def test_the_first_tokens_do_not_wait_for_all_that_has_arrived() -> None:
    """Awaited data is not bounded by turns, so other streams would wait for it."""
    event = word_event("a")
    count = SLICE_BYTES // len(event)
    sink = RecordingSink()

    async def behave(reader: Reader, writer: Writer) -> None:
        await read_request(reader)
        writer.write(STREAM + event * count + END)
        await writer.drain()
        await reader.read(1)

    async with upstream(behave) as path, asyncio.timeout(30):
        client = make_client(path)
        stream = await client.post_stream("/", b"{}", WORD)
        first = await anext(stream)
        assert 0 < len(first) < count / 8
        await stream.push_to(sink)
        assert len(first) + len(sink.texts) == count
        stream.close()
        client.close()
