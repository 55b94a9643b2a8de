import asyncio
from typing import Any, cast

import pytest

from antiphon.protocol.types.events import Event, Keepalive, OutputTextDelta
from antiphon.transport.server.asgi_channel import Send
from antiphon.transport.server.ws_protocol import Wire
from antiphon.transport.websocket.event_writer import open_socket_outlet
from antiphon.transport.websocket.frames import frames, texts
from tests.transport.server.ws_wire import Transport, new_wire

pytestmark = pytest.mark.anyio


@pytest.fixture
def transport() -> Transport:
    return Transport()


@pytest.fixture
async def wire(transport: Transport) -> Wire:
    """Of a client that was let in."""
    wire = new_wire(transport)
    wire.handshake_complete = True
    return wire


def delta(number: int) -> Event:
    return OutputTextDelta(sequence_number=number, item_id="msg_1", output_index=0, content_index=0, delta="a\nb")


async def turn() -> None:
    await asyncio.sleep(0)


async def test_what_is_told_in_one_turn_of_the_loop_is_one_write(wire: Wire, transport: Transport) -> None:
    outlet = open_socket_outlet(cast(Send, wire.send), "a")
    assert outlet.tell([delta(0), delta(1)]) is None
    assert outlet.tell([delta(2)]) is None
    assert transport.writes == []
    await turn()
    assert transport.writes == [frames([delta(0), delta(1), delta(2)], "a")]


async def test_lanes_have_writes_of_their_own(wire: Wire, transport: Transport) -> None:
    for number, lane in enumerate(("a", None)):
        open_socket_outlet(cast(Send, wire.send), lane).tell([delta(number)])
    await turn()
    assert transport.writes == [frames([delta(0)], "a"), frames([delta(1)], None)]


async def test_the_last_events_are_out_when_the_end_is(wire: Wire, transport: Transport) -> None:
    outlet = open_socket_outlet(cast(Send, wire.send), None)
    outlet.tell([delta(0)])
    await outlet.end()
    assert transport.writes == [frames([delta(0)], None)]
    await turn()
    assert len(transport.writes) == 1


async def test_a_reader_who_is_slow_is_waited_for(wire: Wire) -> None:
    outlet = open_socket_outlet(cast(Send, wire.send), None)
    wire.pause_writing()
    waiting = outlet.tell([delta(0)])
    assert waiting is not None
    wire.resume_writing()
    async with asyncio.timeout(30):
        await waiting


@pytest.mark.shows("A.46", "A.47")
async def test_silence_is_broken_with_the_last_number_and_only_for_who_reads(wire: Wire, transport: Transport) -> None:
    outlet = open_socket_outlet(cast(Send, wire.send), "a")
    outlet.nudge()
    assert transport.writes == []
    outlet.tell([delta(3)])
    await turn()
    outlet.nudge()
    assert transport.writes[1:] == [frames([Keepalive(sequence_number=3)], "a")]
    wire.pause_writing()
    outlet.nudge()
    assert len(transport.writes) == 2


@pytest.mark.parametrize("end", ["close_sent", "disconnected", "closing"])
async def test_nothing_is_written_after_the_end(wire: Wire, transport: Transport, end: str) -> None:
    outlet = open_socket_outlet(cast(Send, wire.send), None)
    outlet.tell([delta(0)])
    setattr(transport if end == "closing" else wire, end, True)
    await turn()
    assert transport.writes == []


async def test_a_message_after_the_end_is_for_a_client_that_is_gone(wire: Wire, transport: Transport) -> None:
    wire.close_sent = True
    with pytest.raises(OSError):  # noqa: PT011 - that is all there is to know
        await wire.send({"type": "websocket.send", "text": "{}"})
    assert transport.writes == []


async def test_another_server_gets_each_event_by_asgi() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    outlet = open_socket_outlet(send, "a")
    told = outlet.tell([delta(0), delta(1)])
    assert told is not None
    await told
    outlet.nudge()
    await outlet.end()
    expected = [text.decode() for text in texts([delta(0), delta(1)], "a")]
    assert sent == [{"type": "websocket.send", "text": text} for text in expected]
