"""The engine client: what it hands over, what it keeps, and that nothing makes it wait for ever."""

import asyncio
from itertools import count, pairwise
from socket import gaierror
from ssl import SSLError

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.json import Decoder

from antiphon.engines.client import MAX_BODY_BYTES, Client, Deadlines, EventStream, Refused, UnixAddress
from antiphon.engines.connection import MAX_UNREAD_BYTES, Connection
from antiphon.engines.sse import MAX_EVENT_BYTES, EventSplitter
from antiphon.errors import EngineFailed, Unavailable
from tests.engines.unix_server import END, STREAM, Reader, Writer, answer, event, piece, request, upstream

pytestmark = pytest.mark.anyio


class Word(Struct):
    word: str


WORD = Decoder(Word)
QUICK = Deadlines(connect=0.3, first=0.3, idle=0.3)


def client(path: str, deadlines: Deadlines | None = None) -> Client:
    return Client(UnixAddress(path), "The engine", deadlines)


async def test_a_call_sends_json_and_decodes_the_answer() -> None:
    seen: list[bytes] = []

    async def behave(reader: Reader, writer: Writer) -> None:
        seen.append(await request(reader))
        writer.write(answer(b'{"word":"hi","more":1}'))

    async with upstream(behave) as path:
        assert await client(path).post("/say", b"{}", WORD) == Word("hi")
    assert seen == [b"/say {}"]


async def test_an_answer_in_one_piece_is_waited_for_while_there_is_hope() -> None:
    hopes = [True, True, False]

    async def behave(reader: Reader, writer: Writer) -> None:
        await request(reader)
        await reader.read()

    async with upstream(behave) as path, asyncio.timeout(30):
        engine = client(path, Deadlines(first=0.02))
        with pytest.raises(EngineFailed, match="did not answer in time"):
            await engine.ask(engine.request("/say", b"{}"), MAX_BODY_BYTES, lambda _: hopes.pop(0))
    assert not hopes


async def test_who_asks_for_one_piece_and_is_given_a_stream_gets_that() -> None:
    async def behave(reader: Reader, writer: Writer) -> None:
        await request(reader)
        writer.write(STREAM + event(b'{"word":"a"}') + event(b'{"word":"b"}') + END)

    async with upstream(behave) as path:
        engine = client(path)
        said = await engine.ask(engine.request("/say", b"{}"), MAX_BODY_BYTES)
        assert isinstance(said, Connection)
        assert [word.word async for words in EventStream(engine, said, WORD) for word in words] == ["a", "b"]


@pytest.mark.parametrize("name", [b"content-type", b"CONTENT-TYPE", b"Content-type"])
async def test_a_stream_is_known_as_one_however_that_is_spelled(name: bytes) -> None:
    async def behave(reader: Reader, writer: Writer) -> None:
        await request(reader)
        head = STREAM.replace(b"Content-Type: text/event-stream", name + b": Text/Event-Stream; charset=utf-8")
        writer.write(head + event(b'{"word":"a"}') + END)

    async with upstream(behave) as path:
        assert [words async for words in await client(path).stream("/", b"{}", WORD)] == [[Word("a")]]


async def test_a_connection_is_used_again() -> None:
    connections = 0

    async def behave(reader: Reader, writer: Writer) -> None:
        nonlocal connections
        connections += 1
        while True:
            if (await request(reader)).startswith(b"/stream"):
                writer.write(STREAM + event(b'{"word":"a"}') + END)
            else:
                writer.write(answer(b'{"word":"hi"}'))

    async with upstream(behave) as path:
        engine = client(path)
        for _ in range(3):
            await engine.get("/say", WORD)
            assert [words async for words in await engine.stream("/stream", b"{}", WORD)] == [[Word("a")]]
        engine.close()
    assert connections == 1


async def test_a_kept_connection_that_was_closed_meanwhile_is_replaced() -> None:
    async def behave(reader: Reader, writer: Writer) -> None:
        await request(reader)
        writer.write(answer(b'{"word":"hi"}'))
        await writer.drain()
        await reader.read(1)  # the second request: hang up without a word

    async with upstream(behave) as path:
        engine = client(path)
        assert await engine.get("/say", WORD) == Word("hi")
        assert await engine.get("/say", WORD) == Word("hi")
        engine.close()


async def test_a_connection_that_the_engine_will_close_is_not_kept() -> None:
    async def behave(reader: Reader, writer: Writer) -> None:
        await request(reader)
        writer.write(answer(b'{"word":"hi"}').replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1))
        await reader.read()

    async with upstream(behave) as path:
        engine = client(path)
        assert [await engine.get("/say", WORD) for _ in range(2)] == [Word("hi"), Word("hi")]
        engine.close()


