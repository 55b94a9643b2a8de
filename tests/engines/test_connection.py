"""How connections to an engine are kept, left, cancelled and given up."""

import asyncio
from contextlib import aclosing

import pytest
from msgspec import Struct
from msgspec.json import Decoder

from antiphon.engines.client import Client, Deadlines, Refused
from antiphon.engines.connection import TcpAddress
from antiphon.engines.http.probe_client import AT_ONCE
from antiphon.errors import EngineFailed, Unavailable
from tests.engines.http.stubs.chat_stub import DIALECTS, Stub, standing_in, tcp
from tests.engines.http.stubs.generation import ask, opened, work
from tests.engines.unix_server import END, STREAM, Reader, Writer, answer, event, request

pytestmark = pytest.mark.anyio


class Word(Struct):
    word: str


WORD = Decoder(Word)
HI = answer(b'{"word":"hi"}')


def client(port: int, keep: int = 4) -> Client:
    deadlines = Deadlines(connect=5.0, first=5.0, idle=5.0)
    return Client(TcpAddress("127.0.0.1", port), "The engine", deadlines, keep, host=f"127.0.0.1:{port}")


async def test_a_stream_whose_end_comes_late_leaves_a_connection_that_can_be_used_again() -> None:
    """The last event ends the stream; the last chunk of its body follows in a packet of its own."""
    connections = 0
    heard = asyncio.Event()

    async def behave(reader: Reader, writer: Writer) -> None:
        nonlocal connections
        connections += 1
        while True:
            await request(reader)
            writer.write(STREAM + event(b'{"word":"a"}') + event(b"[DONE]"))
            await heard.wait()
            writer.write(END)

    async with tcp(behave) as port, asyncio.timeout(30):
        engine = client(port)
        for _ in range(3):
            heard.clear()
            assert [words async for words in await engine.stream("/", b"{}", WORD)] == [[Word("a")]]
            heard.set()
            await engine_idle(engine)
        engine.close()
    assert connections == 1


async def engine_idle(engine: Client) -> None:
    while engine.busy:  # noqa: ASYNC110 - it says nothing when it is done
        await asyncio.sleep(0.001)


async def test_a_stream_whose_end_never_comes_is_left_with_its_connection() -> None:
    closed = asyncio.Event()

    async def behave(reader: Reader, writer: Writer) -> None:
        await request(reader)
        writer.write(STREAM + event(b'{"word":"a"}') + event(b"[DONE]"))
        await reader.read()
        closed.set()

    async with tcp(behave) as port, asyncio.timeout(30):
        engine = client(port)
        assert [words async for words in await engine.stream("/", b"{}", WORD)] == [[Word("a")]]
        await closed.wait()


async def test_no_more_connections_are_kept_than_allowed() -> None:
    open_now = 0
    together = asyncio.Barrier(6)

    async def behave(reader: Reader, writer: Writer) -> None:
        nonlocal open_now
        open_now += 1
        try:
            while True:
                await request(reader)
                await together.wait()
                writer.write(HI)
        finally:
            open_now -= 1

    async with tcp(behave) as port, asyncio.timeout(30):
        engine = client(port, keep=2)
        async with asyncio.TaskGroup() as group:
            for _ in range(6):
                group.create_task(engine.get("/", WORD))
        while open_now > 2:  # noqa: ASYNC110 - until the server has heard of it
            await asyncio.sleep(0.001)
        assert open_now == 2
        engine.close()


@pytest.mark.parametrize("more", [HI, b"nonsense", b"HTTP/1.1 200 OK\r\n"])
async def test_bytes_that_answer_nothing_make_a_connection_useless(more: bytes) -> None:
    """Neither what came with an answer nor what came after it may become the answer of the next request."""
    connections = 0

    async def behave(reader: Reader, writer: Writer) -> None:
        nonlocal connections
        connections += 1
        await request(reader)
        writer.write(answer(b'{"word":"%d"}' % connections) + more)
        await reader.read()

    async with tcp(behave) as port, asyncio.timeout(30):
        engine = client(port)
        assert [(await engine.get("/", WORD)).word for _ in range(3)] == ["1", "2", "3"]
        engine.close()


