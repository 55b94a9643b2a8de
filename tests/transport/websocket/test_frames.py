import json

import pytest
from msgspec import Struct
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.protocol import OPEN
from websockets.uri import parse_uri

from antiphon.protocol.types.events import Event, InProgress, OutputTextDelta
from antiphon.protocol.types.response import Response
from antiphon.transport.streaming.sse import frames as sse_frames
from antiphon.transport.websocket.frames import frames, texts


def delta(text: str, number: int = 7) -> Event:
    return OutputTextDelta(sequence_number=number, item_id="msg_1", output_index=0, content_index=0, delta=text)


class Word(Struct):
    word: str


def of_size(size: int) -> Word:
    [empty] = texts([Word("")], None)
    return Word("x" * (size - len(empty)))


def received(data: bytes) -> list[Frame]:
    """By a client that looks closely."""
    client = ClientProtocol(parse_uri("ws://localhost/"), state=OPEN, max_size=None)
    client.receive_data(data)
    assert client.parser_exc is None
    found = client.events_received()
    assert all(isinstance(frame, Frame) and frame.opcode is Opcode.TEXT and frame.fin for frame in found)
    return [frame for frame in found if isinstance(frame, Frame)]


@pytest.mark.parametrize("size", [125, 126, 127, 65535, 65536, 65537, 1_000_000])
@pytest.mark.shows("F.1")
def test_a_message_of_any_size_is_one_frame(size: int) -> None:
    event = of_size(size)
    [frame] = received(frames([event], None))
    assert len(frame.data) == size
    assert [frame.data] == texts([event], None)


@pytest.mark.parametrize("lane", [None, "a", "x" * 256])
def test_frames_are_those_that_another_server_would_send(lane: str | None) -> None:
    events: list[Struct] = [delta("a\nb"), of_size(126), of_size(70_000)]
    expected = b"".join(Frame(Opcode.TEXT, text).serialize(mask=False) for text in texts(events, lane))
    assert frames(events, lane) == expected


@pytest.mark.shows("F.1")
def test_the_json_is_that_of_server_sent_events_byte_for_byte() -> None:
    progress = InProgress(sequence_number=1, response=Response(id="resp_1", created_at=1, model="m"))
    events = [progress, delta("Grüße, \u2028\n\x7f 😀"), delta("")]
    lines = sse_frames(events).split(b"\n")
    assert texts([*events], None) == [line.removeprefix(b"data: ") for line in lines if line.startswith(b"data: ")]


@pytest.mark.shows("F.6")
def test_an_event_of_a_named_lane_says_so_and_is_the_same_otherwise() -> None:
    events = [delta("a"), InProgress(sequence_number=1, response=Response(id="resp_1", created_at=1, model="m"))]
    for plain, tagged in zip(texts([*events], None), texts([*events], "lane_1.a-B"), strict=True):
        assert json.loads(tagged) == {**json.loads(plain), "stream_id": "lane_1.a-B"}
        assert tagged.startswith(plain[:-1])
