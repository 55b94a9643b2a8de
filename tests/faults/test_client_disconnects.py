"""Clients that leave, dawdle or do not read: the engine's work ends with them, and memory stays bounded."""

import asyncio
import socket
import struct
import time

import pytest

from tests.faults.conftest import cancelled, running
from tests.faults.raw_client import body, read_answer, request
from tests.support.server_process import Live
from tests.support.timing import soonest

pytestmark = pytest.mark.anyio

MIB = 1024 * 1024
CANCEL_SECONDS = 0.250
MARGIN_SECONDS = 0.750  # for a busy machine
SECONDS = 30.0  # whatever takes longer hangs


async def _until_running(live: Live, count: int) -> float:
    """Seconds until the gauge says `count`."""
    began = time.perf_counter()
    async with asyncio.timeout(SECONDS):
        while await running(live) != count:
            pass
    return time.perf_counter() - began


async def _connect(live: Live, sent: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", live.port)
    writer.write(sent)
    return reader, writer


def _reset(writer: asyncio.StreamWriter) -> None:
    """Leave with a RST instead of a FIN."""
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@pytest.mark.parametrize("leaving", ["close", "reset", "half-close"])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "json"])
@pytest.mark.shows("A.54")
async def test_work_ends_when_its_client_is_gone(slow: Live, stream: bool, leaving: str) -> None:
    bound = CANCEL_SECONDS + MARGIN_SECONDS
    assert await soonest(lambda: _until_left(slow, stream, leaving), bound) < bound


async def _until_left(slow: Live, stream: bool, leaving: str) -> float:
    """Seconds from a client's leaving to the end of its work."""
    reader, writer = await _connect(slow, request(body(stream=stream)))
    await _until_running(slow, 1)
    if stream:
        async with asyncio.timeout(SECONDS):
            await reader.readuntil(b"response.output_text.delta")
    if leaving == "close":
        writer.close()
    elif leaving == "reset":
        _reset(writer)
    else:
        writer.write_eof()
    try:
        return await _until_running(slow, 0)
    finally:
        writer.close()


async def test_many_clients_that_leave_at_once_leave_nothing_behind(slow: Live) -> None:
    clients = [await _connect(slow, request(body(stream=True))) for _ in range(50)]
    await _until_running(slow, 50)
    for _, writer in clients:
        writer.close()
    await _until_running(slow, 0)


async def test_clients_that_leave_before_the_first_byte_leave_nothing_behind(slow: Live) -> None:
    for _ in range(50):
        _, writer = await _connect(slow, request(body(stream=True)))
        await writer.drain()
        _reset(writer)
    await _until_running(slow, 0)


async def test_a_client_that_leaves_in_the_middle_of_its_body_is_forgotten(server: Live) -> None:
    whole = request(body(input="x" * MIB))
    _, writer = await _connect(server, whole[: len(whole) // 2])
    await writer.drain()
    writer.close()
    assert await running(server) == 0


@pytest.mark.parametrize("sent", [b"", b"POST /v1/resp", b"POST /v1/responses HTTP/1.1\r\nHost: 127.0.0.1\r\nX-A: "])
@pytest.mark.shows("H6.3")
async def test_headers_that_never_end_are_cut_off(hasty: Live, sent: bytes) -> None:
    reader, writer = await _connect(hasty, sent)
    async with asyncio.timeout(SECONDS):
        await reader.read()
    writer.close()


@pytest.mark.shows("H6.3")
async def test_headers_that_drip_are_cut_off(hasty: Live) -> None:
    reader, writer = await _connect(hasty, b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n")

    async def drip() -> None:
        while True:
            writer.write(b"X-A: b\r\n")
            await asyncio.sleep(0.1)

    dripping = asyncio.create_task(drip())
    try:
        async with asyncio.timeout(SECONDS):
            await reader.read()
    finally:
        dripping.cancel()
        writer.close()


async def test_a_body_that_never_comes_is_answered_and_cut_off(hasty: Live) -> None:
    whole = request(body(input="x" * 1000))
    reader, writer = await _connect(hasty, whole[:-10])
    async with asyncio.timeout(SECONDS):
        answer = await read_answer(reader)
        assert answer.status == 408, answer
        answer.error()
        assert await reader.read() == b""
    writer.close()


async def test_a_client_that_does_not_read_costs_little_and_is_cut_off(hasty: Live) -> None:
    """30,000 tokens are some 7 MB of events for each; the server must neither keep them nor wait for ever.

    What it does keep is what was said so far, to store it."""
    before, gone, peak = _rss(hasty), await cancelled(hasty), 0
    clients = [_unreading(hasty) for _ in range(10)]
    async with asyncio.timeout(SECONDS):
        while await cancelled(hasty) < gone + 10:
            peak = max(peak, _rss(hasty) - before)
    for client in clients:
        client.close()
    assert peak < 16 * MIB


def _unreading(live: Live) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", live.port))
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.sendall(request(body(stream=True)))
    return client


def _rss(live: Live) -> int:
    with open(f"/proc/{live.process.pid}/statm") as statm:
        return int(statm.read().split()[1]) * 4096
