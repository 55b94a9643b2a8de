"""Frames that are wrong: who breaks the protocol is told by a close, and leaves nothing behind."""

import asyncio
import struct
import time
from collections.abc import AsyncIterator

import pytest
from websockets.frames import Opcode

from bench.harness.process_meter import cpu_ns
from drills.bombs.sockets import BAD_MESSAGES, CONTINUATION, FRAMES, NO_HANDSHAKES, announced
from tests.clients.websocket.raw_socket import (
    BINARY,
    CLOSE,
    CREATE,
    PING,
    PONG,
    SECONDS,
    TEXT,
    dialled,
    frame,
    gauge,
    raw_socket,
    refusal,
    request,
    resident,
    text,
    until,
)
from tests.support.server_process import Live

pytestmark = pytest.mark.anyio

MIB = 1024 * 1024


@pytest.fixture(autouse=True)
async def unharmed(fake: Live) -> AsyncIterator[None]:
    """Whatever a test did, the server goes on, holds nothing any more, and has logged no defect."""
    before = fake.output().count(b"Traceback")
    yield
    await until(fake, "antiphon_websocket_connections", 0)
    assert await gauge(fake, "antiphon_num_requests_running") == 0
    assert fake.output().count(b"Traceback") == before


@pytest.mark.parametrize(("sent", "code"), FRAMES.values(), ids=FRAMES)
async def test_who_breaks_the_protocol_is_told_with_a_code(fake: Live, sent: bytes, code: int) -> None:
    before = resident(fake)
    async with raw_socket(fake) as client:
        await client.ask()
        assert (await client.end())["type"] == "response.completed"
        await client.send(sent)
        assert await client.closed() == code
    assert resident(fake) - before < 64 * MIB


async def test_large_messages_that_came_with_a_mistake_are_forgotten_at_once(fake: Live) -> None:
    before = resident(fake)
    for _ in range(6):
        async with raw_socket(fake) as client:
            await client.send(frame(TEXT, b"x" * (10 * MIB)) + frame(3))
            assert await client.closed() == 1002
    await until(fake, "antiphon_websocket_connections", 0)
    assert resident(fake) - before < 16 * MIB  # of 60


async def test_who_goes_on_sending_gets_to_read_why_it_shall_not(fake: Live) -> None:
    async with raw_socket(fake) as client:
        await client.send(announced(1 << 30))
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            await client.send(b"x" * 65536)
        assert await client.closed() == 1009


async def test_a_message_in_pieces_with_pings_between_them_is_one_message(fake: Live) -> None:
    whole = b'{"type":"response.create","model":"fake","input":"Gr\xc3\xbc\xc3\x9fe"}'
    async with raw_socket(fake) as client:
        pieces = [frame(CONTINUATION, whole[at : at + 1], fin=False) + frame(PING, b"?") for at in range(1, len(whole))]
        await client.send(frame(TEXT, whole[:1], fin=False) + b"".join(pieces) + frame(CONTINUATION))
        for _ in pieces:
            pong = await client.next()
            assert pong is not None
            assert (pong.opcode, pong.data) == (PONG, b"?")
        assert (await client.end())["response"]["output"][0]["content"][0]["text"] == "You said: Grüße"


@pytest.mark.shows("F1.1", "F1.2", "F.11")
async def test_bad_messages_are_answered_one_by_one_and_the_good_one_after_them_too(fake: Live) -> None:
    async with raw_socket(fake) as client:
        await client.send(b"".join(map(text, BAD_MESSAGES)) + frame(BINARY, b"{}") + text(CREATE))
        for _ in (*BAD_MESSAGES, b"{}"):
            told = await client.event()
            assert (told["type"], told["status"]) == ("error", 400)
        assert (await client.end())["type"] == "response.completed"


async def test_a_flood_of_pings_is_answered_and_costs_nothing(fake: Live) -> None:
    async with raw_socket(fake) as client:
        await client.send(frame(PING, b"a") * 5_000 + text(CREATE))
        pongs = 0
        while (got := await client.next()) is not None and got.opcode is PONG:
            pongs += 1
        assert pongs == 5_000
        assert (await client.end())["type"] == "response.completed"


@pytest.mark.parametrize("opcode", [PING, TEXT])
async def test_a_flood_of_small_frames_does_not_keep_others_waiting(fake: Live, opcode: Opcode) -> None:
    """Looked at all at once, these would take seconds."""
    async with raw_socket(fake) as client:
        client.writer.write(frame(opcode) * 120_000)
        took = [await asyncio.to_thread(_asking, fake) for _ in range(10)]
    assert max(took) < 1.0


