"""WebSockets of a real server process: how many, for whom, how long, and what is left when they end."""

import asyncio
import signal
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import websockets

from tests.clients.websocket.raw_socket import (
    CLOSE,
    PING,
    PONG,
    SECONDS,
    RawSocket,
    cancelled,
    frame,
    gauge,
    raw_socket,
    refusal,
    request,
    resident,
    text,
    until,
)
from tests.support.server_process import Live, serving
from tests.support.timing import soonest

pytestmark = pytest.mark.anyio

KEY = "sk-test-1234567890"
MIB = 1024 * 1024
CANCEL_SECONDS = 0.250
MARGIN_SECONDS = 0.750  # for a busy machine
OPEN, RUNNING = "antiphon_websocket_connections", "antiphon_num_requests_running"

SCRIPT = """
[[reply]]
when = { contains = "silence" }
steps = [{ say = "Hm." }, { silence = true }]

[[reply]]
when = { contains = "much" }
steps = [{ say = "A word of many. ", repeat = 200000 }]

[[reply]]
when = { contains = "moment" }
steps = [{ say = "One" }, { delay = 2.5 }, { say = " moment." }]
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("script") / "script.toml"
    path.write_text(SCRIPT)
    return str(path)


@pytest.fixture(scope="module")
def hasty(script: str) -> Iterator[Live]:
    """Few connections, and none that does not read."""
    flags = ("--max-websocket-connections", "3", "--stall-seconds", "1", "--limit-body-bytes", "65536")
    with serving("--engine", "fake", "--fake-script", script, *flags) as live:
        yield live


@pytest.fixture(scope="module")
def guarded() -> Iterator[Live]:
    """It wants a key, listens to anybody, and writes down all that it ever does."""
    with serving("--engine", "fake", "--api-key", KEY, "--host", "0.0.0.0", "--log-level", "debug") as live:
        yield live


def key(value: str = KEY) -> str:
    return f"Authorization: Bearer {value}"


@pytest.mark.shows("F.8")
async def test_a_full_server_answers_503_and_has_room_when_somebody_leaves(hasty: Live) -> None:
    async with raw_socket(hasty), raw_socket(hasty):
        async with raw_socket(hasty):
            answer = await refusal(hasty, request("/v1/responses"))
            assert (answer.status, answer.error["type"]) == (503, "service_unavailable")
            assert int(answer.headers["retry-after"]) >= 1
            assert hasty.post({"model": "fake", "input": "hi"})[0] == 200
        await until(hasty, OPEN, 2)
        async with raw_socket(hasty) as client:
            await client.ask()
            assert (await client.end())["type"] == "response.completed"
    await until(hasty, OPEN, 0)


async def test_a_message_above_the_limit_is_a_1009_whichever_client_sends_it(hasty: Live) -> None:
    url = f"ws://127.0.0.1:{hasty.port}/v1/responses"
    async with websockets.connect(url, compression=None) as client:
        with suppress(websockets.ConnectionClosed):
            await client.send("x" * 30 * MIB)
        with pytest.raises(websockets.ConnectionClosed):
            await client.recv()
        assert client.close_code == 1009
    await until(hasty, OPEN, 0)


@pytest.mark.parametrize(
    ("path", "lines"),
    [
        ("/v1/responses", []),
        ("/v1/responses", [key("wrong")]),
        ("/v1/responses", [key(), key()]),
        ("/v1/responses", [f"Cookie: key={KEY}"]),
        (f"/v1/responses?api_key={KEY}", []),
        (f"/v1/responses?api-key={KEY}&authorization=Bearer%20{KEY}", []),
    ],
    ids=["none", "wrong", "doubled", "cookie", "query", "another query"],
)
@pytest.mark.shows("H.1")
async def test_without_its_key_in_a_header_nobody_comes_in_and_it_is_written_nowhere(
    guarded: Live, path: str, lines: list[str]
) -> None:
    answer = await refusal(guarded, request(path, *lines))
    assert (answer.status, answer.error["code"]) == (401, "invalid_api_key")
    assert KEY.encode() not in guarded.output()


async def test_a_key_that_opens_is_not_written_down_either(guarded: Live) -> None:
    async with raw_socket(guarded, key(), path=f"/v1/responses?api_key={KEY}") as client:
        await client.send(text(b'{"secret-word": 1}'))
        assert (await client.event())["status"] == 400
        await client.ask(input="secret-word")
        assert (await client.end())["type"] == "response.completed"
    headers = {"Authorization": f"Bearer {KEY}"}
    async with asyncio.timeout(SECONDS):
        while await gauge(guarded, OPEN, headers):
            pass
    written = guarded.output()
    assert KEY.encode() not in written
    assert b"secret-word" not in written


@pytest.mark.shows("F3.3")
async def test_a_connection_has_an_id_in_the_log(guarded: Live) -> None:
    async with raw_socket(guarded, key(), "X-Request-Id: req_mine"):
        async with asyncio.timeout(SECONDS):
            while b"request_id=req_mine connection_id=conn_" not in guarded.output():  # noqa: ASYNC110 - not ours
                await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        ("127.0.0.1", "http://evil.example", 403),
        ("api.example", "https://evil.example", 403),
        ("api.example", "null", 403),
        ("api.example", "https://api.example", 101),
        ("127.0.0.1", None, 101),
    ],
)
async def test_a_foreign_page_is_refused_before_anything_is_a_websocket(
    guarded: Live, host: str, origin: str | None, status: int
) -> None:
    lines = [key()] if origin is None else [key(), f"Origin: {origin}"]
    reader, writer = await asyncio.open_connection("127.0.0.1", guarded.port)
    writer.write(request("/v1/responses", *lines, host=f"Host: {host}"))
    async with asyncio.timeout(SECONDS):
        assert (await reader.readline()).startswith(b"HTTP/1.1 %d " % status)
    writer.transport.abort()


def _reset(client: RawSocket) -> None:
    """Leave with a RST instead of a FIN."""
    connection = client.writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.writer.transport.abort()


@pytest.mark.parametrize("leaving", ["a close", "a fin", "a reset", "a broken frame"])
@pytest.mark.shows("F.12")
async def test_work_ends_when_its_socket_does(hasty: Live, leaving: str) -> None:
    bound = CANCEL_SECONDS + MARGIN_SECONDS
    assert await soonest(lambda: _until_left(hasty, leaving), bound) < bound
    await until(hasty, OPEN, 0)


async def _until_left(hasty: Live, leaving: str) -> float:
    """Seconds from a client's leaving to the end of its work."""
    async with raw_socket(hasty) as client:
        for lane in ("a", "b"):
            await client.ask(input="silence", stream_id=lane)
            await client.ask(input="silence", stream_id=lane)
        await until(hasty, RUNNING, 2)
        match leaving:
            case "a close":
                await client.send(frame(CLOSE, b"\x03\xe8"))
            case "a fin":
                client.writer.write_eof()
            case "a reset":
                _reset(client)
            case _:
                await client.send(b"\xff\xff")
        return await until(hasty, RUNNING, 0)


