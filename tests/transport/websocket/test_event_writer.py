"""WebSocketEventWriter with and without the direct extension: encoding, batching, flow control and keep-alives."""

import asyncio
import json
from typing import Any

import pytest
from websockets.frames import Frame, Opcode

from antiphon.http_server.http_exchange import DIRECT
from antiphon.http_server.ws_protocol import WebSocketProtocol
from antiphon.protocol.types.events import Event, InProgress, Keepalive, OutputTextDelta
from antiphon.protocol.types.response import Response
from antiphon.transport.http.websocket_upgrade import WebSocketUpgrade, upgrade_from_scope
from antiphon.transport.streaming.sse import encode_events as encode_sse
from antiphon.transport.websocket.response_task import WebSocketEventWriter, encode_texts
from tests.http_server.recording_transport import run_loop_once
from tests.http_server.ws_wire import RecordingWebSocketTransport, make_protocol
from tests.transport.websocket.ws_client import socket_scope

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


def make_delta(number: int, text: str = "a\nb") -> Event:
    return OutputTextDelta(sequence_number=number, item_id="msg_1", output_index=0, content_index=0, delta=text)


def make_upgrade(protocol: WebSocketProtocol | None, send: Any = None) -> WebSocketUpgrade:
    """Make the request of a WebSocket, on a server with the direct extension or without it."""
    extensions = {} if protocol is None else {DIRECT: protocol}
    scope = {**socket_scope("/v1/responses", []), "extensions": extensions}
    return upgrade_from_scope(scope, send, send)


def encode_frames(events: list[Event], lane: str | None) -> bytes:
    return b"".join(Frame(Opcode.TEXT, text).serialize(mask=False) for text in encode_texts([*events], lane))


async def test_events_of_one_loop_iteration_are_one_write(
    protocol: WebSocketProtocol, transport: RecordingWebSocketTransport
) -> None:
    writer = WebSocketEventWriter(make_upgrade(protocol), "a")
    assert writer.emit([make_delta(0), make_delta(1)]) is None
    assert writer.emit([make_delta(2)]) is None
    assert transport.writes == []
    await run_loop_once()
    assert transport.writes == [encode_frames([make_delta(0), make_delta(1), make_delta(2)], "a")]


async def test_each_lane_is_written_separately(
    protocol: WebSocketProtocol, transport: RecordingWebSocketTransport
) -> None:
    for number, lane in enumerate(("a", None)):
        WebSocketEventWriter(make_upgrade(protocol), lane).emit([make_delta(number)])
    await run_loop_once()
    assert transport.writes == [encode_frames([make_delta(0)], "a"), encode_frames([make_delta(1)], None)]


async def test_the_last_events_are_written_by_the_end(
    protocol: WebSocketProtocol, transport: RecordingWebSocketTransport
) -> None:
    writer = WebSocketEventWriter(make_upgrade(protocol), None)
    writer.emit([make_delta(0)])
    await writer.end()
    assert transport.writes == [encode_frames([make_delta(0)], None)]
    await run_loop_once()
    assert len(transport.writes) == 1


async def test_emitting_waits_for_a_slow_client(protocol: WebSocketProtocol) -> None:
    writer = WebSocketEventWriter(make_upgrade(protocol), None)
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
    writer = WebSocketEventWriter(make_upgrade(protocol), "a")
    await writer.send_keepalive()
    assert transport.writes == []
    writer.emit([make_delta(3)])
    await run_loop_once()
    await writer.send_keepalive()
    assert transport.writes[1:] == [encode_frames([Keepalive(sequence_number=3)], "a")]
    protocol.pause_writing()
    await writer.send_keepalive()
    assert len(transport.writes) == 2


@pytest.mark.parametrize("end", ["close_sent", "disconnected", "closing"])
async def test_nothing_is_written_after_the_close(
    protocol: WebSocketProtocol, transport: RecordingWebSocketTransport, end: str
) -> None:
    writer = WebSocketEventWriter(make_upgrade(protocol), None)
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

    writer = WebSocketEventWriter(make_upgrade(None, send), "a")
    waiting = writer.emit([make_delta(0), make_delta(1)])
    assert waiting is not None
    await waiting
    await writer.send_keepalive()
    await writer.end()
    events: list[Event] = [make_delta(0), make_delta(1), Keepalive(sequence_number=1)]
    expected = [text.decode() for text in encode_texts([*events], "a")]
    assert sent == [{"type": "websocket.send", "text": text} for text in expected]


@pytest.mark.shows("F.1")
def test_the_json_equals_that_of_server_sent_events_byte_for_byte() -> None:
    progress = InProgress(sequence_number=1, response=Response(id="resp_1", created_at=1, model="m"))
    events = [progress, make_delta(2, "Grüße, \u2028\n\x7f 😀"), make_delta(3, "")]
    lines = encode_sse(events).split(b"\n")
    assert encode_texts([*events], None) == [
        line.removeprefix(b"data: ") for line in lines if line.startswith(b"data: ")
    ]


@pytest.mark.shows("F.6")
def test_an_event_of_a_named_lane_differs_only_in_its_stream_id() -> None:
    events = [make_delta(0), InProgress(sequence_number=1, response=Response(id="resp_1", created_at=1, model="m"))]
    for plain, tagged in zip(encode_texts([*events], None), encode_texts([*events], "lane_1.a-B"), strict=True):
        assert json.loads(tagged) == {**json.loads(plain), "stream_id": "lane_1.a-B"}
        assert tagged.startswith(plain[:-1])
