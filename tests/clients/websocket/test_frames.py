"""Invalid and unusual WebSocket frames against a real server: violations are closed with a code and leave nothing
behind.
"""

import asyncio
import struct
import time
from collections.abc import AsyncIterator

import pytest
from websockets.frames import Opcode

from bench.harness.process_meter import cpu_ns
from drills.bombs.sockets import BAD_HANDSHAKES, BAD_MESSAGES, CONTINUATION, FRAMES, start_frame
from tests.clients.websocket.raw_socket import (
    BINARY,
    CLOSE,
    CREATE,
    PING,
    PONG,
    TEXT,
    TIMEOUT_SECONDS,
    build_upgrade_request,
    encode_frame,
    encode_text_frame,
    expect_rejection,
    open_connection,
    open_raw_socket,
    read_gauge,
    read_resident_bytes,
    wait_for_gauge,
)
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.anyio

MIB = 1024 * 1024


@pytest.fixture(autouse=True)
async def server_health_check(fake_server: ServerProcess) -> AsyncIterator[None]:
    """After each test the server still runs, holds no connection or request, and has logged no traceback."""
    before = fake_server.read_output().count(b"Traceback")
    yield
    await wait_for_gauge(fake_server, "antiphon_websocket_connections", 0)
    assert await read_gauge(fake_server, "antiphon_num_requests_running") == 0
    assert fake_server.read_output().count(b"Traceback") == before


@pytest.mark.parametrize(("sent", "code"), FRAMES.values(), ids=FRAMES)
async def test_a_protocol_violation_closes_the_connection_with_its_code(
    fake_server: ServerProcess, sent: bytes, code: int
) -> None:
    before = read_resident_bytes(fake_server)
    async with open_raw_socket(fake_server) as client:
        await client.send_create()
        assert (await client.receive_end())["type"] == "response.completed"
        await client.send(sent)
        assert await client.wait_closed() == code
    assert read_resident_bytes(fake_server) - before < 64 * MIB


async def test_the_memory_of_large_messages_before_a_protocol_error_is_freed(fake_server: ServerProcess) -> None:
    before = read_resident_bytes(fake_server)
    for _ in range(6):
        async with open_raw_socket(fake_server) as client:
            await client.send(encode_frame(TEXT, b"x" * (10 * MIB)) + encode_frame(3))
            assert await client.wait_closed() == 1002
    await wait_for_gauge(fake_server, "antiphon_websocket_connections", 0)
    assert read_resident_bytes(fake_server) - before < 16 * MIB  # 60 MiB were sent


async def test_a_client_that_keeps_sending_still_receives_the_close_frame(fake_server: ServerProcess) -> None:
    async with open_raw_socket(fake_server) as client:
        await client.send(start_frame(1 << 30))
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            await client.send(b"x" * 65536)
        assert await client.wait_closed() == 1009


async def test_a_fragmented_message_with_pings_in_between_is_one_message(fake_server: ServerProcess) -> None:
    message = b'{"type":"response.create","model":"fake","input":"Gr\xc3\xbc\xc3\x9fe"}'
    async with open_raw_socket(fake_server) as client:
        fragments = [
            encode_frame(CONTINUATION, message[at : at + 1], fin=False) + encode_frame(PING, b"?")
            for at in range(1, len(message))
        ]
        await client.send(encode_frame(TEXT, message[:1], fin=False) + b"".join(fragments) + encode_frame(CONTINUATION))
        for _ in fragments:
            pong = await client.receive_frame()
            assert pong is not None
            assert (pong.opcode, pong.data) == (PONG, b"?")
        assert (await client.receive_end())["response"]["output"][0]["content"][0]["text"] == "You said: Grüße"


@pytest.mark.shows("F1.1", "F1.2", "F.11")
async def test_each_bad_message_gets_an_error_and_a_later_valid_one_a_response(fake_server: ServerProcess) -> None:
    async with open_raw_socket(fake_server) as client:
        await client.send(
            b"".join(map(encode_text_frame, BAD_MESSAGES)) + encode_frame(BINARY, b"{}") + encode_text_frame(CREATE)
        )
        for _ in (*BAD_MESSAGES, b"{}"):
            error = await client.receive_event()
            assert (error["type"], error["status"]) == ("error", 400)
        assert (await client.receive_end())["type"] == "response.completed"


async def test_every_ping_of_a_flood_is_answered(fake_server: ServerProcess) -> None:
    async with open_raw_socket(fake_server) as client:
        await client.send(encode_frame(PING, b"a") * 5_000 + encode_text_frame(CREATE))
        pongs = 0
        while (got := await client.receive_frame()) is not None and got.opcode is PONG:
            pongs += 1
        assert pongs == 5_000
        assert (await client.receive_end())["type"] == "response.completed"


@pytest.mark.parametrize("opcode", [PING, TEXT])
async def test_a_flood_of_small_frames_does_not_delay_other_clients(fake_server: ServerProcess, opcode: Opcode) -> None:
    """Processing all of these frames in one step of the event loop would take seconds."""
    async with open_raw_socket(fake_server) as client:
        client.writer.write(encode_frame(opcode) * 120_000)
        durations = [await asyncio.to_thread(_measure_health_request, fake_server) for _ in range(10)]
    assert max(durations) < 1.0


