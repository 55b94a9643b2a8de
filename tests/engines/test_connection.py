"""Connections to an engine: reuse, draining, cancellation and closing."""

import asyncio
from contextlib import aclosing

import pytest
from msgspec import Struct
from msgspec.json import Decoder

from antiphon.engines.client import EngineClient, EngineHttpError, EngineTimeouts
from antiphon.engines.connection import TcpAddress
from antiphon.engines.http.health_monitor import MAX_CONCURRENT
from antiphon.errors import EngineFailed, Unavailable
from tests.engines.http.stubs.chat_stub import EngineStub, run_stub
from tests.engines.http.stubs.dialects import DIALECTS
from tests.engines.http.stubs.generation import make_request, open_engine, run_generation
from tests.engines.unix_server import END, STREAM, json_response, read_request, sse_event
from tests.support.local_servers import Reader, Writer, serve_tcp

pytestmark = pytest.mark.anyio


class Word(Struct):
    word: str


WORD = Decoder(Word)
HI = json_response(b'{"word":"hi"}')


def make_client(port: int, max_idle: int = 4) -> EngineClient:
    timeouts = EngineTimeouts(connect=5.0, first_byte=5.0, idle=5.0)
    return EngineClient(TcpAddress("127.0.0.1", port), "The engine", timeouts, max_idle, host=f"127.0.0.1:{port}")


async def test_a_stream_whose_last_chunk_arrives_late_leaves_a_reusable_connection() -> None:
    """The last event ends the stream; the last chunk of the body follows in its own packet."""
    connections = 0
    received = asyncio.Event()

    async def behave(reader: Reader, writer: Writer) -> None:
        nonlocal connections
        connections += 1
        while True:
            await read_request(reader)
            writer.write(STREAM + sse_event(b'{"word":"a"}') + sse_event(b"[DONE]"))
            await received.wait()
            writer.write(END)

    async with serve_tcp(behave) as port, asyncio.timeout(30):
        engine = make_client(port)
        for _ in range(3):
            received.clear()
            assert [batch async for batch in await engine.post_stream("/", b"{}", WORD)] == [[Word("a")]]
            received.set()
            await wait_until_idle(engine)
        engine.close()
    assert connections == 1


async def wait_until_idle(engine: EngineClient) -> None:
    while len(engine._connections) > len(engine._idle):  # noqa: ASYNC110 - the client has no event for it
        await asyncio.sleep(0.001)


async def test_a_stream_whose_last_chunk_never_arrives_closes_its_connection() -> None:
    closed = asyncio.Event()

    async def behave(reader: Reader, writer: Writer) -> None:
        await read_request(reader)
        writer.write(STREAM + sse_event(b'{"word":"a"}') + sse_event(b"[DONE]"))
        await reader.read()
        closed.set()

    async with serve_tcp(behave) as port, asyncio.timeout(30):
        engine = make_client(port)
        assert [batch async for batch in await engine.post_stream("/", b"{}", WORD)] == [[Word("a")]]
        await closed.wait()


async def test_the_number_of_idle_connections_is_limited() -> None:
    open_now = 0
    together = asyncio.Barrier(6)

    async def behave(reader: Reader, writer: Writer) -> None:
        nonlocal open_now
        open_now += 1
        try:
            while True:
                await read_request(reader)
                await together.wait()
                writer.write(HI)
        finally:
            open_now -= 1

    async with serve_tcp(behave) as port, asyncio.timeout(30):
        engine = make_client(port, max_idle=2)
        async with asyncio.TaskGroup() as group:
            for _ in range(6):
                group.create_task(engine.get("/", WORD))
        while open_now > 2:  # noqa: ASYNC110 - until the server has noticed the closed connections
            await asyncio.sleep(0.001)
        assert open_now == 2
        engine.close()


@pytest.mark.parametrize("more", [HI, b"nonsense", b"HTTP/1.1 200 OK\r\n"])
async def test_unexpected_bytes_after_a_response_discard_the_connection(more: bytes) -> None:
    """Bytes after a response, in the same packet or later, must not be taken as the response to the next request."""
    connections = 0

    async def behave(reader: Reader, writer: Writer) -> None:
        nonlocal connections
        connections += 1
        await read_request(reader)
        writer.write(json_response(b'{"word":"%d"}' % connections) + more)
        await reader.read()

    async with serve_tcp(behave) as port, asyncio.timeout(30):
        engine = make_client(port)
        assert [(await engine.get("/", WORD)).word for _ in range(3)] == ["1", "2", "3"]
        engine.close()