async def test_what_came_in_one_read_comes_in_one_list() -> None:
    go_on = asyncio.Event()

    async def behave(reader: Reader, writer: Writer) -> None:
        await request(reader)
        writer.write(STREAM + b"".join(event(b'{"word":"%d"}' % number) for number in range(50)))
        await go_on.wait()
        writer.write(event(b'{"word":"last"}') + event(b"[DONE]") + END)

    async with upstream(behave) as path:
        stream = await client(path).stream("/", b"{}", WORD)
        assert [word.word for word in await anext(stream)] == [str(number) for number in range(50)]
        go_on.set()
        assert [words async for words in stream] == [[Word("last")]]


async def test_an_answer_that_is_no_success_is_refused_with_its_body() -> None:
    async def behave(reader: Reader, writer: Writer) -> None:
        await request(reader)
        writer.write(answer(b'{"error":{}}', "400 Bad Request"))

    async with upstream(behave) as path:
        for ask in (client(path).stream, client(path).post):
            with pytest.raises(Refused, match="The engine refused with HTTP status 400") as caught:
                await ask("/", b"{}", WORD)
            assert (caught.value.answered, caught.value.body) == (400, b'{"error":{}}')


def test_of_a_redirect_it_is_said_that_none_is_followed() -> None:
    assert (
        str(Refused("The engine", 308, b"")) == "The engine refused with HTTP status 308, and no redirect is followed."
    )


@pytest.mark.shows("C.28", "H.19")
async def test_an_engine_that_is_not_there_is_unavailable() -> None:
    with pytest.raises(Unavailable, match=r"The engine cannot be reached: there is no such socket\."):
        await client("/nowhere/s").get("/", WORD)


WHY = [
    (ConnectionRefusedError(111, "Connect call failed ('10.0.0.7', 8000)"), ": nobody listens there"),
    (TimeoutError(), ": it does not answer"),
    (gaierror(-2, "Name or service not known"), ": its name is not known"),
    (SSLError(1, "[SSL: WRONG_VERSION_NUMBER]"), ": it does not speak TLS as we do"),
    (OSError("Multiple exceptions: ('10.0.0.7', 8000)"), ""),
    (UnicodeError("label too long"), ""),
]


@pytest.mark.parametrize(("error", "why"), WHY, ids=lambda one: type(one).__name__)
async def test_why_an_engine_cannot_be_reached_is_said_without_its_address(error: Exception, why: str) -> None:
    class Nowhere:
        async def connect(self, who: str) -> Connection:
            raise error

    with pytest.raises(Unavailable) as caught:
        await Client(Nowhere(), "The engine").get("/", WORD)
    assert str(caught.value) == f"The engine cannot be reached{why}."


@pytest.mark.shows("C.28")
async def test_an_engine_that_does_not_answer_fails_in_time() -> None:
    async def behave(reader: Reader, writer: Writer) -> None:
        await reader.read()

    async with upstream(behave) as path:
        async with asyncio.timeout(30):
            with pytest.raises(EngineFailed, match="did not answer in time"):
                await client(path, QUICK).stream("/", b"{}", WORD)


@pytest.mark.shows("C.28")
async def test_an_engine_that_falls_silent_fails_in_time() -> None:
    for idle in (0.3, 1.0, 5.0):  # on a busy machine it may seem silent where it is not
        heard = await _heard_before_silence(idle)
        if len(heard) == 3:
            break
    assert len(heard) == 3


async def _heard_before_silence(idle: float) -> list[Word]:
    async def behave(reader: Reader, writer: Writer) -> None:
        await request(reader)
        writer.write(STREAM)
        for _ in range(3):  # each of them buys more time
            writer.write(event(b'{"word":"a"}'))
            await asyncio.sleep(idle / 2)
        await reader.read()

    async def listen(path: str) -> None:
        async for words in await client(path, Deadlines(idle=idle)).stream("/", b"{}", WORD):
            heard.extend(words)

    heard: list[Word] = []
    async with upstream(behave) as path, asyncio.timeout(30):
        with pytest.raises(EngineFailed, match="went silent in the middle of its answer"):
            await listen(path)
    return heard


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (b"", "The engine hung up"),
        (b"HTTP/1.1 200 OK\r\nContent-", "hung up in the middle"),
        (STREAM + event(b'{"word":"a"}'), "hung up in the middle"),
        (STREAM + b"40\r\ndata: {", "hung up in the middle"),
        (b"SSH-2.0-OpenSSH_9.7\r\n", "does not speak HTTP"),
        (STREAM + b"zz\r\n", "does not speak HTTP"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20_000, "headers without an end"),
        (answer(b'{"word":"a"}'), "without a stream of events"),
        (STREAM + event(b'{"word":1}') + END, "sent an event that cannot be read"),
        (STREAM + event(b"{") + END, "sent an event that cannot be read"),
        (STREAM + piece(b"data: " + b"x" * (MAX_EVENT_BYTES + 1)), "an event without an end"),
    ],
)
@pytest.mark.shows("C.28")
async def test_an_engine_that_babbles_fails(said: bytes, sentence: str) -> None:
    async def behave(reader: Reader, writer: Writer) -> None:
        await request(reader)
        writer.write(said)

    async with upstream(behave) as path, asyncio.timeout(30):
        with pytest.raises(EngineFailed, match=sentence):
            async for _ in await client(path).stream("/", b"{}", WORD):
                pass


