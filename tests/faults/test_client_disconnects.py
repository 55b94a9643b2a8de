"""Clients that disconnect, send slowly or do not read: their generation is cancelled and memory stays bounded."""

import asyncio
import socket
import struct
import time

import pytest

from tests.faults.conftest import count_cancelled_responses, count_running_requests
from tests.faults.raw_client import build_body, build_request, read_response
from tests.support.server_process import ServerProcess
from tests.support.timing import measure_fastest

pytestmark = pytest.mark.anyio

MIB = 1024 * 1024
CANCEL_SECONDS = 0.250
MARGIN_SECONDS = 0.750  # allowance for a busy machine
HANG_SECONDS = 30.0  # anything slower counts as a hang


async def _wait_for_running(live: ServerProcess, count: int) -> float:
    """Return the seconds until the gauge of running requests equals `count`."""
    started = time.perf_counter()
    async with asyncio.timeout(HANG_SECONDS):
        while await count_running_requests(live) != count:
            pass
    return time.perf_counter() - started


async def _connect(live: ServerProcess, data: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", live.port)
    writer.write(data)
    return reader, writer


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close the connection with a RST instead of a FIN."""
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@pytest.mark.parametrize("disconnect", ["close", "reset", "half-close"])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "json"])
@pytest.mark.shows("A.54")
async def test_a_disconnected_client_cancels_its_generation(
    slow_server: ServerProcess, stream: bool, disconnect: str
) -> None:
    bound = CANCEL_SECONDS + MARGIN_SECONDS
    assert await measure_fastest(lambda: _measure_cancellation(slow_server, stream, disconnect), bound) < bound


async def _measure_cancellation(server: ServerProcess, stream: bool, disconnect: str) -> float:
    """Return the seconds from the client's disconnect to the end of its generation."""
    reader, writer = await _connect(server, build_request(build_body(stream=stream)))
    await _wait_for_running(server, 1)
    if stream:
        async with asyncio.timeout(HANG_SECONDS):
            await reader.readuntil(b"response.output_text.delta")
    if disconnect == "close":
        writer.close()
    elif disconnect == "reset":
        _reset(writer)
    else:
        writer.write_eof()
    try:
        return await _wait_for_running(server, 0)
    finally:
        writer.close()


async def test_many_simultaneous_disconnects_cancel_all_requests(slow_server: ServerProcess) -> None:
    clients = [await _connect(slow_server, build_request(build_body(stream=True))) for _ in range(50)]
    await _wait_for_running(slow_server, 50)
    for _, writer in clients:
        writer.close()
    await _wait_for_running(slow_server, 0)


async def test_disconnects_before_the_first_byte_cancel_all_requests(slow_server: ServerProcess) -> None:
    for _ in range(50):
        _, writer = await _connect(slow_server, build_request(build_body(stream=True)))
        await writer.drain()
        _reset(writer)
    await _wait_for_running(slow_server, 0)


async def test_a_disconnect_within_the_body_starts_no_generation(server: ServerProcess) -> None:
    raw_request = build_request(build_body(input="x" * MIB))
    _, writer = await _connect(server, raw_request[: len(raw_request) // 2])
    await writer.drain()
    writer.close()
    assert await count_running_requests(server) == 0


@pytest.mark.parametrize("sent", [b"", b"POST /v1/resp", b"POST /v1/responses HTTP/1.1\r\nHost: 127.0.0.1\r\nX-A: "])
@pytest.mark.shows("H6.3")
async def test_incomplete_headers_close_the_connection(short_timeout_server: ServerProcess, sent: bytes) -> None:
    reader, writer = await _connect(short_timeout_server, sent)
    async with asyncio.timeout(HANG_SECONDS):
        await reader.read()
    writer.close()


@pytest.mark.shows("H6.3")
async def test_slowly_dripping_headers_close_the_connection(short_timeout_server: ServerProcess) -> None:
    reader, writer = await _connect(short_timeout_server, b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n")

    async def drip() -> None:
        while True:
            writer.write(b"X-A: b\r\n")
            await asyncio.sleep(0.1)

    drip_task = asyncio.create_task(drip())
    try:
        async with asyncio.timeout(HANG_SECONDS):
            await reader.read()
    finally:
        drip_task.cancel()
        writer.close()


async def test_an_incomplete_body_gets_408_and_closes_the_connection(short_timeout_server: ServerProcess) -> None:
    raw_request = build_request(build_body(input="x" * 1000))
    reader, writer = await _connect(short_timeout_server, raw_request[:-10])
    async with asyncio.timeout(HANG_SECONDS):
        answer = await read_response(reader)
        assert answer.status == 408, answer
        answer.parse_error()
        assert await reader.read() == b""
    writer.close()


async def test_a_client_that_does_not_read_is_disconnected_and_uses_bounded_memory(
    short_timeout_server: ServerProcess,
) -> None:
    """The events of 30,000 tokens are about 7 MB per client. The server must neither buffer them nor wait for ever.

    It retains only the output generated so far, which it stores.
    """
    before, cancelled_before, peak = (
        _rss_bytes(short_timeout_server),
        await count_cancelled_responses(short_timeout_server),
        0,
    )
    clients = [_connect_without_reading(short_timeout_server) for _ in range(10)]
    async with asyncio.timeout(HANG_SECONDS):
        while await count_cancelled_responses(short_timeout_server) < cancelled_before + 10:
            peak = max(peak, _rss_bytes(short_timeout_server) - before)
    for client in clients:
        client.close()
    assert peak < 16 * MIB


def _connect_without_reading(live: ServerProcess) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", live.port))
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.sendall(build_request(build_body(stream=True)))
    return client


def _rss_bytes(live: ServerProcess) -> int:
    with open(f"/proc/{live.process.pid}/statm") as statm:
        return int(statm.read().split()[1]) * 4096
