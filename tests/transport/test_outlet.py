import asyncio
import logging
from typing import Any, cast

import pytest
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from antiphon.protocol.events import Event, InProgress, OutputTextDelta
from antiphon.protocol.response import Response
from antiphon.transport.http import Send
from antiphon.transport.outlet import open_outlet
from antiphon.transport.sse import DONE, frames

pytestmark = pytest.mark.anyio


class Wire:
    """What a transport is for a cycle: it remembers the writes."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.closing = False

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def is_closing(self) -> bool:
        return self.closing


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
async def cycle(wire: Wire) -> RequestResponseCycle:
    """A reply of our server that has begun."""
    transport = cast(asyncio.Transport, wire)
    log = logging.getLogger("uvicorn")
    scope: Any = {"type": "http", "method": "POST"}
    begun = RequestResponseCycle(
        scope, transport, FlowControl(transport), log, log, False, [], asyncio.Event(), False, True, lambda: None
    )
    await begun.send({"type": "http.response.start", "status": 200, "headers": []})
    wire.writes.clear()
    return begun


def delta(number: int) -> Event:
    return OutputTextDelta(sequence_number=number, item_id="msg_1", output_index=0, content_index=0, delta="a\nb")


def chunk(*events: Event) -> bytes:
    body = frames(list(events))
    return b"%x\r\n%b\r\n" % (len(body), body)


async def turn() -> None:
    await asyncio.sleep(0)


async def test_what_is_told_in_one_turn_of_the_loop_is_one_write(cycle: RequestResponseCycle, wire: Wire) -> None:
    outlet = open_outlet(cast(Send, cycle.send))
    assert outlet.tell([delta(0), delta(1)]) is None
    assert outlet.tell([delta(2)]) is None
    assert wire.writes == []
    await turn()
    assert wire.writes == [chunk(delta(0), delta(1), delta(2))]
    outlet.tell([delta(3)])
    await turn()
    assert wire.writes[1:] == [chunk(delta(3))]


async def test_the_last_events_go_out_with_the_end_and_nothing_comes_after_it(
    cycle: RequestResponseCycle, wire: Wire
) -> None:
    outlet = open_outlet(cast(Send, cycle.send))
    outlet.tell([delta(0)])
    assert outlet.last == delta(0)
    await outlet.end()
    body = frames([delta(0)]) + DONE
    assert wire.writes == [b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)]
    await turn()
    assert len(wire.writes) == 1


async def test_an_engine_that_never_waits_is_written_out_all_the_same(cycle: RequestResponseCycle, wire: Wire) -> None:
    outlet = open_outlet(cast(Send, cycle.send))
    for number in range(200):
        outlet.tell([delta(number)])
    assert 0 < len(wire.writes) < 200
    await turn()
    assert b"".join(wire.writes).count(b"event: ") == 200


async def test_a_reader_who_is_slow_is_waited_for(cycle: RequestResponseCycle, wire: Wire) -> None:
    outlet = open_outlet(cast(Send, cycle.send))
    cycle.flow.pause_writing()
    waiting = outlet.tell([delta(0)])
    assert waiting is not None
    cycle.flow.resume_writing()
    async with asyncio.timeout(5):
        await waiting


@pytest.mark.parametrize("gone", ["disconnected", "closing"])
async def test_nothing_is_written_to_a_client_that_has_left(cycle: RequestResponseCycle, wire: Wire, gone: str) -> None:
    outlet = open_outlet(cast(Send, cycle.send))
    outlet.tell([delta(0)])
    cycle.disconnected = gone == "disconnected"
    wire.closing = gone == "closing"
    await turn()
    assert wire.writes == []


async def test_another_server_gets_each_list_by_asgi() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    outlet = open_outlet(send)
    told = outlet.tell([delta(0), delta(1)])
    assert told is not None
    await told
    await outlet.end()
    assert sent == [
        {"type": "http.response.body", "body": frames([delta(0), delta(1)]), "more_body": True},
        {"type": "http.response.body", "body": DONE},
    ]


def test_events_joined_in_one_piece_are_framed_one_by_one_whatever_their_kinds() -> None:
    progress = InProgress(sequence_number=1, response=Response(id="resp_1", created_at=1, model="m"))
    events = [delta(0), progress, delta(2), delta(3)]
    assert frames(events) == b"".join([frames([event]) for event in events])


async def test_what_a_callback_tells_is_written_at_once(cycle: RequestResponseCycle, wire: Wire) -> None:
    outlet = open_outlet(cast(Send, cycle.send))
    outlet.tell([delta(0)])
    told: list[list[bytes]] = []

    def callback() -> None:
        outlet.tell([delta(1)])
        told.append([*wire.writes])

    loop = asyncio.get_running_loop()
    loop.call_soon(callback)  # after what the task told, which is out by then
    await turn()
    loop.call_soon(callback)
    await turn()
    assert told == [[chunk(delta(0)), chunk(delta(1))], [chunk(delta(0)), chunk(delta(1)), chunk(delta(1))]]


async def test_frames_and_the_end_are_those_of_the_api_that_is_spoken(cycle: RequestResponseCycle, wire: Wire) -> None:
    outlet = open_outlet(cast(Send, cycle.send), frames=lambda events: b"%d events;" % len(events), done=b"")
    outlet.tell([delta(0), delta(1)])
    await outlet.end()
    assert wire.writes == [b"9\r\n2 events;\r\n0\r\n\r\n"]
