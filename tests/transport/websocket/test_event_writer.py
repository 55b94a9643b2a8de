"""WebSocketEventWriter on our own server and over ASGI: batching, flow control, keep-alives and closing."""

import asyncio
from typing import Any, cast

import pytest

from antiphon.protocol.types.events import Event, Keepalive, OutputTextDelta
from antiphon.transport.server.asgi_channel import Send
from antiphon.transport.server.ws_protocol import WebSocketProtocol
from antiphon.transport.websocket.event_writer import open_websocket_writer
from antiphon.transport.websocket.frames import encode_frames, encode_texts
from tests.transport.server.ws_wire import RecordingWebSocketTransport, make_protocol

pytestmark = pytest.mark.anyio


@pytest.fixture
def transport() -> RecordingWebSocketTransport:
    return RecordingWebSocketTransport()


@pytest.fixture
async def protocol(transport: RecordingWebSocketTransport) -> WebSocketProtocol:
    """A protocol whose handshake is complete."""
    protocol = make_protocol(transport)
    protocol.handshake_complete = True
    return protocol


def make_delta(number: int) -> Event:
    return OutputTextDelta(sequence_number=number, item_id="msg_1", output_index=0, content_index=0, delta="a\nb")


async def run_loop_once() -> None:
    await asyncio.sleep(0)


async def test_events_of_one_loop_iteration_are_one_write(
    protocol: WebSocketProtocol, transport: RecordingWebSocketTransport
) -> None:
    writer = open_websocket_writer(cast(Send, protocol.send), "a")
    assert writer.emit([make_delta(0), make_delta(1)]) is None
    assert writer.emit([make_delta(2)]) is None
    assert transport.writes == []
    await run_loop_once()
    assert transport.writes == [encode_frames([make_delta(0), make_delta(1), make_delta(2)], "a")]


async def test_each_lane_is_written_separately(
    protocol: WebSocketProtocol, transport: RecordingWebSocketTransport
) -> None:
    for number, lane in enumerate(("a", None)):
        open_websocket_writer(cast(Send, protocol.send), lane).emit([make_delta(number)])
    await run_loop_once()
    assert transport.writes == [encode_frames([make_delta(0)], "a"), encode_frames([make_delta(1)], None)]


async def test_the_last_events_are_written_by_the_end(
    protocol: WebSocketProtocol, transport: RecordingWebSocketTransport
) -> None:
    writer = open_websocket_writer(cast(Send, protocol.send), None)
    writer.emit([make_delta(0)])
    await writer.end()
    assert transport.writes == [encode_frames([make_delta(0)], None)]
    await run_loop_once()
    assert len(transport.writes) == 1


async def test_emitting_waits_for_a_slow_client(protocol: WebSocketProtocol) -> None:
    writer = open_websocket_writer(cast(Send, protocol.send), None)
    protocol.pause_writing()
    waiting = writer.emit([make_delta(0)])
    assert waiting is not None
    protocol.resume_writing()
    async with asyncio.timeout(30):
        await waiting


@pytest.mark.shows("A.46", "A.47")
async def test_a_keepalive_repeats_the_last_number_and_is_skipped_for_a_slow_client(
    protocol: WebSocketProtocol, transport: RecordingWebSocketTransport
) -> None:
    writer = open_websocket_writer(cast(Send, protocol.send), "a")
    writer.send_keepalive()
    assert transport.writes == []
    writer.emit([make_delta(3)])
    await run_loop_once()
    writer.send_keepalive()
    assert transport.writes[1:] == [encode_frames([Keepalive(sequence_number=3)], "a")]
    protocol.pause_writing()
    writer.send_keepalive()
    assert len(transport.writes) == 2


@pytest.mark.parametrize("end", ["close_sent", "disconnected", "closing"])
async def test_nothing_is_written_after_the_close(
    protocol: WebSocketProtocol, transport: RecordingWebSocketTransport, end: str
) -> None:
    writer = open_websocket_writer(cast(Send, protocol.send), None)
    writer.emit([make_delta(0)])
    setattr(transport if end == "closing" else protocol, end, True)
    await run_loop_once()
    assert transport.writes == []


async def test_a_message_after_the_close_raises_os_error(
    protocol: WebSocketProtocol, transport: RecordingWebSocketTransport
) -> None:
    protocol.close_sent = True
    with pytest.raises(OSError):  # noqa: PT011 - the error has no message to match
        await protocol.send({"type": "websocket.send", "text": "{}"})
    assert transport.writes == []


async def test_each_event_is_one_message_over_asgi() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    writer = open_websocket_writer(send, "a")
    waiting = writer.emit([make_delta(0), make_delta(1)])
    assert waiting is not None
    await waiting
    writer.send_keepalive()
    await writer.end()
    expected = [text.decode() for text in encode_texts([make_delta(0), make_delta(1)], "a")]
    assert sent == [{"type": "websocket.send", "text": text} for text in expected]
