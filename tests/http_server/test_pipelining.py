"""Pipelined HTTP requests, which are sent before the preceding ones are answered."""

import asyncio
from typing import Any

import pytest
from uvicorn.server import ServerState

from antiphon.http_server.http_protocol import MAX_PIPELINED, MIN_BODY_RATE, HttpProtocol
from antiphon.http_server.request_parser import RequestParser, find_batch_end
from antiphon.http_server.settings import HttpServerSettings
from tests.http_server.recording_transport import RecordingHttpTransport, run_loop_once
from tests.transport.edge_process import DEADLINE_SECONDS, connect, make_request, run_server

pytestmark = pytest.mark.anyio

READ_BYTES = 96 * 1024  # bytes received in one piece: enough to pause reading
CHUNKS = "Transfer-Encoding: chunked"

REQUEST_TEMPLATES = {
    "tiny": b"GET /%d HTTP/1.1\r\n\r\n",
    "with a body": b"POST /%d HTTP/1.1\r\nContent-Length: 4\r\n\r\n\r\n\r\n",
    "that differ in their bodies": b"POST / HTTP/1.1\r\nContent-Length: 8\r\n\r\n%8d",
    "in chunks": b"POST /%d HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n",
    "offering another protocol": b"GET /%d HTTP/1.1\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n",
}


