"""Limits of the WebSockets of a real server process: connection count, message size, keys, origins, timeouts,
cancellation and shutdown.
"""

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
    TIMEOUT_SECONDS,
    RawSocket,
    build_upgrade_request,
    count_cancelled,
    encode_frame,
    encode_text_frame,
    expect_rejection,
    open_raw_socket,
    read_gauge,
    read_resident_bytes,
    wait_for_gauge,
)
from tests.support.server_process import ServerProcess, run_server
from tests.support.timing import measure_fastest

pytestmark = pytest.mark.anyio

KEY = "sk-test-1234567890"
MIB = 1024 * 1024
CANCEL_SECONDS = 0.250
MARGIN_SECONDS = 0.750  # allowance for a busy machine
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
def limited_server(script: str) -> Iterator[ServerProcess]:
    """A server with few connections and a short stall timeout for clients that do not read. Responses end with their
    clients.
    """
    flags = ("--max-websocket-connections", "3", "--stall-seconds", "1", "--limit-body-bytes", "65536")
    with run_server("--engine", "fake", "--fake-script", script, *flags, "--keep-streams", "0") as server:
        yield server


@pytest.fixture(scope="module")
def protected_server() -> Iterator[ServerProcess]:
    """A server that requires a key, listens on all interfaces and logs at debug level."""
    with run_server("--engine", "fake", "--api-key", KEY, "--host", "0.0.0.0", "--log-level", "debug") as server:
        yield server


def auth_header(value: str = KEY) -> str:
    return f"Authorization: Bearer {value}"


@pytest.mark.shows("F.8")
async def test_a_full_server_returns_503_until_a_client_disconnects(limited_server: ServerProcess) -> None:
    async with open_raw_socket(limited_server), open_raw_socket(limited_server):
        async with open_raw_socket(limited_server):
            rejection = await expect_rejection(limited_server, build_upgrade_request("/v1/responses"))
            assert (rejection.status, rejection.error["type"]) == (503, "service_unavailable")
            assert int(rejection.headers["retry-after"]) >= 1
            assert limited_server.post({"model": "fake", "input": "hi"})[0] == 200
        await wait_for_gauge(limited_server, OPEN, 2)
        async with open_raw_socket(limited_server) as client:
            await client.send_create()
            assert (await client.receive_end())["type"] == "response.completed"
    await wait_for_gauge(limited_server, OPEN, 0)


async def test_a_message_above_the_limit_closes_the_connection_with_1009(limited_server: ServerProcess) -> None:
    url = f"ws://127.0.0.1:{limited_server.port}/v1/responses"
    async with websockets.connect(url, compression=None) as client:
        with suppress(websockets.ConnectionClosed):
            await client.send("x" * 30 * MIB)
        with pytest.raises(websockets.ConnectionClosed):
            await client.recv()
        assert client.close_code == 1009
    await wait_for_gauge(limited_server, OPEN, 0)


@pytest.mark.parametrize(
    ("path", "lines"),
    [
        ("/v1/responses", []),
        ("/v1/responses", [auth_header("wrong")]),
        ("/v1/responses", [auth_header(), auth_header()]),
        ("/v1/responses", [f"Cookie: key={KEY}"]),
        (f"/v1/responses?api_key={KEY}", []),
        (f"/v1/responses?api-key={KEY}&authorization=Bearer%20{KEY}", []),
    ],
    ids=["none", "wrong", "doubled", "cookie", "query", "another query"],
)
@pytest.mark.shows("H.1")
async def test_a_key_outside_the_authorization_header_is_rejected_and_never_logged(
    protected_server: ServerProcess, path: str, lines: list[str]
) -> None:
    rejection = await expect_rejection(protected_server, build_upgrade_request(path, *lines))
    assert (rejection.status, rejection.error["code"]) == (401, "invalid_api_key")
    assert KEY.encode() not in protected_server.read_output()


async def test_a_valid_key_and_the_content_are_never_logged(protected_server: ServerProcess) -> None:
    async with open_raw_socket(protected_server, auth_header(), path=f"/v1/responses?api_key={KEY}") as client:
        await client.send(encode_text_frame(b'{"secret-word": 1}'))
        assert (await client.receive_event())["status"] == 400
        await client.send_create(input="secret-word")
        assert (await client.receive_end())["type"] == "response.completed"
    headers = {"Authorization": f"Bearer {KEY}"}
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while await read_gauge(protected_server, OPEN, headers):
            pass
    log = protected_server.read_output()
    assert KEY.encode() not in log
    assert b"secret-word" not in log


@pytest.mark.shows("F3.3")
async def test_a_connection_has_an_id_in_the_log(protected_server: ServerProcess) -> None:
    async with open_raw_socket(protected_server, auth_header(), "X-Request-Id: req_mine"):
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while b"request_id=req_mine connection_id=conn_" not in protected_server.read_output():  # noqa: ASYNC110 - another process logs it
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
async def test_a_foreign_origin_is_rejected_before_the_upgrade(
    protected_server: ServerProcess, host: str, origin: str | None, status: int
) -> None:
    lines = [auth_header()] if origin is None else [auth_header(), f"Origin: {origin}"]
    reader, writer = await asyncio.open_connection("127.0.0.1", protected_server.port)
    writer.write(build_upgrade_request("/v1/responses", *lines, host=f"Host: {host}"))
    async with asyncio.timeout(TIMEOUT_SECONDS):
        assert (await reader.readline()).startswith(b"HTTP/1.1 %d " % status)
    writer.transport.abort()


def _reset_connection(client: RawSocket) -> None:
    """Disconnect with a TCP RST instead of a FIN."""
    connection = client.writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.writer.transport.abort()


