"""The engine client: requests, reuse of connections, streams and errors, and that every wait is bounded."""

import asyncio
from itertools import count, pairwise
from socket import gaierror
from ssl import SSLError

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.json import Decoder

from antiphon.engines.client import (
    MAX_BODY_BYTES,
    MAX_EVENT_BYTES,
    EngineClient,
    EngineHttpError,
    EngineTimeouts,
    EventDecoder,
    EventSplitter,
    EventStream,
)
from antiphon.engines.connection import MAX_UNREAD_BYTES, EngineConnection, UnixAddress
from antiphon.errors import EngineFailed, Unavailable
from tests.engines.unix_server import END, STREAM, http_chunk, json_response, read_request, sse_event, upstream
from tests.support.local_servers import Reader, Writer

pytestmark = pytest.mark.anyio


class Word(Struct):
    word: str


WORD = Decoder(Word)
SHORT_TIMEOUTS = EngineTimeouts(connect=0.3, first_byte=0.3, idle=0.3)


def make_client(path: str, timeouts: EngineTimeouts | None = None) -> EngineClient:
    return EngineClient(UnixAddress(path), "The engine", timeouts)


async def test_a_call_sends_json_and_decodes_the_response() -> None:
    seen: list[bytes] = []

    async def behave(reader: Reader, writer: Writer) -> None:
        seen.append(await read_request(reader))
        writer.write(json_response(b'{"word":"hi","more":1}'))

    async with upstream(behave) as path:
        assert await make_client(path).post("/say", b"{}", WORD) == Word("hi")
    assert seen == [b"/say {}"]


async def test_a_large_body_is_sent_without_a_copy() -> None:
    body, lengths = b'"%b"' % (b"x" * 3_000_000), list[int]()

    async def behave(reader: Reader, writer: Writer) -> None:
        lengths.append(len(await read_request(reader)))
        writer.write(json_response(b'{"word":"hi"}'))

    async with upstream(behave) as path:
        client = make_client(path)
        assert client.build_request("/say", body)[-1] is body
        assert len(client.build_request("/say", b"{}")) == 1  # one write, one packet
        assert await client.post("/say", body, WORD) == Word("hi")
    assert lengths == [len(b"/say ") + len(body)]


async def test_an_unstreamed_response_is_awaited_while_the_wait_policy_allows() -> None:
    decisions = [True, True, False]

    async def behave(reader: Reader, writer: Writer) -> None:
        await read_request(reader)
        await reader.read()

    async with upstream(behave) as path, asyncio.timeout(30):
        engine = make_client(path, EngineTimeouts(first_byte=0.02))
        with pytest.raises(EngineFailed, match="did not answer in time"):
            await engine.send(engine.build_request("/say", b"{}"), MAX_BODY_BYTES, lambda _: decisions.pop(0))
    assert not decisions


async def test_send_returns_the_connection_if_the_engine_streams() -> None:
    async def behave(reader: Reader, writer: Writer) -> None:
        await read_request(reader)
        writer.write(STREAM + sse_event(b'{"word":"a"}') + sse_event(b'{"word":"b"}') + END)

    async with upstream(behave) as path:
        engine = make_client(path)
        connection = await engine.send(engine.build_request("/say", b"{}"), MAX_BODY_BYTES)
        assert isinstance(connection, EngineConnection)
        assert [item.word async for batch in EventStream(engine, connection, WORD) for item in batch] == ["a", "b"]


@pytest.mark.parametrize("name", [b"content-type", b"CONTENT-TYPE", b"Content-type"])
async def test_the_content_type_of_a_stream_is_case_insensitive(name: bytes) -> None:
    async def behave(reader: Reader, writer: Writer) -> None:
        await read_request(reader)
        head = STREAM.replace(b"Content-Type: text/event-stream", name + b": Text/Event-Stream; charset=utf-8")
        writer.write(head + sse_event(b'{"word":"a"}') + END)

    async with upstream(behave) as path:
        assert [batch async for batch in await make_client(path).post_stream("/", b"{}", WORD)] == [[Word("a")]]


async def test_a_connection_is_reused() -> None:
    connections = 0

    async def behave(reader: Reader, writer: Writer) -> None:
        nonlocal connections
        connections += 1
        while True:
            if (await read_request(reader)).startswith(b"/stream"):
                writer.write(STREAM + sse_event(b'{"word":"a"}') + END)
            else:
                writer.write(json_response(b'{"word":"hi"}'))

    async with upstream(behave) as path:
        engine = make_client(path)
        for _ in range(3):
            await engine.get("/say", WORD)
            assert [batch async for batch in await engine.post_stream("/stream", b"{}", WORD)] == [[Word("a")]]
        engine.close()
    assert connections == 1


