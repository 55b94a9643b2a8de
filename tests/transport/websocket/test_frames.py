"""The encoding of events as WebSocket text frames, checked with the websockets package."""

import json

import pytest
from msgspec import Struct
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.protocol import OPEN
from websockets.uri import parse_uri

from antiphon.protocol.types.events import Event, InProgress, OutputTextDelta
from antiphon.protocol.types.response import Response
from antiphon.transport.streaming.sse import encode_events as sse_frames
from antiphon.transport.websocket.frames import encode_frames, encode_texts


def make_delta(text: str, number: int = 7) -> Event:
    return OutputTextDelta(sequence_number=number, item_id="msg_1", output_index=0, content_index=0, delta=text)


class Sample(Struct):
    text: str


def make_sample(size: int) -> Sample:
    [empty] = encode_texts([Sample("")], None)
    return Sample("x" * (size - len(empty)))


def parse_frames(data: bytes) -> list[Frame]:
    """Parse frames with the strict client of the websockets package."""
    client = ClientProtocol(parse_uri("ws://localhost/"), state=OPEN, max_size=None)
    client.receive_data(data)
    assert client.parser_exc is None
    found = client.events_received()
    assert all(isinstance(frame, Frame) and frame.opcode is Opcode.TEXT and frame.fin for frame in found)
    return [frame for frame in found if isinstance(frame, Frame)]


@pytest.mark.parametrize("size", [125, 126, 127, 65535, 65536, 65537, 1_000_000])
@pytest.mark.shows("F.1")
def test_a_message_of_any_size_is_one_frame(size: int) -> None:
    event = make_sample(size)
    [frame] = parse_frames(encode_frames([event], None))
    assert len(frame.data) == size
    assert [frame.data] == encode_texts([event], None)


@pytest.mark.parametrize("lane", [None, "a", "x" * 256])
def test_frames_equal_those_of_the_websockets_package(lane: str | None) -> None:
    events: list[Struct] = [make_delta("a\nb"), make_sample(126), make_sample(70_000)]
    expected = b"".join(Frame(Opcode.TEXT, text).serialize(mask=False) for text in encode_texts(events, lane))
    assert encode_frames(events, lane) == expected


@pytest.mark.shows("F.1")
def test_the_json_equals_that_of_server_sent_events_byte_for_byte() -> None:
    progress = InProgress(sequence_number=1, response=Response(id="resp_1", created_at=1, model="m"))
    events = [progress, make_delta("Grüße, \u2028\n\x7f 😀"), make_delta("")]
    lines = sse_frames(events).split(b"\n")
    assert encode_texts([*events], None) == [
        line.removeprefix(b"data: ") for line in lines if line.startswith(b"data: ")
    ]


@pytest.mark.shows("F.6")
def test_an_event_of_a_named_lane_differs_only_in_its_stream_id() -> None:
    events = [make_delta("a"), InProgress(sequence_number=1, response=Response(id="resp_1", created_at=1, model="m"))]
    for plain, tagged in zip(encode_texts([*events], None), encode_texts([*events], "lane_1.a-B"), strict=True):
        assert json.loads(tagged) == {**json.loads(plain), "stream_id": "lane_1.a-B"}
        assert tagged.startswith(plain[:-1])
