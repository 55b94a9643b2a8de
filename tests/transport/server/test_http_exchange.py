"""HttpExchange, one request and its reply, on a recording connection without a server.

Covers `transport/http/channel.py`, `transport/server/asgi_channel.py` and `transport/server/client_task.py`.
"""

import asyncio

import pytest

from antiphon.transport.http.channel import CLOSE, ClientGone
from tests.transport.server.recording_transport import RecordingConnection, run_loop_once

pytestmark = pytest.mark.anyio

LENGTH = (b"content-length", b"2")


def count_cancellations() -> int:
    task = asyncio.current_task()
    assert task is not None
    return task.cancelling()


async def resolve(value: object) -> bytes:
    async with asyncio.timeout(30):
        return value if isinstance(value, bytes) else await value  # type: ignore[misc]  # as HttpChannel.read returns


async def test_a_whole_reply_is_one_write() -> None:
    connection = RecordingConnection()
    exchange = connection.make_exchange()
    assert exchange.reply(200, [LENGTH], b"{}") is None
    assert connection.transport.writes == [b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"]
    assert exchange.complete


@pytest.mark.parametrize("waits", [True, False])
async def test_a_finished_reply_is_reported_to_the_connection(waits: bool) -> None:
    connection = RecordingConnection()
    connection.read_paused = not waits
    if waits:
        connection.waiting.append(connection.make_exchange())
    connection.make_exchange().reply(200, [LENGTH], b"{}")
    assert connection.calls == ["finished"]


async def test_a_head_request_gets_no_body() -> None:
    connection = RecordingConnection()
    connection.make_exchange("HEAD").reply(200, [LENGTH], b"{}")
    assert connection.transport.writes == [b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"]


async def test_a_head_without_data_is_sent_after_one_loop_iteration() -> None:
    connection = RecordingConnection()
    exchange = connection.make_exchange()
    exchange.begin(200, [])
    assert connection.transport.writes == []
    await run_loop_once()
    exchange.write(b"hello")
    exchange.write(b"")  # an empty chunk would end the body
    exchange.end()
    assert connection.transport.writes == [
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
        b"5\r\nhello\r\n",
        b"0\r\n\r\n",
    ]


async def test_a_status_without_a_body_has_no_chunks() -> None:
    connection = RecordingConnection()
    exchange = connection.make_exchange("OPTIONS")
    exchange.begin(204, [])
    exchange.end()
    await run_loop_once()
    assert connection.transport.writes == [b"HTTP/1.1 204 No Content\r\n\r\n"]


@pytest.mark.parametrize("headers", [[CLOSE], []])
async def test_the_last_reply_has_one_connection_close_header_and_closes(headers: list[tuple[bytes, bytes]]) -> None:
    connection = RecordingConnection()
    exchange = connection.make_exchange()
    exchange.keep_alive = bool(headers)  # either the header or the exchange requests the close
    exchange.reply(200, [LENGTH, *headers], b"{}")
    assert connection.transport.writes == [b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}"]
    assert connection.calls == ["finished and closing"]


async def test_a_received_body_is_returned_at_once() -> None:
    exchange = RecordingConnection().make_exchange()
    for byte in b"[1]":
        exchange.receive_body(bytes([byte]))
    exchange.finish_body()
    assert exchange.read() == b"[1]"
    assert not exchange.more


async def test_reading_waits_for_each_piece_of_a_body() -> None:
    connection = RecordingConnection()
    exchange = connection.make_exchange()
    first = asyncio.ensure_future(resolve(exchange.read()))
    await run_loop_once()
    exchange.receive_body(b"[1,")
    assert await resolve(first) == b"[1,"
    last = asyncio.ensure_future(resolve(exchange.read()))
    await run_loop_once()
    exchange.finish_body()
    assert (await resolve(last), exchange.more) == (b"", False)
    assert connection.transport.writes == []


async def test_100_continue_is_sent_once_and_only_when_the_body_is_awaited() -> None:
    connection = RecordingConnection()
    exchange = connection.make_exchange("POST", (b"expect", b"100-Continue"))
    exchange.receive_body(b"[")
    assert exchange.read() == b"["
    assert connection.transport.writes == []
    for piece in (b"1", b"]"):
        reading = asyncio.ensure_future(resolve(exchange.read()))
        await run_loop_once()
        exchange.receive_body(piece)
        assert await resolve(reading) == piece
    assert connection.transport.writes == [b"HTTP/1.1 100 Continue\r\n\r\n"]


async def test_a_reply_waits_for_a_slow_client() -> None:
    connection = RecordingConnection()
    connection.pause_writing()
    exchange = connection.make_exchange()
    waiting = exchange.reply(200, [LENGTH], b"{}")
    assert waiting is not None
    assert connection.transport.writes == []
    connection.resume_writing()
    async with asyncio.timeout(30):
        await waiting
    assert (len(connection.transport.writes), exchange.complete) == (1, True)


async def test_a_disconnect_raises_client_gone_in_readers_and_in_handlers() -> None:
    exchange = RecordingConnection().make_exchange()
    reading = asyncio.ensure_future(resolve(exchange.read()))
    asyncio.get_running_loop().call_soon(exchange.disconnect)
    with pytest.raises(ClientGone), exchange:
        await asyncio.Event().wait()
    with pytest.raises(ClientGone):
        await reading
    with pytest.raises(ClientGone):
        exchange.read()
    assert not count_cancellations()


async def test_a_disconnect_cancels_work_that_starts_later_but_no_finished_work() -> None:
    exchange = RecordingConnection().make_exchange()
    exchange.disconnect()
    with pytest.raises(ClientGone), exchange:
        await asyncio.Event().wait()
    with exchange:
        pass  # never yields to the event loop
    await run_loop_once()
    assert not count_cancellations()


async def test_a_cancellation_from_another_source_is_not_swallowed() -> None:
    exchange, task = RecordingConnection().make_exchange(), asyncio.current_task()
    assert task is not None
    task.cancel()
    exchange.disconnect()
    with pytest.raises(asyncio.CancelledError), exchange:
        await asyncio.Event().wait()
    assert task.uncancel() == 0


async def test_nothing_is_written_after_a_disconnect() -> None:
    connection = RecordingConnection()
    exchange = connection.make_exchange()
    exchange.disconnect()
    connection.pause_writing()  # no call waits for the client
    assert [exchange.begin(200, []), exchange.write(b"x"), exchange.end(), exchange.reply(200, [LENGTH], b"{}")] == [
        None
    ] * 4
    exchange.close()
    assert (connection.transport.writes, connection.calls) == ([], [])


async def test_closing_an_unfinished_reply_abandons_the_exchange() -> None:
    connection = RecordingConnection()
    connection.make_exchange().close()
    assert connection.calls == ["abandoned"]


async def test_a_second_reply_is_rejected() -> None:
    exchange = RecordingConnection().make_exchange()
    exchange.reply(200, [LENGTH], b"{}")
    with pytest.raises(RuntimeError):
        exchange.reply(200, [LENGTH], b"{}")
    with pytest.raises(RuntimeError):
        exchange.end()