def _measure_health_request(server: ServerProcess) -> float:
    """Return the seconds of one health request.

    If the server used less CPU time than the request took, its CPU time counts: the machine may be busy.
    """
    began, computed = time.monotonic_ns(), cpu_ns(server.process.pid)
    assert server.get("/health")[0] == 200
    return min(time.monotonic_ns() - began, cpu_ns(server.process.pid) - computed) / 1e9


async def test_pongs_for_a_client_that_does_not_read_are_not_buffered(fake_server: ServerProcess) -> None:
    before = read_resident_bytes(fake_server)
    async with open_raw_socket(fake_server) as client:
        client.reader._transport.pause_reading()  # type: ignore[attr-defined]  # StreamReader has no public pause
        for _ in range(12):
            await client.send(encode_frame(PING, b"a" * 125) * 8_000)  # about 1 MiB
        assert await read_gauge(fake_server, "antiphon_websocket_connections") == 1
        assert read_resident_bytes(fake_server) - before < 6 * MIB
        client.reader._transport.resume_reading()  # type: ignore[attr-defined]
        await client.send(encode_text_frame(CREATE))
        while (got := await client.receive_frame()) is not None and got.opcode in (PING, PONG):
            pass  # the server sends a ping of its own if it takes long
        assert got is not None
        assert got.opcode is TEXT


@pytest.mark.parametrize(
    "sent", [b"", b"\x81", encode_text_frame(CREATE)[:20], encode_frame(TEXT, b"{", fin=False)], ids=repr
)
async def test_an_incomplete_message_is_dropped_when_its_client_disconnects(
    fake_server: ServerProcess, sent: bytes
) -> None:
    async with open_raw_socket(fake_server) as client:
        await client.send(sent)
        assert await read_gauge(fake_server, "antiphon_websocket_connections") == 1


async def test_a_close_frame_is_echoed_with_its_code_and_later_frames_are_dropped(fake_server: ServerProcess) -> None:
    for code in (1000, 1001, 3000, 4999):
        async with open_raw_socket(fake_server) as client:
            close = encode_frame(CLOSE, struct.pack("!H", code) + b"bye")
            await client.send(close + close + encode_text_frame(CREATE))
            assert await client.wait_closed() == code
    async with open_raw_socket(fake_server) as client:
        await client.send(encode_frame(CLOSE))
        assert await client.wait_closed() == 1005


async def test_messages_right_before_a_close_frame_do_no_harm(fake_server: ServerProcess) -> None:
    async with open_raw_socket(fake_server) as client:
        await client.send(
            encode_text_frame(b"{") * 50 + encode_text_frame(CREATE) * 50 + encode_frame(CLOSE, b"\x03\xe8")
        )
        assert await client.wait_closed() == 1000


@pytest.mark.parametrize("head", BAD_HANDSHAKES.values(), ids=BAD_HANDSHAKES)
async def test_an_invalid_handshake_is_rejected_and_the_connection_closed(
    fake_server: ServerProcess, head: bytes
) -> None:
    rejection = await expect_rejection(fake_server, head)
    assert rejection.status == 400
    assert rejection.error["type"] == "invalid_request_error"


@pytest.mark.parametrize("together", [True, False])
async def test_an_upgrade_during_a_running_response_is_not_accepted(slow_server: ServerProcess, together: bool) -> None:
    body = b'{"model":"fake","input":"hi","stream":true}'
    lines = ("Content-Type: application/json", f"Content-Length: {len(body)}")
    post = "\r\n".join(["POST /v1/responses HTTP/1.1", "Host: 127.0.0.1", *lines, "", ""]).encode() + body
    async with open_connection(
        slow_server, post + build_upgrade_request("/v1/responses") if together else post
    ) as client:
        if not together:
            await client.reader.readuntil(b"response.created")
            await client.send(build_upgrade_request("/v1/responses"))
        async with asyncio.timeout(TIMEOUT_SECONDS):
            assert b"101 Switching" not in await client.reader.read()
        await wait_for_gauge(slow_server, "antiphon_num_requests_running", 0)


async def test_a_connection_can_be_upgraded_after_a_completed_response(fake_server: ServerProcess) -> None:
    async with open_connection(fake_server, b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n") as client:
        await client.reader.readuntil(b"\r\n\r\n")
        await client.send(build_upgrade_request("/v1/responses"))
        await client.reader.readuntil(b"101 Switching Protocols")
        await client.reader.readuntil(b"\r\n\r\n")
        await client.send_create()
        assert (await client.receive_end())["type"] == "response.completed"


async def test_another_websocket_version_is_rejected(fake_server: ServerProcess) -> None:
    head = build_upgrade_request("/v1/responses").replace(b"Version: 13", b"Version: 8")
    rejection = await expect_rejection(fake_server, head)
    assert (rejection.status, rejection.error["type"]) in (
        (400, "invalid_request_error"),
        (426, "invalid_request_error"),
    )


async def test_offered_compression_is_declined(fake_server: ServerProcess) -> None:
    offer = "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits"
    async with open_connection(fake_server, build_upgrade_request("/v1/responses", offer)) as client:
        head = await client.reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101 ")
        assert b"extensions" not in head.lower()
        await client.send_create()
        assert (await client.receive_end())["type"] == "response.completed"