async def test_a_client_that_does_not_read_costs_little_and_is_cut_off(hasty: Live) -> None:
    """Each would get some 50 MB."""
    before, gone, peak = resident(hasty), await cancelled(hasty), 0
    clients = [_unreading(hasty) for _ in range(3)]
    async with asyncio.timeout(SECONDS):
        while await cancelled(hasty) < gone + 3:
            peak = max(peak, resident(hasty) - before)
    await until(hasty, OPEN, 0)
    assert await gauge(hasty, RUNNING) == 0
    for client in clients:
        client.close()
    assert peak < 3 * MIB


def _unreading(live: Live) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", live.port))
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.sendall(request("/v1/responses"))
    assert client.recv(4096).startswith(b"HTTP/1.1 101 ")
    client.sendall(text({"type": "response.create", "model": "fake", "input": "much", "store": False}))
    return client


async def test_who_answers_pings_stays_and_who_does_not_is_cut_off(script: str) -> None:
    flags = ("--websocket-ping-interval", "0.1", "--websocket-ping-timeout", "4")
    with serving("--engine", "fake", "--fake-script", script, *flags) as live:
        async with raw_socket(live) as alive, raw_socket(live) as dead, raw_socket(live) as half:
            answering = asyncio.create_task(_answer_pings(alive))
            await dead.ask(input="silence")
            await half.send(text({"type": "response.create"})[:7])
            assert await dead.closed() == 1011
            assert await half.closed() == 1011
            await until(live, RUNNING, 0)
            assert await gauge(live, OPEN) == 1
            assert not answering.done()
            answering.cancel()


async def _answer_pings(client: RawSocket) -> None:
    while (got := await client.next()) is not None:
        assert got.opcode is PING
        await client.send(frame(PONG, bytes(got.data)))


@pytest.mark.shows("H.10", "H.19")
async def test_a_server_that_stops_closes_idle_sockets_at_once_and_others_when_they_are_done(script: str) -> None:
    with serving("--engine", "fake", "--fake-script", script) as live:
        async with raw_socket(live) as idle, raw_socket(live) as busy:
            await busy.ask(input="one moment", stream_id="a")
            await until(live, RUNNING, 1)
            live.process.send_signal(signal.SIGTERM)
            assert await idle.closed() == 1012
            await busy.ask(stream_id="b")
            told = await busy.end()
            assert (told["type"], told["status"], told["stream_id"]) == ("error", 503, "b")
            assert (told["error"]["code"], told["error"]["type"]) == ("service_unavailable", "service_unavailable")
            assert (await busy.end())["response"]["output"][0]["content"][0]["text"] == "One moment."
            assert await busy.closed() == 1012
        assert await asyncio.to_thread(live.process.wait, 60) == 0
        assert b"Traceback" not in live.output()


@pytest.mark.shows("H.10")
async def test_when_the_grace_is_over_what_runs_has_its_last_words_and_nobody_is_waited_for(script: str) -> None:
    with serving("--engine", "fake", "--fake-script", script, "--shutdown-grace", "0.2") as live:
        async with raw_socket(live) as client:
            await client.ask(input="silence")
            deaf = _unreading(live)
            await until(live, RUNNING, 2)
            live.process.send_signal(signal.SIGTERM)
            failed = await client.end()
            assert failed["type"] == "response.failed"
            assert failed["response"]["error"]["code"] == "service_unavailable"
            assert await client.closed() == 1012
        assert await asyncio.to_thread(live.process.wait, 60) == 0
        deaf.close()
        assert b"Traceback" not in live.output()


@pytest.mark.shows("F.9")
async def test_a_server_without_websockets_says_426_and_goes_on_with_http() -> None:
    with serving("--engine", "fake", "--websocket", "off") as live:
        answer = await refusal(live, request("/v1/responses"))
        assert (answer.status, answer.error["type"]) == (426, "invalid_request_error")
        assert live.post({"model": "fake", "input": "hi"})[0] == 200
        assert live.get("/v1/responses")[0] == 200