def _asking(live: Live) -> float:
    """Seconds; where the server computed for less than it took, what it computed: the machine may be busy."""
    began, computed = time.monotonic_ns(), cpu_ns(live.process.pid)
    assert live.get("/health")[0] == 200
    return min(time.monotonic_ns() - began, cpu_ns(live.process.pid) - computed) / 1e9


async def test_who_pings_and_does_not_read_is_given_no_memory(fake: Live) -> None:
    before = resident(fake)
    async with raw_socket(fake) as client:
        client.reader._transport.pause_reading()  # type: ignore[attr-defined]  # there is no other way to not read
        for _ in range(12):
            await client.send(frame(PING, b"a" * 125) * 8_000)  # a MiB each
        assert await gauge(fake, "antiphon_websocket_connections") == 1
        assert resident(fake) - before < 6 * MIB
        client.reader._transport.resume_reading()  # type: ignore[attr-defined]
        await client.send(text(CREATE))
        while (got := await client.next()) is not None and got.opcode is PONG:
            pass
        assert got is not None
        assert got.opcode is TEXT


@pytest.mark.parametrize("sent", [b"", b"\x81", text(CREATE)[:20], frame(TEXT, b"{", fin=False)], ids=repr)
async def test_half_a_message_is_waited_for_and_forgotten_with_its_sender(fake: Live, sent: bytes) -> None:
    async with raw_socket(fake) as client:
        await client.send(sent)
        assert await gauge(fake, "antiphon_websocket_connections") == 1


async def test_a_close_is_answered_with_its_code_and_what_follows_it_is_dropped(fake: Live) -> None:
    for code in (1000, 1001, 3000, 4999):
        async with raw_socket(fake) as client:
            close = frame(CLOSE, struct.pack("!H", code) + b"bye")
            await client.send(close + close + text(CREATE))
            assert await client.closed() == code
    async with raw_socket(fake) as client:
        await client.send(frame(CLOSE))
        assert await client.closed() == 1005


async def test_messages_right_before_a_close_harm_nobody(fake: Live) -> None:
    async with raw_socket(fake) as client:
        await client.send(text(b"{") * 50 + text(CREATE) * 50 + frame(CLOSE, b"\x03\xe8"))
        assert await client.closed() == 1000


@pytest.mark.parametrize("head", NO_HANDSHAKES.values(), ids=NO_HANDSHAKES)
async def test_what_is_no_handshake_is_refused_and_hung_up_on(fake: Live, head: bytes) -> None:
    answer = await refusal(fake, head)
    assert answer.status == 400
    assert answer.error["type"] == "invalid_request_error"


@pytest.mark.parametrize("together", [True, False])
async def test_an_answer_is_not_left_for_a_websocket_while_it_is_given(pausing: Live, together: bool) -> None:
    body = b'{"model":"fake","input":"hi","stream":true}'
    lines = ("Content-Type: application/json", f"Content-Length: {len(body)}")
    post = "\r\n".join(["POST /v1/responses HTTP/1.1", "Host: 127.0.0.1", *lines, "", ""]).encode() + body
    async with dialled(pausing, post + request("/v1/responses") if together else post) as client:
        if not together:
            await client.reader.readuntil(b"response.created")
            await client.send(request("/v1/responses"))
        async with asyncio.timeout(SECONDS):
            assert b"101 Switching" not in await client.reader.read()
        await until(pausing, "antiphon_num_requests_running", 0)


async def test_after_an_answer_a_connection_may_become_a_websocket(fake: Live) -> None:
    async with dialled(fake, b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n") as client:
        await client.reader.readuntil(b"\r\n\r\n")
        await client.send(request("/v1/responses"))
        await client.reader.readuntil(b"101 Switching Protocols")
        await client.reader.readuntil(b"\r\n\r\n")
        await client.ask()
        assert (await client.end())["type"] == "response.completed"


async def test_another_version_of_the_protocol_is_named(fake: Live) -> None:
    head = request("/v1/responses").replace(b"Version: 13", b"Version: 8")
    answer = await refusal(fake, head)
    assert (answer.status, answer.error["type"]) in ((400, "invalid_request_error"), (426, "invalid_request_error"))


async def test_compression_that_is_offered_is_not_taken(fake: Live) -> None:
    offer = "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits"
    async with dialled(fake, request("/v1/responses", offer)) as client:
        head = await client.reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101 ")
        assert b"extensions" not in head.lower()
        await client.ask()
        assert (await client.end())["type"] == "response.completed"
