"""SseStream with and without the direct extension: batching, flow control and disconnects.

Covers `transport/streaming/sse.py`.
"""

import asyncio
from typing import Any

import pytest

from antiphon.http_server.http_exchange import HttpExchange
from antiphon.protocol.types.events import Event, InProgress, OutputTextDelta
from antiphon.protocol.types.response import Response
from antiphon.transport.http.channel import HttpChannel
from antiphon.transport.http.request import Request, build_request
from antiphon.transport.streaming.event_writer import RESPONSE_FORMAT, SseStream, StreamFormat
from antiphon.transport.streaming.sse import DONE, encode_events, encode_keepalive
from tests.http_server.recording_transport import RecordingConnection, run_loop_once
from tests.support.asgi_client import build_http_scope

pytestmark = pytest.mark.anyio


@pytest.fixture
def connection() -> RecordingConnection:
    return RecordingConnection()


@pytest.fixture
async def channel(connection: RecordingConnection) -> HttpChannel:
    """A channel whose response head has been written."""
    _, new_channel = connection.make_channel()
    await new_channel.begin(200, [])
    connection.transport.writes.clear()
    return new_channel


def make_stream(channel: HttpChannel, stream_format: StreamFormat = RESPONSE_FORMAT) -> SseStream:
    return SseStream(build_request(channel, Request), stream_format)


def make_delta(number: int) -> Event:
    return OutputTextDelta(sequence_number=number, item_id="msg_1", output_index=0, content_index=0, delta="a\nb")


def make_chunk(*events: Event) -> bytes:
    body = encode_events(list(events))
    return b"%x\r\n%b\r\n" % (len(body), body)


async def test_events_of_one_loop_iteration_are_one_write(
    channel: HttpChannel, connection: RecordingConnection
) -> None:
    writer = make_stream(channel)
    assert writer.emit([make_delta(0), make_delta(1)]) is None
    assert writer.emit([make_delta(2)]) is None
    assert connection.transport.writes == []
    await run_loop_once()
    assert connection.transport.writes == [make_chunk(make_delta(0), make_delta(1), make_delta(2))]
    writer.emit([make_delta(3)])
    await run_loop_once()
    assert connection.transport.writes[1:] == [make_chunk(make_delta(3))]


async def test_the_last_events_and_the_end_are_one_write_and_the_last_one(
    channel: HttpChannel, connection: RecordingConnection
) -> None:
    writer = make_stream(channel)
    writer.emit([make_delta(0)])
    assert writer.last == make_delta(0)
    await writer.end()
    body = encode_events([make_delta(0)]) + DONE
    assert connection.transport.writes == [b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)]
    await run_loop_once()
    assert len(connection.transport.writes) == 1


async def test_events_are_written_even_if_the_engine_never_yields(
    channel: HttpChannel, connection: RecordingConnection
) -> None:
    writer = make_stream(channel)
    for number in range(200):
        writer.emit([make_delta(number)])
    assert 0 < len(connection.transport.writes) < 200
    await run_loop_once()
    assert b"".join(connection.transport.writes).count(b"event: ") == 200


async def test_emitting_waits_for_a_slow_client(channel: HttpChannel, connection: RecordingConnection) -> None:
    writer = make_stream(channel)
    connection.pause_writing()
    waiting = writer.emit([make_delta(0)])
    assert waiting is not None
    connection.resume_writing()
    async with asyncio.timeout(30):
        await waiting


@pytest.mark.parametrize("gone", ["disconnected", "closing"])
async def test_nothing_is_written_after_a_disconnect(
    channel: HttpChannel, connection: RecordingConnection, gone: str
) -> None:
    writer = make_stream(channel)
    writer.emit([make_delta(0)])
    exchange: HttpExchange = channel.direct
    exchange.gone = gone == "disconnected"
    connection.transport.closing = gone == "closing"
    await run_loop_once()
    assert connection.transport.writes == []


async def test_each_batch_is_one_message_over_asgi() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    writer = make_stream(HttpChannel(build_http_scope("POST", b"/", []), _receive_nothing, send))
    waiting = writer.emit([make_delta(0), make_delta(1)])
    assert waiting is not None
    await waiting
    await writer.end()
    assert sent == [
        {"type": "http.response.body", "body": encode_events([make_delta(0), make_delta(1)]), "more_body": True},
        {"type": "http.response.body", "body": DONE},
    ]


async def _receive_nothing() -> Any:
    raise AssertionError("nothing is received here")


def test_each_event_of_a_batch_is_framed_separately() -> None:
    progress = InProgress(sequence_number=1, response=Response(id="resp_1", created_at=1, model="m"))
    events = [make_delta(0), progress, make_delta(2), make_delta(3)]
    assert encode_events(events) == b"".join([encode_events([event]) for event in events])


async def test_events_from_a_callback_are_written_at_once(
    channel: HttpChannel, connection: RecordingConnection
) -> None:
    writer = make_stream(channel)
    writer.emit([make_delta(0)])
    snapshots: list[list[bytes]] = []

    def callback() -> None:
        writer.emit([make_delta(1)])
        snapshots.append([*connection.transport.writes])

    loop = asyncio.get_running_loop()
    loop.call_soon(callback)  # runs after the events of the task have been written
    await run_loop_once()
    loop.call_soon(callback)
    await run_loop_once()
    assert snapshots == [
        [make_chunk(make_delta(0)), make_chunk(make_delta(1))],
        [make_chunk(make_delta(0)), make_chunk(make_delta(1)), make_chunk(make_delta(1))],
    ]


async def test_the_encoder_and_the_end_marker_can_be_replaced(
    channel: HttpChannel, connection: RecordingConnection
) -> None:
    writer = make_stream(channel, StreamFormat(lambda events: b"%d events;" % len(events), encode_keepalive, done=b""))
    writer.emit([make_delta(0), make_delta(1)])
    await writer.end()
    assert connection.transport.writes == [b"9\r\n2 events;\r\n0\r\n\r\n"]


async def test_a_head_request_gets_no_events(connection: RecordingConnection) -> None:
    exchange, channel = connection.make_channel("HEAD")
    await channel.begin(200, [])
    writer = make_stream(channel)
    assert writer.emit([make_delta(0)]) is None
    await writer.end()
    await run_loop_once()
    assert [written.partition(b"\r\n\r\n")[2] for written in connection.transport.writes] == [b""]
    assert exchange.complete