async def test_an_idle_connection_closed_by_the_engine_is_replaced() -> None:
    async def behave(reader: Reader, writer: Writer) -> None:
        await read_request(reader)
        writer.write(json_response(b'{"word":"hi"}'))
        await writer.drain()
        await reader.read(1)  # the second request: close the connection without a response

    async with upstream(behave) as path:
        engine = make_client(path)
        assert await engine.get("/say", WORD) == Word("hi")
        assert await engine.get("/say", WORD) == Word("hi")
        engine.close()


async def test_a_connection_that_the_engine_will_close_is_not_reused() -> None:
    async def behave(reader: Reader, writer: Writer) -> None:
        await read_request(reader)
        writer.write(json_response(b'{"word":"hi"}').replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1))
        await reader.read()

    async with upstream(behave) as path:
        engine = make_client(path)
        assert [await engine.get("/say", WORD) for _ in range(2)] == [Word("hi"), Word("hi")]
        engine.close()


async def test_events_of_one_read_are_returned_in_one_list() -> None:
    go_on = asyncio.Event()

    async def behave(reader: Reader, writer: Writer) -> None:
        await read_request(reader)
        writer.write(STREAM + b"".join(sse_event(b'{"word":"%d"}' % number) for number in range(50)))
        await go_on.wait()
        writer.write(sse_event(b'{"word":"last"}') + sse_event(b"[DONE]") + END)

    async with upstream(behave) as path:
        stream = await make_client(path).post_stream("/", b"{}", WORD)
        assert [item.word for item in await anext(stream)] == [str(number) for number in range(50)]
        go_on.set()
        assert [batch async for batch in stream] == [[Word("last")]]


async def test_an_error_status_raises_an_error_with_the_body() -> None:
    async def behave(reader: Reader, writer: Writer) -> None:
        await read_request(reader)
        writer.write(json_response(b'{"error":{}}', "400 Bad Request"))

    async with upstream(behave) as path:
        for method in (make_client(path).post_stream, make_client(path).post):
            with pytest.raises(EngineHttpError, match="The engine returned HTTP status 400") as caught:
                await method("/", b"{}", WORD)
            assert (caught.value.status_code, caught.value.body) == (400, b'{"error":{}}')


def test_the_error_of_a_redirect_says_that_redirects_are_not_followed() -> None:
    assert (
        str(EngineHttpError("The engine", 308, b""))
        == "The engine returned HTTP status 308; redirects are not followed."
    )


@pytest.mark.shows("C.28", "H.19")
async def test_an_engine_without_a_socket_is_unavailable() -> None:
    with pytest.raises(Unavailable, match=r"The engine cannot be reached: the socket does not exist\."):
        await make_client("/nowhere/s").get("/", WORD)


CONNECT_ERRORS = [
    (ConnectionRefusedError(111, "Connect call failed ('10.0.0.7', 8000)"), ": the connection was refused"),
    (TimeoutError(), ": the connection attempt timed out"),
    (gaierror(-2, "Name or service not known"), ": its host name cannot be resolved"),
    (SSLError(1, "[SSL: WRONG_VERSION_NUMBER]"), ": the TLS handshake failed"),
    (OSError("Multiple exceptions: ('10.0.0.7', 8000)"), ""),
    (UnicodeError("label too long"), ""),
]


@pytest.mark.parametrize(("error", "reason"), CONNECT_ERRORS, ids=lambda one: type(one).__name__)
async def test_a_connect_error_gives_the_reason_without_the_address(error: Exception, reason: str) -> None:
    class UnreachableAddress:
        async def connect(self, label: str) -> EngineConnection:
            raise error

    with pytest.raises(Unavailable) as caught:
        await EngineClient(UnreachableAddress(), "The engine").get("/", WORD)
    assert str(caught.value) == f"The engine cannot be reached{reason}."


@pytest.mark.shows("C.28")
async def test_an_engine_that_does_not_respond_times_out() -> None:
    async def behave(reader: Reader, writer: Writer) -> None:
        await reader.read()

    async with upstream(behave) as path:
        async with asyncio.timeout(30):
            with pytest.raises(EngineFailed, match="did not answer in time"):
                await make_client(path, SHORT_TIMEOUTS).post_stream("/", b"{}", WORD)