async def echo_app(scope: Any, receive: Any, send: Any) -> None:
    """Respond with the path and the body of the request."""
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    headers = [(b"content-length", b"%d" % len(scope["raw_path"] + b" " + body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": scope["raw_path"] + b" " + body})


class PipelinedClient:
    """An HttpProtocol, and the replies that its client receives."""

    def __init__(self) -> None:
        self.transport = RecordingHttpTransport()
        self.connection = HttpProtocol(HttpServerSettings(echo_app), ServerState(), {})
        self.connection.connection_made(self.transport)  # type: ignore[arg-type]  # has only the methods that are called
        self.max_waiting = 0  # the most requests that waited at the same time

    @property
    def replies(self) -> list[bytes]:
        return [reply.partition(b"\r\n\r\n")[2] for reply in self.transport.writes]

    def send(self, data: bytes) -> None:
        self.connection.data_received(data)
        self.max_waiting = max(self.max_waiting, len(self.connection.waiting))

    async def wait_for_replies(self, number: int) -> None:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while len(self.replies) < number:
                await run_loop_once()
                self.max_waiting = max(self.max_waiting, len(self.connection.waiting))


def fill_read(template: bytes) -> list[bytes]:
    """Make as many requests as fit into one read."""
    number = READ_BYTES // len(template % 10_000)
    return [template % (10_000 + one) for one in range(number)]


@pytest.mark.parametrize("template", REQUEST_TEMPLATES.values(), ids=REQUEST_TEMPLATES)
async def test_a_full_read_queues_a_few_requests_and_answers_all_in_order(template: bytes) -> None:
    requests, client = fill_read(template), PipelinedClient()
    client.send(b"".join(requests))
    await client.wait_for_replies(len(requests))
    assert client.max_waiting <= 2 * MAX_PIPELINED
    assert [b"%d" % (10_000 + one) in reply for one, reply in enumerate(client.replies)] == [True] * len(requests)


async def test_reading_stays_paused_while_many_requests_wait() -> None:
    requests, client = fill_read(REQUEST_TEMPLATES["tiny"]), PipelinedClient()
    client.send(b"".join(requests))
    assert client.transport.calls == ["paused"]
    await client.wait_for_replies(len(requests) // 4)
    assert client.transport.calls == ["paused"]
    await client.wait_for_replies(len(requests))
    assert client.transport.calls == ["paused", "resumed"]


async def test_requests_that_arrive_while_others_wait_are_queued_behind_them() -> None:
    requests, client = fill_read(REQUEST_TEMPLATES["tiny"])[:1000], PipelinedClient()
    for one in requests:
        client.send(one)
    await client.wait_for_replies(len(requests))
    # reading is not paused for so few bytes, so that a disconnect is noticed
    assert (client.max_waiting, client.transport.calls) == (MAX_PIPELINED, [])
    assert client.replies == [b"/%d " % (10_000 + one) for one in range(len(requests))]


MIXED = [
    make_request("/first", method="POST", body=b'"\\r\\n"'),
    make_request("/blank", CHUNKS, method="POST") + b"4\r\n\r\n\r\n\r\n0\r\n\r\n",
    *[make_request("/many", method="POST", body=b"%d" % number) for number in range(2 * MAX_PIPELINED)],
    make_request("/other", "Connection: Upgrade", "Upgrade: h2c", "Content-Length: 3", method="POST") + b"[1]",
    *[make_request(f"/{number}") for number in range(2 * MAX_PIPELINED)],
    make_request("/last", method="POST", body=b"x" * 100),
]


async def test_requests_split_at_any_byte_keep_their_bodies_and_their_order() -> None:
    data, reference = b"".join(MIXED), PipelinedClient()
    reference.send(data)
    await reference.wait_for_replies(len(MIXED))
    for cut in range(1, len(data), 19):
        client = PipelinedClient()
        for piece in (data[:cut], data[cut : cut + 50], data[cut + 50 :]):
            client.send(piece)
            await run_loop_once()
        await client.wait_for_replies(len(MIXED))
        assert client.replies == reference.replies, cut
        assert client.max_waiting <= 2 * MAX_PIPELINED


async def test_an_invalid_request_closes_the_connection_after_the_preceding_replies() -> None:
    client = PipelinedClient()
    client.send(make_request() * 50 + b"\x00\r\n\r\n" + make_request() * 10_000)
    async with asyncio.timeout(DEADLINE_SECONDS):
        while "ended" not in client.transport.calls:
            await run_loop_once()
    for _ in range(100):
        await run_loop_once()
    assert client.transport.writes[-1].startswith(b"HTTP/1.1 400")
    assert len(client.transport.writes) <= 51


async def test_the_body_of_a_waiting_request_does_not_time_out() -> None:
    client = PipelinedClient()
    tail = make_request("/tail", "Content-Length: 100000", method="POST")
    client.send(make_request() * 2 * MAX_PIPELINED + tail + b"x" * 50_000)
    for now in (0.0, 1e6, 2e6):
        client.connection.check(client.connection.loop.time() + now)
    assert client.transport.writes == []
    await client.wait_for_replies(2 * MAX_PIPELINED)
    client.send(b"x" * 50_000)
    await client.wait_for_replies(2 * MAX_PIPELINED + 1)
    assert client.replies[-1] == b"/tail " + b"x" * 100_000


async def test_a_large_body_may_take_longer_but_has_a_minimum_rate() -> None:
    client = PipelinedClient()
    seconds, rate = HttpServerSettings(echo_app).limits.body_seconds, MIN_BODY_RATE
    client.send(make_request("/", f"Content-Length: {11 * rate}", method="POST"))
    for _ in range(10):
        client.send(b"x" * rate)
        await run_loop_once()  # the application reads
    now = client.connection.loop.time()
    for elapsed in (0.0, seconds + 9):
        client.connection.check(now + elapsed)
    assert client.transport.writes == []
    client.connection.check(now + seconds + 11)
    assert client.transport.writes[-1].startswith(b"HTTP/1.1 408")


async def test_bytes_behind_a_connection_close_request_are_ignored() -> None:
    client = PipelinedClient()
    client.send(make_request("/last", "Connection: close") + make_request() * 1000)
    client.send(b"\r\n" * READ_BYTES)
    await client.wait_for_replies(1)
    assert (client.replies, client.transport.calls, client.transport.closing) == ([b"/last "], [], True)


async def test_a_disconnect_is_noticed_behind_many_pipelined_requests() -> None:
    with run_server() as one:
        one.wait_started()
        async with connect(one) as client:
            await client.send(make_request("/v1/flood") + make_request() * 1000)
            await client.reader.readexactly(100_000)
        await one.wait_for_stderr("flood ended")


def test_a_batch_has_at_most_as_many_requests_as_may_wait() -> None:
    data = make_request() * 100
    assert find_batch_end(data, 0) == MAX_PIPELINED * len(make_request())
    assert find_batch_end(make_request() * MAX_PIPELINED, 0) == MAX_PIPELINED * len(make_request())
    assert find_batch_end(b"x" * READ_BYTES, 0) == READ_BYTES
    assert find_batch_end(data, len(make_request())) == (MAX_PIPELINED + 1) * len(make_request())
    assert find_batch_end(data, len(data) + 1) == len(data)


def test_empty_lines_in_a_body_do_not_end_a_request() -> None:
    """Each would be taken for the end of a request, so a body of empty lines would be parsed in pieces of eight
    lines.
    """
    blank = b"\r\n" * (READ_BYTES // 2)
    parser = RequestParser(65536, accept_websockets=False)
    parser.receive(make_request("/", method="POST", body=blank) + make_request("/next"))
    pieces = [event for event in parser.next_events() if isinstance(event, bytes)]
    assert len(pieces) <= 2
    assert b"".join(pieces) == blank