async def test_closing_a_stream_closes_the_connection_at_once() -> None:
    closed = asyncio.Event()

    async def behave(reader: Reader, writer: Writer) -> None:
        await request(reader)
        writer.write(STREAM + event(b'{"word":"a"}'))
        await reader.read()
        closed.set()

    async with upstream(behave) as path, asyncio.timeout(30):
        stream = await client(path).stream("/", b"{}", WORD)
        await anext(stream)
        stream.close()
        await closed.wait()
        assert [words async for words in stream] == []


@pytest.mark.parametrize("said", [b"", STREAM], ids=["before the answer", "after its head"])
async def test_a_cancelled_wait_closes_the_connection_at_once(said: bytes) -> None:
    asked, closed = asyncio.Event(), asyncio.Event()

    async def behave(reader: Reader, writer: Writer) -> None:
        await request(reader)
        writer.write(said)
        asked.set()
        await reader.read()
        closed.set()

    async def ask(path: str) -> None:
        stream = await client(path).stream("/", b"{}", WORD)
        try:
            await anext(stream)
        finally:
            stream.close()

    async with upstream(behave) as path, asyncio.timeout(30):
        async with asyncio.TaskGroup() as group:
            task = group.create_task(ask(path))
            await asked.wait()
            task.cancel()
        await closed.wait()


async def test_closing_the_client_ends_what_is_under_way() -> None:
    async def behave(reader: Reader, writer: Writer) -> None:
        await request(reader)
        writer.write(STREAM + event(b'{"word":"a"}'))
        await reader.read()

    async with upstream(behave) as path, asyncio.timeout(30):
        engine = client(path)
        stream = await engine.stream("/", b"{}", WORD)
        await anext(stream)
        engine.close()
        with pytest.raises(EngineFailed, match="hung up"):
            await anext(stream)


async def test_events_that_nobody_takes_stop_the_reading() -> None:
    """What the client and the kernel hold of an endless answer is bounded; what is taken flows on."""
    one = event(b'{"word":"%s"}' % (b"x" * 1000))
    sent = 0

    async def behave(reader: Reader, writer: Writer) -> None:
        nonlocal sent
        await request(reader)
        writer.write(STREAM)
        while True:
            writer.write(one)
            await writer.drain()
            sent += len(one)

    async with upstream(behave) as path, asyncio.timeout(30):
        stream = await client(path).stream("/", b"{}", WORD)
        before = -1
        while sent != before:  # until it stands still
            before = sent
            for _ in range(200):
                await asyncio.sleep(0)
        assert sent < 4 * MAX_UNREAD_BYTES
        while sent < 16 * MAX_UNREAD_BYTES:
            await anext(stream)
        stream.close()


@pytest.mark.parametrize("endless", [b"X-%d: y\r\n", b"%d"], ids=["many", "one"])
async def test_headers_after_an_answer_that_have_no_end_are_not_kept(endless: bytes) -> None:
    sent = 0

    async def behave(reader: Reader, writer: Writer) -> None:
        nonlocal sent
        await request(reader)
        writer.write(STREAM + event(b'{"word":"a"}') + b"0\r\nX: ")
        for number in count():
            one = (endless % number) * 100
            writer.write(one)
            await writer.drain()
            sent += len(one)

    async with upstream(behave) as path, asyncio.timeout(30):
        stream = await client(path, QUICK).stream("/", b"{}", WORD)
        assert await anext(stream) == [Word("a")]
        with pytest.raises(EngineFailed, match="went silent in the middle of its answer"):
            await anext(stream)
        stream.close()
    assert sent < 8 * MAX_UNREAD_BYTES


EVENTS = [b'{"a":1}', b"x\xc3\xa9", b"2"]
WIRE = b'data: {"a":1}\n\n: a comment\n\nevent: e\nid: 4\ndata: x\xc3\xa9\n\ndata:2\n\ndata: [DONE]\n\ndata: 3\n\n'


@given(cuts=st.lists(st.integers(0, 100)), returns=st.booleans())
async def test_cutting_the_bytes_elsewhere_gives_the_same_events(cuts: list[int], returns: bool) -> None:
    wire = WIRE.replace(b"\n", b"\r\n") if returns else WIRE
    splitter = EventSplitter()
    places = [0, *sorted(cut for cut in cuts if cut < len(wire)), len(wire)]
    found = [splitter.feed(wire[begin:end]) for begin, end in pairwise(places)]
    assert [data for events in found for data in events] == EVENTS


def test_a_last_event_without_its_empty_line_is_not_lost() -> None:
    splitter = EventSplitter()
    assert splitter.feed(b"data: 1\n\ndata: a\ndata: b\n") == [b"1"]
    assert splitter.finish() == [b"a\nb"]
    assert splitter.finish() == []