async def test_a_response_may_end_with_its_connection() -> None:
    async def behave(reader: Reader, writer: Writer) -> None:
        received = await read_request(reader)
        kind = b"text/event-stream" if received.startswith(b"/stream") else b"application/json"
        body = b'data: {"word":"hi"}\n\n' if received.startswith(b"/stream") else b'{"word":"hi"}'
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: " + kind + b"\r\nConnection: close\r\n\r\n" + body)

    async with serve_tcp(behave) as port, asyncio.timeout(30):
        engine = make_client(port)
        assert await engine.get("/", WORD) == Word("hi")
        assert [batch async for batch in await engine.post_stream("/stream", b"{}", WORD)] == [[Word("hi")]]


async def test_informational_responses_are_skipped() -> None:
    async def behave(reader: Reader, writer: Writer) -> None:
        for _ in range(2):
            await read_request(reader)
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            writer.write(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + HI)
        await reader.read()

    async with serve_tcp(behave) as port, asyncio.timeout(30):
        engine = make_client(port)
        assert [await engine.post("/", b"{}", WORD) for _ in range(2)] == [Word("hi")] * 2
        engine.close()


@pytest.mark.parametrize(
    ("header_value", "seconds"), [("7", 7.0), ("0", 1.0), ("99999", 600.0), ("-1", None), ("soon", None), ("²", None)]
)
async def test_retry_after_is_parsed_and_bounded(header_value: str, seconds: float | None) -> None:
    async def behave(reader: Reader, writer: Writer) -> None:
        await read_request(reader)
        head = f"\r\nRetry-After: {header_value}\r\n\r\n".encode("latin-1")
        writer.write(json_response(b"{}", "429 Too Many Requests").replace(b"\r\n\r\n", head, 1))

    async with serve_tcp(behave) as port:
        with pytest.raises(EngineHttpError) as caught:
            await make_client(port).get("/", WORD)
        assert caught.value.retry_after == seconds


async def test_a_host_that_does_not_exist_is_unavailable() -> None:
    for host in ("no-such-host.invalid", "a" * 70 + ".example", ".."):
        engine = EngineClient(TcpAddress(host, 1), "The engine", EngineTimeouts(connect=2.0))
        with pytest.raises((Unavailable, EngineFailed)):
            await engine.get("/", WORD)


@pytest.mark.parametrize("name", DIALECTS)
@pytest.mark.shows("C.28")
async def test_closing_a_stream_cancels_the_engine_request_at_once(name: str) -> None:
    async with run_stub(name) as stub, open_engine(stub.url) as engine:
        for received in (0, 1):
            gate = stub.engine.holds(after=received)
            async with asyncio.timeout(30), aclosing(engine.generate(make_request())) as lists:
                if received:
                    assert (await anext(lists))[0].text
                else:
                    waiting = asyncio.ensure_future(anext(lists))
                    await gate.reached.wait()
                    waiting.cancel()
                    await asyncio.wait([waiting])
            gate.open()
            async with asyncio.timeout(30):
                while stub.engine.running:  # noqa: ASYNC110 - the fake engine has no event for it
                    await asyncio.sleep(0.001)
            assert stub.engine.cancelled == received + 1


async def test_concurrent_requests_share_connections_without_mixing_responses() -> None:
    stub = EngineStub(DIALECTS["vllm"])
    connections = 0

    async def count_and_serve(reader: Reader, writer: Writer) -> None:
        nonlocal connections
        connections += 1
        await stub.serve(reader, writer)

    async with serve_tcp(count_and_serve) as port, open_engine(f"vllm://127.0.0.1:{port}") as engine:
        for _ in range(3):
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(run_generation(engine, make_request(max_tokens=number + 1)))
                    for number in range(20)
                ]
            assert [len(task.result().chunks) for task in tasks] == [min(number, 2) + 2 for number in range(20)]
        assert connections <= 20 + MAX_CONCURRENT  # plus the connections of the probes