async def test_an_answer_may_end_with_its_connection() -> None:
    async def behave(reader: Reader, writer: Writer) -> None:
        asked = await request(reader)
        kind = b"text/event-stream" if asked.startswith(b"/stream") else b"application/json"
        body = b'data: {"word":"hi"}\n\n' if asked.startswith(b"/stream") else b'{"word":"hi"}'
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: " + kind + b"\r\nConnection: close\r\n\r\n" + body)

    async with tcp(behave) as port, asyncio.timeout(30):
        engine = client(port)
        assert await engine.get("/", WORD) == Word("hi")
        assert [words async for words in await engine.stream("/stream", b"{}", WORD)] == [[Word("hi")]]


async def test_an_announcement_is_not_the_answer() -> None:
    async def behave(reader: Reader, writer: Writer) -> None:
        for _ in range(2):
            await request(reader)
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            writer.write(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + HI)
        await reader.read()

    async with tcp(behave) as port, asyncio.timeout(30):
        engine = client(port)
        assert [await engine.post("/", b"{}", WORD) for _ in range(2)] == [Word("hi")] * 2
        engine.close()


@pytest.mark.parametrize(
    ("said", "seconds"), [("7", 7.0), ("0", 1.0), ("99999", 600.0), ("-1", None), ("soon", None), ("²", None)]
)
async def test_the_engines_wish_to_be_left_alone_is_heard_within_reason(said: str, seconds: float | None) -> None:
    async def behave(reader: Reader, writer: Writer) -> None:
        await request(reader)
        head = f"\r\nRetry-After: {said}\r\n\r\n".encode("latin-1")
        writer.write(answer(b"{}", "429 Too Many Requests").replace(b"\r\n\r\n", head, 1))

    async with tcp(behave) as port:
        with pytest.raises(Refused) as caught:
            await client(port).get("/", WORD)
        assert caught.value.retry_after == seconds


async def test_a_host_that_does_not_exist_is_unavailable() -> None:
    for host in ("no-such-host.invalid", "a" * 70 + ".example", ".."):
        engine = Client(TcpAddress(host, 1), "The engine", Deadlines(connect=2.0))
        with pytest.raises((Unavailable, EngineFailed)):
            await engine.get("/", WORD)


@pytest.mark.parametrize("name", DIALECTS)
@pytest.mark.shows("C.28")
async def test_closing_an_answer_ends_the_engines_work_at_once(name: str) -> None:
    async with standing_in(name) as stub, opened(stub.url) as engine:
        for heard in (0, 1):
            gate = stub.engine.holds(after=heard)
            async with asyncio.timeout(30), aclosing(engine.generate(work())) as lists:
                if heard:
                    assert (await anext(lists))[0].text
                else:
                    waiting = asyncio.ensure_future(anext(lists))
                    await gate.reached.wait()
                    waiting.cancel()
                    await asyncio.wait([waiting])
            gate.open()
            async with asyncio.timeout(30):
                while stub.engine.running:  # noqa: ASYNC110 - likewise
                    await asyncio.sleep(0.001)
            assert stub.engine.cancelled == heard + 1


async def test_many_answers_at_once_share_connections_and_get_their_own_words() -> None:
    stub = Stub(DIALECTS["vllm"])
    connections = 0

    async def counted(reader: Reader, writer: Writer) -> None:
        nonlocal connections
        connections += 1
        await stub.serve(reader, writer)

    async with tcp(counted) as port, opened(f"vllm://127.0.0.1:{port}") as engine:
        for _ in range(3):
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(ask(engine, work(max_tokens=number + 1))) for number in range(20)]
            assert [len(task.result().chunks) for task in tasks] == [min(number, 2) + 2 for number in range(20)]
        assert connections <= 20 + AT_ONCE  # the others ask the engine about itself