@pytest.mark.shows("C.28")
async def test_an_engine_that_stops_sending_times_out() -> None:
    for idle in (0.3, 1.0, 5.0):  # a busy machine may exceed a short timeout between two events
        received = await _read_until_timeout(idle)
        if len(received) == 3:
            break
    assert len(received) == 3


async def _read_until_timeout(idle: float) -> list[Word]:
    async def behave(reader: Reader, writer: Writer) -> None:
        await read_request(reader)
        writer.write(STREAM)
        for _ in range(3):  # each event restarts the timeout
            writer.write(sse_event(b'{"word":"a"}'))
            await asyncio.sleep(idle / 2)
        await reader.read()

    async def read_all(path: str) -> None:
        async for batch in await make_client(path, EngineTimeouts(idle=idle)).post_stream("/", b"{}", WORD):
            received.extend(batch)

    received: list[Word] = []
    async with upstream(behave) as path, asyncio.timeout(30):
        with pytest.raises(EngineFailed, match="stopped sending in the middle of its response"):
            await read_all(path)
    return received


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "The engine closed the connection"),
        (b"HTTP/1.1 200 OK\r\nContent-", "closed the connection in the middle"),
        (STREAM + sse_event(b'{"word":"a"}'), "closed the connection in the middle"),
        (STREAM + b"40\r\ndata: {", "closed the connection in the middle"),
        (b"SSH-2.0-OpenSSH_9.7\r\n", "sent invalid HTTP"),
        (STREAM + b"zz\r\n", "sent invalid HTTP"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20_000, "headers that exceed the size limit"),
        (json_response(b'{"word":"a"}'), "did not respond with an event stream"),
        (STREAM + sse_event(b'{"word":1}') + END, "sent an event that cannot be decoded"),
        (STREAM + sse_event(b"{") + END, "sent an event that cannot be decoded"),
        (STREAM + http_chunk(b"data: " + b"x" * (MAX_EVENT_BYTES + 1)), "an event that exceeds the size limit"),
    ],
)
@pytest.mark.shows("C.28")
async def test_a_malformed_response_raises_an_engine_error(data: bytes, message: str) -> None:
    async def behave(reader: Reader, writer: Writer) -> None:
        await read_request(reader)
        writer.write(data)

    async with upstream(behave) as path, asyncio.timeout(30):
        with pytest.raises(EngineFailed, match=message):
            async for _ in await make_client(path).post_stream("/", b"{}", WORD):
                pass


async def test_closing_a_stream_closes_the_connection_at_once() -> None:
    closed = asyncio.Event()

    async def behave(reader: Reader, writer: Writer) -> None:
        await read_request(reader)
        writer.write(STREAM + sse_event(b'{"word":"a"}'))
        await reader.read()
        closed.set()

    async with upstream(behave) as path, asyncio.timeout(30):
        stream = await make_client(path).post_stream("/", b"{}", WORD)
        await anext(stream)
        stream.close()
        await closed.wait()
        assert [batch async for batch in stream] == []


@pytest.mark.parametrize("data", [b"", STREAM], ids=["before the response", "after its head"])
async def test_a_cancelled_wait_closes_the_connection_at_once(data: bytes) -> None:
    requested, closed = asyncio.Event(), asyncio.Event()

    async def behave(reader: Reader, writer: Writer) -> None:
        await read_request(reader)
        writer.write(data)
        requested.set()
        await reader.read()
        closed.set()

    async def read_event(path: str) -> None:
        stream = await make_client(path).post_stream("/", b"{}", WORD)
        try:
            await anext(stream)
        finally:
            stream.close()

    async with upstream(behave) as path, asyncio.timeout(30):
        async with asyncio.TaskGroup() as group:
            task = group.create_task(read_event(path))
            await requested.wait()
            task.cancel()
        await closed.wait()


async def test_closing_the_client_ends_open_streams() -> None:
    async def behave(reader: Reader, writer: Writer) -> None:
        await read_request(reader)
        writer.write(STREAM + sse_event(b'{"word":"a"}'))
        await reader.read()

    async with upstream(behave) as path, asyncio.timeout(30):
        engine = make_client(path)
        stream = await engine.post_stream("/", b"{}", WORD)
        await anext(stream)
        engine.close()
        with pytest.raises(EngineFailed, match="closed the connection"):
            await anext(stream)


