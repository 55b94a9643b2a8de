"""WebSocketProtocol without a network: parsing in slices, any splitting of the input, timeouts and closing.

Covers `http_server/slow_client.py`.
"""

import asyncio
import gc
import logging
import weakref
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.frames import Frame

from antiphon.http_server.ws_protocol import WebSocketProtocol
from drills.bombs.sockets import FRAMES as BROKEN
from tests.clients.websocket.raw_socket import BINARY, CLOSE, PING, TEXT, build_upgrade_request, encode_frame
from tests.http_server.ws_wire import RecordingWebSocketTransport, make_protocol
from tests.support.reference_cycles import collect_cyclic_errors

pytestmark = pytest.mark.anyio

CONTINUATION = 0


class RecordingApp:
    """Accepts every connection and records the messages that it receives."""

    def __init__(self) -> None:
        self.messages: list[Any] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] != "websocket.disconnect":
            self.messages.append(message.get("text", message.get("bytes")))
        self.messages.append(message["code"])


async def run_loop(times: int = 200) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


async def connect(app: RecordingApp, transport: RecordingWebSocketTransport, **limits: Any) -> WebSocketProtocol:
    protocol = make_protocol(transport, app, **limits)
    protocol.data_received(build_upgrade_request("/v1/responses"))
    await run_loop(10)
    assert transport.writes.pop(0).startswith(b"HTTP/1.1 101 ")
    return protocol


async def run_connection(pieces: list[bytes]) -> tuple[list[Any], bytes]:
    """Return the messages that the application received, and the bytes that the client was sent."""
    app, transport = RecordingApp(), RecordingWebSocketTransport()
    faults: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: faults.append(context))
    protocol = await connect(app, transport)
    for piece in pieces:
        for _ in range(50):
            if transport.is_reading or transport.closing:
                break
            await run_loop(20)
        if transport.closing:
            break
        protocol.data_received(piece)
    await run_loop()
    if not transport.closing:
        protocol.connection_lost(None)
    await run_loop(10)
    if protocol.close_timer is not None:
        protocol.close_timer.cancel()
    assert faults == []
    return app.messages, b"".join(transport.writes)


FRAMES = st.builds(
    encode_frame,
    st.sampled_from([TEXT, BINARY, CONTINUATION, PING, CLOSE, 3]),
    st.sampled_from([b"", b"{}", b"x" * 125, b"\x03\xe8", b"\xff", "ü".encode(), b"y" * 5000]),
    fin=st.booleans(),
    rsv1=st.sampled_from([False] * 9 + [True]),
    mask=st.sampled_from([True] * 9 + [False]),
)


@given(st.lists(FRAMES, max_size=12), st.lists(st.integers(1, 9000), max_size=6), st.binary(max_size=8))
@settings(max_examples=40)
def test_any_frames_are_received_alike_however_they_are_split(
    frames: list[bytes], cuts: list[int], tail: bytes
) -> None:
    data = b"".join(frames) + tail
    pieces, at = [], 0
    for cut in cuts:
        pieces.append(data[at : at + cut])
        at += cut
    pieces.append(data[at:])
    once, again = asyncio.run(run_connection([data])), asyncio.run(run_connection([piece for piece in pieces if piece]))
    assert _reduce_failure(once) == _reduce_failure(again)


def _reduce_failure(outcome: tuple[list[Any], bytes]) -> tuple[Any, ...]:
    """Reduce the outcome of a failed connection to its failure, which must be equal however the input is split.

    An error discards the unread messages that arrived with it in one piece; of two errors, either may be reported.
    """
    messages, sent = outcome
    failed = isinstance(messages[-1], int) and messages[-1] in (1002, 1007, 1009)
    return ("failed",) if failed else (messages, sent)


async def test_a_large_message_is_parsed_in_slices_while_reading_is_paused() -> None:
    app, transport = RecordingApp(), RecordingWebSocketTransport()
    protocol = await connect(app, transport)
    protocol.data_received(encode_frame(TEXT, b"x" * 100_000))
    assert not transport.is_reading
    assert app.messages == []
    await run_loop()
    assert app.messages == ["x" * 100_000]
    assert transport.is_reading


async def test_data_that_arrives_during_parsing_is_processed_after_it() -> None:
    app, transport = RecordingApp(), RecordingWebSocketTransport()
    protocol = await connect(app, transport)
    protocol.data_received(encode_frame(TEXT, b"a" * 9000) + encode_frame(TEXT, b"b"))
    protocol.data_received(encode_frame(TEXT, b"c"))
    await run_loop()
    assert app.messages == ["a" * 9000, "b", "c"]


async def test_an_idle_protocol_holds_no_reference_to_received_messages() -> None:
    """Messages may be large, and clients idle for an hour."""
    app, transport = RecordingApp(), RecordingWebSocketTransport()
    protocol = await connect(app, transport)
    protocol.data_received(encode_frame(TEXT, b"a" * 900, fin=False) + encode_frame(CONTINUATION, b"b" * 900))
    await run_loop()
    assert len(app.messages.pop()) == 1800
    assert not [one for one in gc.get_objects() if isinstance(one, Frame) and len(one.data) == 900]
    assert not protocol.frames


