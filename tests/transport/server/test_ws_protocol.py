"""The protocol on its wire: bites, pieces, clocks and ends, without a network."""

import asyncio
import gc
import logging
import weakref
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.frames import Frame

from antiphon.transport.server.ws_protocol import Wire
from drills.bombs.sockets import FRAMES as BROKEN
from tests.clients.websocket.raw_socket import BINARY, CLOSE, PING, TEXT, frame, request
from tests.support.reference_cycles import errors_in_cycles
from tests.transport.server.ws_wire import Transport, new_wire

pytestmark = pytest.mark.anyio

CONTINUATION = 0


class App:
    """Lets everybody in and remembers what was said."""

    def __init__(self) -> None:
        self.said: list[Any] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] != "websocket.disconnect":
            self.said.append(message.get("text", message.get("bytes")))
        self.said.append(message["code"])


async def turns(times: int = 200) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


async def let_in(app: App, transport: Transport, **config: Any) -> Wire:
    wire = new_wire(transport, app, **config)
    wire.data_received(request("/v1/responses"))
    await turns(10)
    assert transport.writes.pop(0).startswith(b"HTTP/1.1 101 ")
    return wire


async def heard(pieces: list[bytes]) -> tuple[list[Any], bytes]:
    """What the application heard, and what the client was sent."""
    app, transport = App(), Transport()
    faults: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: faults.append(context))
    wire = await let_in(app, transport)
    for piece in pieces:
        for _ in range(50):
            if transport.reads or transport.closing:
                break
            await turns(20)
        if transport.closing:
            break
        wire.data_received(piece)
    await turns()
    if not transport.closing:
        wire.connection_lost(None)
    await turns(10)
    if wire.close_timer is not None:
        wire.close_timer.cancel()
    assert faults == []
    return app.said, b"".join(transport.writes)


FRAMES = st.builds(
    frame,
    st.sampled_from([TEXT, BINARY, CONTINUATION, PING, CLOSE, 3]),
    st.sampled_from([b"", b"{}", b"x" * 125, b"\x03\xe8", b"\xff", "ü".encode(), b"y" * 5000]),
    fin=st.booleans(),
    rsv1=st.sampled_from([False] * 9 + [True]),
    mask=st.sampled_from([True] * 9 + [False]),
)


@given(st.lists(FRAMES, max_size=12), st.lists(st.integers(1, 9000), max_size=6), st.binary(max_size=8))
@settings(max_examples=40)
def test_whatever_comes_in_whatever_pieces_is_heard_alike_and_breaks_nothing(
    frames: list[bytes], cuts: list[int], rest: bytes
) -> None:
    whole = b"".join(frames) + rest
    pieces, at = [], 0
    for cut in cuts:
        pieces.append(whole[at : at + cut])
        at += cut
    pieces.append(whole[at:])
    once, again = asyncio.run(heard([whole])), asyncio.run(heard([piece for piece in pieces if piece]))
    assert _before_the_end(once) == _before_the_end(again)


def _before_the_end(got: tuple[list[Any], bytes]) -> tuple[Any, ...]:
    """A mistake takes along what came with it in one piece and was not heard yet; of two, either may be named."""
    said, sent = got
    failed = isinstance(said[-1], int) and said[-1] in (1002, 1007, 1009)
    return ("failed",) if failed else (said, sent)


async def test_a_large_message_is_looked_at_in_bites_and_nothing_is_read_meanwhile() -> None:
    app, transport = App(), Transport()
    wire = await let_in(app, transport)
    wire.data_received(frame(TEXT, b"x" * 100_000))
    assert not transport.reads
    assert app.said == []
    await turns()
    assert app.said == [b"x" * 100_000]
    assert transport.reads


async def test_what_comes_while_something_is_looked_at_comes_after_it() -> None:
    app, transport = App(), Transport()
    wire = await let_in(app, transport)
    wire.data_received(frame(TEXT, b"a" * 9000) + frame(TEXT, b"b"))
    wire.data_received(frame(TEXT, b"c"))
    await turns()
    assert app.said == [b"a" * 9000, b"b", b"c"]


async def test_a_wire_that_waits_keeps_nothing_of_what_was_said() -> None:
    """Messages may be large, and clients silent for an hour."""
    app, transport = App(), Transport()
    wire = await let_in(app, transport)
    wire.data_received(frame(TEXT, b"a" * 900, fin=False) + frame(CONTINUATION, b"b" * 900))
    await turns()
    assert len(app.said.pop()) == 1800
    assert not [one for one in gc.get_objects() if isinstance(one, Frame) and len(one.data) == 900]
    assert not wire.frames