@pytest.mark.parametrize("ending", ["a close", "a fin", "a reset", "a broken frame"])
@pytest.mark.shows("F.12")
async def test_responses_are_cancelled_when_their_websocket_ends(limited_server: ServerProcess, ending: str) -> None:
    bound = CANCEL_SECONDS + MARGIN_SECONDS
    assert await measure_fastest(lambda: _measure_cancellation(limited_server, ending), bound) < bound
    await wait_for_gauge(limited_server, OPEN, 0)


async def _measure_cancellation(server: ServerProcess, ending: str) -> float:
    """Return the seconds between the end of a client's connection and the end of its responses."""
    async with open_raw_socket(server) as client:
        for lane in ("a", "b"):
            await client.send_create(input="silence", stream_id=lane)
            await client.send_create(input="silence", stream_id=lane)
        await wait_for_gauge(server, RUNNING, 2)
        match ending:
            case "a close":
                await client.send(encode_frame(CLOSE, b"\x03\xe8"))
            case "a fin":
                client.writer.write_eof()
            case "a reset":
                _reset_connection(client)
            case _:
                await client.send(b"\xff\xff")
        return await wait_for_gauge(server, RUNNING, 0)


async def test_a_client_that_does_not_read_uses_little_memory_and_is_disconnected(
    limited_server: ServerProcess,
) -> None:
    """Each client would receive about 50 MB."""
    before, cancelled_before, peak = read_resident_bytes(limited_server), await count_cancelled(limited_server), 0
    clients = [_connect_without_reading(limited_server) for _ in range(3)]
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while await count_cancelled(limited_server) < cancelled_before + 3:
            peak = max(peak, read_resident_bytes(limited_server) - before)
    await wait_for_gauge(limited_server, OPEN, 0)
    assert await read_gauge(limited_server, RUNNING) == 0
    for client in clients:
        client.close()
    assert peak < 3 * MIB


def _connect_without_reading(server: ServerProcess) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", server.port))
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.sendall(build_upgrade_request("/v1/responses"))
    assert client.recv(4096).startswith(b"HTTP/1.1 101 ")
    client.sendall(encode_text_frame({"type": "response.create", "model": "fake", "input": "much", "store": False}))
    return client


async def test_only_clients_that_do_not_answer_pings_are_disconnected(script: str) -> None:
    flags = ("--websocket-ping-interval", "0.1", "--websocket-ping-timeout", "4", "--keep-streams", "0")
    with run_server("--engine", "fake", "--fake-script", script, *flags) as server:
        async with open_raw_socket(server) as alive, open_raw_socket(server) as dead, open_raw_socket(server) as half:
            answering = asyncio.create_task(_answer_pings(alive))
            await dead.send_create(input="silence")
            await half.send(encode_text_frame({"type": "response.create"})[:7])
            assert await dead.wait_closed() == 1011
            assert await half.wait_closed() == 1011
            await wait_for_gauge(server, RUNNING, 0)
            assert await read_gauge(server, OPEN) == 1
            assert not answering.done()
            answering.cancel()


async def _answer_pings(client: RawSocket) -> None:
    while (got := await client.receive_frame()) is not None:
        assert got.opcode is PING
        await client.send(encode_frame(PONG, bytes(got.data)))


@pytest.mark.shows("H.10", "H.19")
async def test_a_stopping_server_closes_idle_websockets_at_once_and_busy_ones_when_done(script: str) -> None:
    with run_server("--engine", "fake", "--fake-script", script) as server:
        async with open_raw_socket(server) as idle, open_raw_socket(server) as busy:
            await busy.send_create(input="one moment", stream_id="a")
            await wait_for_gauge(server, RUNNING, 1)
            server.process.send_signal(signal.SIGTERM)
            assert await idle.wait_closed() == 1012
            await busy.send_create(stream_id="b")
            error = await busy.receive_end()
            assert (error["type"], error["status"], error["stream_id"]) == ("error", 503, "b")
            assert (error["error"]["code"], error["error"]["type"]) == ("service_unavailable", "service_unavailable")
            assert (await busy.receive_end())["response"]["output"][0]["content"][0]["text"] == "One moment."
            assert await busy.wait_closed() == 1012
        assert await asyncio.to_thread(server.process.wait, 60) == 0
        assert b"Traceback" not in server.read_output()


@pytest.mark.shows("H.10")
async def test_running_responses_fail_when_the_shutdown_grace_is_over(script: str) -> None:
    with run_server("--engine", "fake", "--fake-script", script, "--shutdown-grace", "0.2") as server:
        async with open_raw_socket(server) as client:
            await client.send_create(input="silence")
            stalled = _connect_without_reading(server)
            await wait_for_gauge(server, RUNNING, 2)
            server.process.send_signal(signal.SIGTERM)
            failed = await client.receive_end()
            assert failed["type"] == "response.failed"
            assert failed["response"]["error"]["code"] == "service_unavailable"
            assert await client.wait_closed() == 1012
        assert await asyncio.to_thread(server.process.wait, 60) == 0
        stalled.close()
        assert b"Traceback" not in server.read_output()


@pytest.mark.shows("F.9")
async def test_a_server_with_websockets_off_returns_426_and_serves_http() -> None:
    with run_server("--engine", "fake", "--websocket", "off") as server:
        rejection = await expect_rejection(server, build_upgrade_request("/v1/responses"))
        assert (rejection.status, rejection.error["type"]) == (426, "invalid_request_error")
        assert server.post({"model": "fake", "input": "hi"})[0] == 200
        assert server.get("/v1/responses")[0] == 200
