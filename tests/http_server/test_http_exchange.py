"""HttpExchange, one request and its response as ASGI messages, on a recording connection without a server."""

import asyncio
from typing import Any

import pytest

from antiphon.http_server.http_exchange import CLOSE, DIRECT, HttpExchange
from antiphon.http_server.request_parser import RequestHead
from tests.http_server.recording_transport import RecordingConnection, run_loop_once

pytestmark = pytest.mark.anyio

LENGTH = (b"content-length", b"2")
DISCONNECT = {"type": "http.disconnect"}


async def start(exchange: HttpExchange, status: int = 200, *headers: tuple[bytes, bytes]) -> None:
    await exchange.send({"type": "http.response.start", "status": status, "headers": [*headers]})


async def send_body(exchange: HttpExchange, body: bytes = b"", more: bool = False) -> None:
    await exchange.send({"type": "http.response.body", "body": body, "more_body": more})


async def receive(exchange: HttpExchange) -> Any:
    async with asyncio.timeout(30):
        return await exchange.receive()


def body_message(body: bytes, more: bool) -> Any:
    return {"type": "http.request", "body": body, "more_body": more}


async def test_a_response_with_a_length_is_one_write() -> None:
    connection = RecordingConnection()
    exchange = connection.make_exchange()
    await start(exchange, 200, LENGTH)
    await send_body(exchange, b"{}")
    assert connection.transport.writes == [b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"]
    assert exchange.complete
    assert connection.calls == ["finished"]


async def test_a_head_request_gets_no_body() -> None:
    connection = RecordingConnection()
    exchange = connection.make_exchange("HEAD")
    await start(exchange, 200, LENGTH)
    await send_body(exchange, b"{}")
    assert b"".join(connection.transport.writes) == b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"


async def test_a_response_of_unknown_length_is_chunked() -> None:
    connection = RecordingConnection()
    exchange = connection.make_exchange()
    await start(exchange)
    await send_body(exchange, b"hello", more=True)
    await send_body(exchange, b"", more=True)  # an empty chunk would end the body
    exchange.write(b"direct")
    exchange.write(b"")
    await send_body(exchange, b"end")
    assert connection.transport.writes == [
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n",
        b"6\r\ndirect\r\n",
        b"3\r\nend\r\n0\r\n\r\n",
    ]


async def test_an_empty_body_message_sends_the_head() -> None:
    """Until then the server may replace the response, as ASGI permits."""
    connection = RecordingConnection()
    exchange = connection.make_exchange()
    await start(exchange)
    assert connection.transport.writes == []
    await send_body(exchange, b"", more=True)
    assert connection.transport.writes == [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"]


async def test_an_http_1_0_client_gets_no_chunks() -> None:
    """The end of the connection ends the body."""
    connection = RecordingConnection()
    exchange = connection.make_exchange(version="1.0")
    await start(exchange)
    await send_body(exchange, b"hello", more=True)
    await send_body(exchange)
    assert b"".join(connection.transport.writes) == b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nhello"
    assert connection.calls == ["finished and closing"]


async def test_a_status_without_a_body_has_no_chunks() -> None:
    connection = RecordingConnection()
    exchange = connection.make_exchange("OPTIONS")
    await start(exchange, 204)
    await send_body(exchange)
    assert connection.transport.writes == [b"HTTP/1.1 204 No Content\r\n\r\n"]


async def test_an_unknown_status_has_no_reason_phrase() -> None:
    connection = RecordingConnection()
    exchange = connection.make_exchange("HEAD")
    await start(exchange, 599)
    await send_body(exchange)
    assert connection.transport.writes == [b"HTTP/1.1 599 \r\n\r\n"]


@pytest.mark.parametrize("headers", [[CLOSE], []])
async def test_the_last_response_has_one_connection_close_header(headers: list[tuple[bytes, bytes]]) -> None:
    connection = RecordingConnection()
    exchange = connection.make_exchange()
    exchange.keep_alive = bool(headers)  # either the header or the exchange requests the close
    await start(exchange, 200, LENGTH, *headers)
    await send_body(exchange, b"{}")
    written = b"".join(connection.transport.writes)
    assert written == b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}"
    assert connection.calls == ["finished and closing"]


async def test_a_received_body_is_one_message() -> None:
    exchange = RecordingConnection().make_exchange()
    for byte in b"[1]":
        exchange.receive_body(bytes([byte]))
    exchange.finish_body()
    assert await receive(exchange) == body_message(b"[1]", more=False)


async def test_receiving_waits_for_each_piece_of_a_body() -> None:
    connection = RecordingConnection()
    exchange = connection.make_exchange()
    first = asyncio.ensure_future(receive(exchange))
    await run_loop_once()
    exchange.receive_body(b"[1,")
    assert await first == body_message(b"[1,", more=True)
    last = asyncio.ensure_future(receive(exchange))
    await run_loop_once()
    exchange.finish_body()
    assert await last == body_message(b"", more=False)
    assert connection.transport.writes == []


async def test_100_continue_is_sent_once_and_only_when_the_body_is_awaited() -> None:
    connection = RecordingConnection()
    exchange = connection.make_exchange("POST", (b"expect", b"100-Continue"))
    exchange.receive_body(b"[")
    assert (await receive(exchange))["body"] == b"["
    assert connection.transport.writes == []
    for piece in (b"1", b"]"):
        reading = asyncio.ensure_future(receive(exchange))
        await run_loop_once()
        exchange.receive_body(piece)
        assert (await reading)["body"] == piece
    assert connection.transport.writes == [b"HTTP/1.1 100 Continue\r\n\r\n"]


async def test_a_message_waits_for_a_slow_client() -> None:
    connection = RecordingConnection()
    connection.pause_writing()
    exchange = connection.make_exchange()
    waiting = asyncio.ensure_future(start(exchange, 200, LENGTH))
    await run_loop_once()
    assert exchange.write_paused
    assert connection.transport.writes == []
    connection.resume_writing()
    async with asyncio.timeout(30):
        await waiting
        await exchange.drain()
    await send_body(exchange, b"{}")
    assert len(connection.transport.writes) == 1


async def test_the_application_receives_the_disconnect_after_the_body() -> None:
    exchange = RecordingConnection().make_exchange()
    exchange.finish_body()
    assert (await receive(exchange))["more_body"] is False
    waiting = asyncio.ensure_future(receive(exchange))
    await run_loop_once()
    exchange.disconnect()
    assert await waiting == DISCONNECT
    assert await receive(exchange) == DISCONNECT


async def test_the_application_receives_a_disconnect_during_the_body() -> None:
    exchange = RecordingConnection().make_exchange()
    waiting = asyncio.ensure_future(receive(exchange))
    await run_loop_once()
    exchange.disconnect()
    assert await waiting == DISCONNECT


async def test_the_end_of_the_response_is_received_as_a_disconnect() -> None:
    exchange = RecordingConnection().make_exchange()
    exchange.finish_body()
    await receive(exchange)
    waiting = asyncio.ensure_future(receive(exchange))
    await start(exchange, 200, LENGTH)
    await send_body(exchange, b"{}")
    assert await waiting == DISCONNECT


@pytest.mark.parametrize("early", [True, False])
async def test_a_disconnect_calls_the_callback_once(early: bool) -> None:
    exchange, calls = RecordingConnection().make_exchange(), list[str]()
    if early:
        exchange.disconnect()
    exchange.on_disconnect(lambda: calls.append("called"))
    if not early:
        exchange.disconnect()
    await run_loop_once()
    exchange.disconnect()
    assert calls == ["called"]


async def test_a_callback_that_was_removed_is_not_called() -> None:
    exchange, calls = RecordingConnection().make_exchange(), list[str]()
    exchange.on_disconnect(lambda: calls.append("called"))
    exchange.on_disconnect(None)
    exchange.disconnect()
    await run_loop_once()
    assert calls == []


async def test_reading_is_resumed_to_notice_a_disconnect() -> None:
    connection = RecordingConnection()
    connection.read_paused = True
    connection.make_exchange().on_disconnect(lambda: None)
    assert not connection.read_paused


async def test_nothing_is_written_after_a_disconnect() -> None:
    connection = RecordingConnection()
    exchange = connection.make_exchange()
    exchange.disconnect()
    connection.pause_writing()  # no message waits for the client
    async with asyncio.timeout(30):
        await start(exchange)
        await send_body(exchange, b"x", more=True)
        exchange.write(b"x")
        await send_body(exchange)
    assert connection.transport.writes == []


async def test_an_application_that_ends_without_a_response_abandons_the_exchange() -> None:
    connection = RecordingConnection()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        """Ends at once."""

    await connection.make_exchange().run(app)
    assert connection.calls == ["abandoned"]


@pytest.mark.parametrize("steps", ["start start", "body", "start body body", "unknown"])
async def test_messages_in_the_wrong_order_are_rejected(steps: str) -> None:
    exchange = RecordingConnection().make_exchange()
    *valid, last = steps.split()
    messages: dict[str, Any] = {
        "start": {"type": "http.response.start", "status": 200},
        "body": {"type": "http.response.body"},
        "unknown": {"type": "websocket.accept"},
    }
    for step in valid:
        await exchange.send(messages[step])
    with pytest.raises(RuntimeError):
        await exchange.send(messages[last])


async def test_the_scope_describes_the_request() -> None:
    connection = RecordingConnection()
    connection.app_state["pool"] = 1
    head = RequestHead("GET", b"/a%20b/%C3%A4", b"x=1", [(b"host", b"h")], "1.1", True)
    exchange = HttpExchange(connection, head)
    scope = exchange.make_scope()
    assert scope.pop("extensions") == {DIRECT: exchange}
    assert scope == {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "server": None,
        "client": None,
        "scheme": "http",
        "method": "GET",
        "root_path": "",
        "path": "/a b/ä",
        "raw_path": b"/a%20b/%C3%A4",
        "query_string": b"x=1",
        "headers": [(b"host", b"h")],
        "state": {"pool": 1},
    }
