import asyncio
from typing import Any

import pytest

from antiphon.protocol.types.events import Event, InProgress, OutputTextDelta
from antiphon.protocol.types.response import Response
from antiphon.transport.server.asgi_channel import AsgiLine
from antiphon.transport.server.http_exchange import Cycle
from antiphon.transport.streaming.event_writer import open_outlet
from antiphon.transport.streaming.sse import DONE, frames
from tests.support.asgi_client import http_scope
from tests.transport.server.recording_transport import Carrier, turn

pytestmark = pytest.mark.anyio


@pytest.fixture
def carrier() -> Carrier:
    return Carrier()


@pytest.fixture
async def cycle(carrier: Carrier) -> Cycle:
    """A reply of our server that has begun."""
    begun = carrier.cycle("POST")
    begun.begin(200, [])
    await turn()
    carrier.transport.writes.clear()
    return begun


def delta(number: int) -> Event:
    return OutputTextDelta(sequence_number=number, item_id="msg_1", output_index=0, content_index=0, delta="a\nb")


def chunk(*events: Event) -> bytes:
    body = frames(list(events))
    return b"%x\r\n%b\r\n" % (len(body), body)


async def test_what_is_told_in_one_turn_of_the_loop_is_one_write(cycle: Cycle, carrier: Carrier) -> None:
    outlet = open_outlet(cycle)
    assert outlet.tell([delta(0), delta(1)]) is None
    assert outlet.tell([delta(2)]) is None
    assert carrier.transport.writes == []
    await turn()
    assert carrier.transport.writes == [chunk(delta(0), delta(1), delta(2))]
    outlet.tell([delta(3)])
    await turn()
    assert carrier.transport.writes[1:] == [chunk(delta(3))]


async def test_the_last_events_go_out_with_the_end_and_nothing_comes_after_it(cycle: Cycle, carrier: Carrier) -> None:
    outlet = open_outlet(cycle)
    outlet.tell([delta(0)])
    assert outlet.last == delta(0)
    await outlet.end()
    body = frames([delta(0)]) + DONE
    assert carrier.transport.writes == [b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)]
    await turn()
    assert len(carrier.transport.writes) == 1


async def test_an_engine_that_never_waits_is_written_out_all_the_same(cycle: Cycle, carrier: Carrier) -> None:
    outlet = open_outlet(cycle)
    for number in range(200):
        outlet.tell([delta(number)])
    assert 0 < len(carrier.transport.writes) < 200
    await turn()
    assert b"".join(carrier.transport.writes).count(b"event: ") == 200


async def test_a_reader_who_is_slow_is_waited_for(cycle: Cycle, carrier: Carrier) -> None:
    outlet = open_outlet(cycle)
    carrier.pause_writing()
    waiting = outlet.tell([delta(0)])
    assert waiting is not None
    carrier.resume_writing()
    async with asyncio.timeout(30):
        await waiting


@pytest.mark.parametrize("gone", ["disconnected", "closing"])
async def test_nothing_is_written_to_a_client_that_has_left(cycle: Cycle, carrier: Carrier, gone: str) -> None:
    outlet = open_outlet(cycle)
    outlet.tell([delta(0)])
    cycle.gone = gone == "disconnected"
    carrier.transport.closing = gone == "closing"
    await turn()
    assert carrier.transport.writes == []


async def test_another_server_gets_each_list_by_asgi() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    outlet = open_outlet(AsgiLine(http_scope("POST", b"/", []), _none, send))
    told = outlet.tell([delta(0), delta(1)])
    assert told is not None
    await told
    await outlet.end()
    assert sent == [
        {"type": "http.response.body", "body": frames([delta(0), delta(1)]), "more_body": True},
        {"type": "http.response.body", "body": DONE},
    ]


async def _none() -> Any:
    raise AssertionError("nothing is received here")


def test_events_joined_in_one_piece_are_framed_one_by_one_whatever_their_kinds() -> None:
    progress = InProgress(sequence_number=1, response=Response(id="resp_1", created_at=1, model="m"))
    events = [delta(0), progress, delta(2), delta(3)]
    assert frames(events) == b"".join([frames([event]) for event in events])


async def test_what_a_callback_tells_is_written_at_once(cycle: Cycle, carrier: Carrier) -> None:
    outlet = open_outlet(cycle)
    outlet.tell([delta(0)])
    told: list[list[bytes]] = []

    def callback() -> None:
        outlet.tell([delta(1)])
        told.append([*carrier.transport.writes])

    loop = asyncio.get_running_loop()
    loop.call_soon(callback)  # after what the task told, which is out by then
    await turn()
    loop.call_soon(callback)
    await turn()
    assert told == [[chunk(delta(0)), chunk(delta(1))], [chunk(delta(0)), chunk(delta(1)), chunk(delta(1))]]


async def test_frames_and_the_end_are_those_of_the_api_that_is_spoken(cycle: Cycle, carrier: Carrier) -> None:
    outlet = open_outlet(cycle, frames=lambda events: b"%d events;" % len(events), done=b"")
    outlet.tell([delta(0), delta(1)])
    await outlet.end()
    assert carrier.transport.writes == [b"9\r\n2 events;\r\n0\r\n\r\n"]


async def test_the_head_goes_out_with_what_is_told_in_the_same_turn(carrier: Carrier) -> None:
    cycle = carrier.cycle("POST")
    cycle.begin(200, [])
    outlet = open_outlet(cycle)
    outlet.tell([delta(0)])
    outlet.tell([delta(1)])
    assert carrier.transport.writes == []
    await turn()
    (written,) = carrier.transport.writes
    assert written.startswith(b"HTTP/1.1 200 OK\r\n")
    assert written.endswith(b"\r\n\r\n" + chunk(delta(0), delta(1)))


async def test_who_asks_for_the_head_alone_is_told_nothing_else(carrier: Carrier) -> None:
    cycle = carrier.cycle("HEAD")
    cycle.begin(200, [])
    outlet = open_outlet(cycle)
    assert outlet.tell([delta(0)]) is None
    await outlet.end()
    await turn()
    assert [written.partition(b"\r\n\r\n")[2] for written in carrier.transport.writes] == [b""]
    assert cycle.complete