async def test_a_message_that_came_together_with_a_mistake_is_not_kept() -> None:
    app, transport = App(), Transport()
    wire = await let_in(app, transport)
    wire.data_received(frame(TEXT, b"a" * 901) + frame(3, b"x"))
    await turns()
    assert app.said == [1002]
    assert not [one for one in gc.get_objects() if isinstance(one, Frame) and len(one.data) == 901]
    wire.connection_lost(None)


async def test_a_connection_that_is_gone_is_forgotten_without_a_search_for_cycles() -> None:
    gc.disable()
    try:
        protocol = await _left()
        await turns(20)
        assert protocol() is None
    finally:
        gc.enable()


async def _left() -> weakref.ref[Any]:
    """The protocol of a client that came and went."""
    wire = await let_in(App(), Transport())
    wire.connection_lost(None)
    return weakref.ref(wire.conn)


@pytest.mark.parametrize("name", ["1 GB", "another opcode", "not masked", "a reason that is no UTF-8", "no UTF-8"])
async def test_who_breaks_the_protocol_leaves_no_cycles_behind(name: str) -> None:
    """What it said may be large, and does not wait for a search for them."""
    with errors_in_cycles() as found:
        await _broken(*BROKEN[name])
        await turns(20)
    assert not found


async def _broken(sent: bytes, code: int) -> None:
    app, transport = App(), Transport()
    wire = await let_in(app, transport)
    wire.data_received(sent)
    await turns()
    assert app.said == [code]
    wire.connection_lost(None)
    await turns(10)
    if wire.close_timer is not None:
        wire.close_timer.cancel()


async def test_a_client_that_leaves_in_the_midst_of_a_message_is_gone() -> None:
    app, transport = App(), Transport()
    wire = await let_in(app, transport)
    wire.data_received(frame(TEXT, b"a" * 9000))
    wire.connection_lost(None)
    await turns()
    assert app.said == [1005]


async def test_a_head_of_any_size_is_read() -> None:
    app, transport = App(), Transport()
    wire = new_wire(transport, app)
    wire.data_received(request("/v1/responses", *(f"X-{number}: {'x' * 100}" for number in range(100))))
    await turns()
    assert transport.writes[0].startswith(b"HTTP/1.1 101 ")
    wire.connection_lost(None)


async def test_of_many_pings_a_client_that_does_not_read_gets_the_last_answered() -> None:
    transport = Transport()
    wire = await let_in(App(), transport)
    wire.pause_writing()
    wire.data_received(frame(PING, b"1") + frame(PING, b"2"))
    wire.data_received(frame(PING, b"3"))
    assert transport.writes == []
    wire.resume_writing()
    assert transport.writes == [b"\x8a\x013"]
    wire.connection_lost(None)


async def test_a_client_that_reads_nothing_is_hung_up_on_in_time_and_one_that_reads_a_little_is_not() -> None:
    transport = Transport()
    wire = await let_in(App(), transport, stall_seconds=10.0)
    now = asyncio.get_running_loop().time()
    wire.check(now)
    transport.unread = 100_000
    wire.pause_writing()
    wire.check(now + 9)
    transport.unread = 99_000
    wire.check(now + 11)
    wire.check(now + 20)
    assert not transport.aborted
    wire.check(now + 22)
    assert transport.aborted
    wire.connection_lost(None)


async def test_a_connection_that_was_closed_and_is_not_gone_is_hung_up_on_in_time() -> None:
    transport = Transport()
    wire = await let_in(App(), transport, stall_seconds=10.0)
    now = asyncio.get_running_loop().time()
    transport.unread = 100
    wire.keepalive_timeout()
    wire.check(now)
    wire.check(now + 9)
    assert not transport.aborted
    wire.check(now + 11)
    assert transport.aborted
    wire.connection_lost(None)


async def test_nothing_of_what_a_client_sends_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        transport = Transport()
        wire = new_wire(transport, App())
        wire.data_received(request("/v1/responses?key=secret", "Authorization: Bearer secret"))
        await turns(10)
        wire.data_received(frame(TEXT, b"secret") + frame(TEXT, b"secret\xff"))
        await turns(10)
        wire.connection_lost(None)
    assert "secret" not in caplog.text


async def test_one_that_is_refused_is_no_mistake_of_ours_to_be_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def refuse(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.http.response.start", "status": 401, "headers": []})
        await send({"type": "websocket.http.response.body", "body": b"{}"})

    transport = Transport()
    wire = new_wire(transport, refuse)
    wire.data_received(request("/v1/responses"))
    await turns(10)
    wire.connection_lost(None)
    assert b"".join(transport.writes).startswith(b"HTTP/1.1 401 ")
    assert transport.closing
    assert caplog.messages == []
