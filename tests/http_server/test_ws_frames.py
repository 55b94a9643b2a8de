"""The framing of text messages that an application writes directly, checked with the websockets package."""

import pytest
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.protocol import OPEN
from websockets.uri import parse_uri

from tests.http_server.ws_wire import RecordingWebSocketTransport, make_protocol

pytestmark = pytest.mark.anyio


async def write_texts(texts: list[bytes]) -> bytes:
    """Return the bytes that a client receives. Needs a running event loop."""
    transport = RecordingWebSocketTransport()
    protocol = make_protocol(transport)
    protocol.handshake_complete = True
    protocol.write_texts(texts)
    (written,) = transport.writes
    return written


def parse_frames(data: bytes) -> list[Frame]:
    """Parse frames with the strict client of the websockets package."""
    client = ClientProtocol(parse_uri("ws://localhost/"), state=OPEN, max_size=None)
    client.receive_data(data)
    assert client.parser_exc is None
    found = client.events_received()
    assert all(isinstance(frame, Frame) and frame.opcode is Opcode.TEXT and frame.fin for frame in found)
    return [frame for frame in found if isinstance(frame, Frame)]


@pytest.mark.parametrize("size", [0, 125, 126, 127, 65535, 65536, 65537, 1_000_000])
@pytest.mark.shows("F.1")
async def test_a_message_of_any_size_is_one_frame(size: int) -> None:
    [frame] = parse_frames(await write_texts([b"x" * size]))
    assert frame.data == b"x" * size


async def test_messages_that_are_written_together_are_one_write() -> None:
    texts = [b"a", b"", b"x" * 126, "ü".encode() * 70_000, b"a"]
    expected = b"".join(Frame(Opcode.TEXT, text).serialize(mask=False) for text in texts)
    assert await write_texts(texts) == expected
