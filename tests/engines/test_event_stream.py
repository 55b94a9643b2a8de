"""Events that are handed on in the callback that brought them: nothing is lost, doubled, reordered or waited for."""

import asyncio
from collections.abc import Awaitable
from contextlib import suppress

import pytest
from msgspec import Struct
from msgspec.json import Decoder

from antiphon.engines.client import Client, Deadlines, EventStream, UnixAddress
from antiphon.engines.connection import MAX_UNREAD_BYTES
from antiphon.engines.sse import MAX_EVENT_BYTES
from antiphon.errors import EngineFailed
from tests.engines.unix_server import END, STREAM, Reader, Writer, event, piece, request, upstream

pytestmark = pytest.mark.anyio


class Word(Struct):
    word: str


WORD = Decoder(Word)
QUICK = Deadlines(connect=0.3, first=0.3, idle=0.3)


def client(path: str, deadlines: Deadlines | None = None) -> Client:
    return Client(UnixAddress(path), "The engine", deadlines)


def said(word: str) -> bytes:
    return event(b'{"word":"%b"}' % word.encode())


class Heard:
    """Takes what is poured, and remembers whether a task or a callback of the loop brought it."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.by_task: list[bool] = []
        self.came = asyncio.Event()

    def __call__(self, events: list[Word]) -> Awaitable[None] | None:
        self.words += [event.word for event in events]
        self.by_task.append(asyncio.current_task() is not None)
        self.came.set()
        return None

    async def next(self) -> None:
        await self.came.wait()
        self.came.clear()


async def rest(stream: EventStream[Word]) -> list[str]:
    return [event.word async for events in stream for event in events]


@pytest.mark.parametrize("done", [True, False])
async def test_what_comes_is_handed_on_by_the_callback_that_brought_it(done: bool) -> None:
    heard = Heard()

    async def behave(reader: Reader, writer: Writer) -> None:
        while True:
            await request(reader)
            writer.write(STREAM + said("a"))
            await heard.next()
            for word in ("b", "c"):
                writer.write(said(word))
                await heard.next()
            writer.write((piece(b"data: [DONE]\n\n") if done else b"") + END)

    async with upstream(behave) as path, asyncio.timeout(30):
        engine = client(path)
        for _ in range(2):  # the connection is used again
            stream = await engine.stream("/", b"{}", WORD)
            assert await anext(stream) == [Word("a")]
            heard.came.set()
            await stream.pour(heard)
            assert await rest(stream) == []
        assert heard.words == ["b", "c"] * 2
        assert heard.by_task == [False] * 4
        assert len(engine._kept) == 1
        engine.close()


async def test_what_had_come_before_is_poured_too() -> None:
    async def behave(reader: Reader, writer: Writer) -> None:
        await request(reader)
        writer.write(STREAM + said("a"))
        await writer.drain()
        await reader.read(1)

    async with upstream(behave) as path, asyncio.timeout(30):
        stream = await client(path).stream("/", b"{}", WORD)
        heard = Heard()
        pouring = asyncio.create_task(stream.pour(heard))
        await heard.next()
        pouring.cancel()
        await asyncio.wait([pouring])
        stream.close()
    assert heard.words == ["a"]


async def test_nothing_more_is_taken_before_what_was_given_has_been_awaited() -> None:
    free = asyncio.Event()
    words: list[str] = []
    sent = 0

    async def behave(reader: Reader, writer: Writer) -> None:
        nonlocal sent
        await request(reader)
        writer.write(STREAM)
        for _ in range(4000):
            writer.write(said("x" * 1000))
            await writer.drain()
            sent += 1000
        writer.write(END)

    def take(events: list[Word]) -> Awaitable[None] | None:
        words.extend(event.word for event in events)
        return None if free.is_set() else wait()

    async def wait() -> None:
        await free.wait()

    async with upstream(behave) as path, asyncio.timeout(20):
        stream = await client(path).stream("/", b"{}", WORD)
        pouring = asyncio.create_task(stream.pour(take))
        before = -1
        while sent != before or not words:  # until it stands still
            before = sent
            for _ in range(200):
                await asyncio.sleep(0)
        assert sent < 4 * MAX_UNREAD_BYTES
        free.set()
        await pouring
        assert await rest(stream) == []
    assert len(words) == 4000


async def test_a_reader_that_fails_ends_the_pouring_with_its_error_even_at_the_last_event() -> None:
    async def behave(reader: Reader, writer: Writer) -> None:
        await request(reader)
        writer.write(STREAM + said("a") + piece(b"data: [DONE]\n\n") + END)
        await reader.read(1)

    async def fail() -> None:
        raise ZeroDivisionError

    async with upstream(behave) as path, asyncio.timeout(30):
        stream = await client(path).stream("/", b"{}", WORD)
        with pytest.raises(ZeroDivisionError):
            await stream.pour(lambda events: fail())
        stream.close()


async def test_who_halts_it_gets_the_rest_by_asking() -> None:
    async def behave(reader: Reader, writer: Writer) -> None:
        await request(reader)
        writer.write(STREAM + said("a"))
        await heard.next()
        writer.write(said("b") + END)

    heard = Heard()

    def take(events: list[Word]) -> Awaitable[None] | None:
        stream.halt()
        return heard(events)

    async with upstream(behave) as path, asyncio.timeout(30):
        stream = await client(path).stream("/", b"{}", WORD)
        await stream.pour(take)
        assert heard.words == ["a"]
        assert await rest(stream) == ["b"]


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (b"", "hung up in the middle"),
        (event(b"nonsense"), "cannot be read"),
        (piece(b"data: " + b"x" * (MAX_EVENT_BYTES + 9)), "without an end"),
        (b"zz\r\n", "does not speak HTTP"),
    ],
)
async def test_what_goes_wrong_is_told_who_asks_for_more(wrong: bytes, sentence: str) -> None:
    async def behave(reader: Reader, writer: Writer) -> None:
        await request(reader)
        writer.write(STREAM + said("a"))
        await heard.next()
        writer.write(wrong)
        await writer.drain()

    heard = Heard()
    async with upstream(behave) as path, asyncio.timeout(30):
        stream = await client(path).stream("/", b"{}", WORD)
        await stream.pour(heard)
        assert heard.words == ["a"]
        with pytest.raises(EngineFailed, match=sentence):
            await anext(stream)
        stream.close()


@pytest.mark.parametrize("hurried", [False, True])
async def test_silence_ends_the_pouring_in_time(hurried: bool) -> None:
    async def behave(reader: Reader, writer: Writer) -> None:
        await request(reader)
        writer.write(STREAM + said("a"))
        await reader.read(1)

    def take(events: list[Word]) -> None:
        if hurried:
            stream.hurry(0.05)

    async with upstream(behave) as path, asyncio.timeout(30):
        stream = await client(path, Deadlines(idle=60.0, first=60.0) if hurried else QUICK).stream("/", b"{}", WORD)
        await stream.pour(take)
        with pytest.raises(EngineFailed, match="silent"):
            await anext(stream)
        stream.close()


async def test_events_that_drip_in_are_not_silence() -> None:
    for idle in (0.3, 1.5, 6.0):  # on a busy machine a third of it may become all of it
        with suppress(EngineFailed):
            assert await _dripped(idle) == ["a"] * 5
            return
    raise AssertionError("What dripped in was taken for silence each time.")


async def _dripped(idle: float) -> list[str]:
    heard = Heard()

    async def behave(reader: Reader, writer: Writer) -> None:
        await request(reader)
        writer.write(STREAM)
        for _ in range(5):
            writer.write(said("a"))
            await heard.next()
            with suppress(TimeoutError):
                async with asyncio.timeout(idle / 3):
                    await reader.read(1)
        writer.write(END)

    async with upstream(behave) as path, asyncio.timeout(30):
        stream = await client(path, Deadlines(idle=idle)).stream("/", b"{}", WORD)
        await stream.pour(heard)
        assert await rest(stream) == []
    return heard.words