async def test_a_message_received_together_with_a_protocol_error_is_not_retained() -> None:
    app, transport = RecordingApp(), RecordingWebSocketTransport()
    protocol = await connect(app, transport)
    protocol.data_received(encode_frame(TEXT, b"a" * 901) + encode_frame(3, b"x"))
    await run_loop()
    assert app.messages == [1002]
    assert not [one for one in gc.get_objects() if isinstance(one, Frame) and len(one.data) == 901]
    protocol.connection_lost(None)


async def test_a_closed_connection_is_freed_without_garbage_collection() -> None:
    gc.disable()
    try:
        protocol = await _open_and_close()
        await run_loop(20)
        assert protocol() is None
    finally:
        gc.enable()


async def _open_and_close() -> weakref.ref[Any]:
    """Return a weak reference to the websockets protocol of a connection that was opened and closed."""
    protocol = await connect(RecordingApp(), RecordingWebSocketTransport())
    protocol.connection_lost(None)
    return weakref.ref(protocol.conn)


@pytest.mark.parametrize("name", ["1 GB", "another opcode", "not masked", "a reason that is no UTF-8", "no UTF-8"])
async def test_a_protocol_error_leaves_no_reference_cycles(name: str) -> None:
    """The received data may be large, and must not wait for the garbage collector."""
    with collect_cyclic_errors() as found:
        await _receive_invalid(*BROKEN[name])
        await run_loop(20)
    assert not found


async def _receive_invalid(sent: bytes, code: int) -> None:
    app, transport = RecordingApp(), RecordingWebSocketTransport()
    protocol = await connect(app, transport)
    protocol.data_received(sent)
    await run_loop()
    assert app.messages == [code]
    protocol.connection_lost(None)
    await run_loop(10)
    if protocol.close_timer is not None:
        protocol.close_timer.cancel()


async def test_a_disconnect_during_a_message_is_reported_to_the_application() -> None:
    app, transport = RecordingApp(), RecordingWebSocketTransport()
    protocol = await connect(app, transport)
    protocol.data_received(encode_frame(TEXT, b"a" * 9000))
    protocol.connection_lost(None)
    await run_loop()
    assert app.messages == [1005]


async def test_a_handshake_head_larger_than_one_slice_is_read() -> None:
    app, transport = RecordingApp(), RecordingWebSocketTransport()
    protocol = make_protocol(transport, app)
    protocol.data_received(
        build_upgrade_request("/v1/responses", *(f"X-{number}: {'x' * 100}" for number in range(100)))
    )
    await run_loop()
    assert transport.writes[0].startswith(b"HTTP/1.1 101 ")
    protocol.connection_lost(None)


async def test_only_the_last_ping_is_answered_to_a_client_that_does_not_read() -> None:
    transport = RecordingWebSocketTransport()
    protocol = await connect(RecordingApp(), transport)
    protocol.pause_writing()
    protocol.data_received(encode_frame(PING, b"1") + encode_frame(PING, b"2"))
    protocol.data_received(encode_frame(PING, b"3"))
    assert transport.writes == []
    protocol.resume_writing()
    assert transport.writes == [b"\x8a\x013"]
    protocol.connection_lost(None)


async def test_a_client_is_aborted_once_it_reads_nothing_for_stall_seconds() -> None:
    transport = RecordingWebSocketTransport()
    protocol = await connect(RecordingApp(), transport, stall_seconds=10.0)
    now = asyncio.get_running_loop().time()
    protocol.check(now)
    transport.unread_bytes = 100_000
    protocol.pause_writing()
    protocol.check(now + 9)
    transport.unread_bytes = 99_000
    protocol.check(now + 11)
    protocol.check(now + 20)
    assert not transport.aborted
    protocol.check(now + 22)
    assert transport.aborted
    protocol.connection_lost(None)


async def test_a_closed_connection_with_unread_data_is_aborted_after_stall_seconds() -> None:
    transport = RecordingWebSocketTransport()
    protocol = await connect(RecordingApp(), transport, stall_seconds=10.0)
    now = asyncio.get_running_loop().time()
    transport.unread_bytes = 100
    protocol.keepalive_timeout()
    protocol.check(now)
    protocol.check(now + 9)
    assert not transport.aborted
    protocol.check(now + 11)
    assert transport.aborted
    protocol.connection_lost(None)


async def test_client_data_is_never_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        transport = RecordingWebSocketTransport()
        protocol = make_protocol(transport, RecordingApp())
        protocol.data_received(build_upgrade_request("/v1/responses?key=secret", "Authorization: Bearer secret"))
        await run_loop(10)
        protocol.data_received(encode_frame(TEXT, b"secret") + encode_frame(TEXT, b"secret\xff"))
        await run_loop(10)
        protocol.connection_lost(None)
    assert "secret" not in caplog.text


async def test_a_rejected_handshake_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def refuse(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.http.response.start", "status": 401, "headers": []})
        await send({"type": "websocket.http.response.body", "body": b"{}"})

    transport = RecordingWebSocketTransport()
    protocol = make_protocol(transport, refuse)
    protocol.data_received(build_upgrade_request("/v1/responses"))
    await run_loop(10)
    protocol.connection_lost(None)
    assert b"".join(transport.writes).startswith(b"HTTP/1.1 401 ")
    assert transport.closing
    assert caplog.messages == []