async def test_unread_events_pause_the_reading() -> None:
    """The client and the kernel buffer a bounded part of an endless response; reading resumes as events are taken."""
    one = sse_event(b'{"word":"%s"}' % (b"x" * 1000))
    sent = 0

    async def behave(reader: Reader, writer: Writer) -> None:
        nonlocal sent
        await read_request(reader)
        writer.write(STREAM)
        while True:
            writer.write(one)
            await writer.drain()
            sent += len(one)

    async with upstream(behave) as path, asyncio.timeout(30):
        stream = await make_client(path).post_stream("/", b"{}", WORD)
        before = -1
        while sent != before:  # until the sender stalls
            before = sent
            for _ in range(200):
                await asyncio.sleep(0)
        assert sent < 4 * MAX_UNREAD_BYTES
        while sent < 16 * MAX_UNREAD_BYTES:
            await anext(stream)
        stream.close()


@pytest.mark.parametrize("endless", [b"X-%d: y\r\n", b"%d"], ids=["many", "one"])
async def test_endless_trailers_are_not_buffered(endless: bytes) -> None:
    sent = 0

    async def behave(reader: Reader, writer: Writer) -> None:
        nonlocal sent
        await read_request(reader)
        writer.write(STREAM + sse_event(b'{"word":"a"}') + b"0\r\nX: ")
        for number in count():
            one = (endless % number) * 100
            writer.write(one)
            await writer.drain()
            sent += len(one)

    async with upstream(behave) as path, asyncio.timeout(30):
        stream = await make_client(path, SHORT_TIMEOUTS).post_stream("/", b"{}", WORD)
        assert await anext(stream) == [Word("a")]
        with pytest.raises(EngineFailed, match="stopped sending in the middle of its response"):
            await anext(stream)
        stream.close()
    assert sent < 8 * MAX_UNREAD_BYTES


EVENTS = [b'{"a":1}', b"x\xc3\xa9", b"2"]
SSE_BYTES = b'data: {"a":1}\n\n: a comment\n\nevent: e\nid: 4\ndata: x\xc3\xa9\n\ndata:2\n\ndata: [DONE]\n\ndata: 3\n\n'


@given(cuts=st.lists(st.integers(0, 100)), returns=st.booleans())
async def test_events_do_not_depend_on_where_the_bytes_are_split(cuts: list[int], returns: bool) -> None:
    sse_bytes = SSE_BYTES.replace(b"\n", b"\r\n") if returns else SSE_BYTES
    splitter = EventSplitter()
    bounds = [0, *sorted(cut for cut in cuts if cut < len(sse_bytes)), len(sse_bytes)]
    found = [splitter.feed(sse_bytes[begin:end]) for begin, end in pairwise(bounds)]
    assert [data for events in found for data in events] == EVENTS


EVENT_TEXTS = [
    b"1",
    b"[DONE]",
    b'{"a":"data: x"}',
    b"data: 1",
    b"12data: [DONE]",
    b'"\xc3\xa9"',
    b" 1 ",
    b"1\n2",
    b"1\n\n2",
]
EVENT_BLOCKS = [*(b"data: %b\n\n" % text for text in EVENT_TEXTS), b"\n\n", b": a comment\n\n", b"data:1\r\n\r\n"]


def decode_events(*pieces: bytes) -> tuple[list[object], str]:
    """Return the events of a stream up to its end or its fault, and which of the two was first."""
    decoder, events = EventDecoder("The engine", Decoder(object)), list[object]()
    for piece in pieces:
        if not decoder.done and decoder.fault is None:
            events += decoder.decode(piece)
    return events, "fault" if decoder.fault is not None else "end" if decoder.done else "open"


@given(blocks=st.lists(st.sampled_from(EVENT_BLOCKS), min_size=1), cuts=st.lists(st.integers(1, 100)))
async def test_events_of_one_line_are_decoded_like_others(blocks: list[bytes], cuts: list[int]) -> None:
    sse_bytes = b"".join(blocks)
    bounds = [0, *sorted({cut for cut in cuts if cut < len(sse_bytes)}), len(sse_bytes)]
    events = decode_events(b": the events are split one by one\n\n" + sse_bytes)
    assert decode_events(sse_bytes) == events
    assert decode_events(*[sse_bytes[begin:end] for begin, end in pairwise(bounds)]) == events


def test_a_last_event_without_a_blank_line_is_not_lost() -> None:
    splitter = EventSplitter()
    assert splitter.feed(b"data: 1\n\ndata: a\ndata: b\n") == [b"1"]
    assert splitter.finish() == [b"a\nb"]
    assert splitter.finish() == []
