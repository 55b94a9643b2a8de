"""HttpProtocol: parsing, limits, timeouts and upgrades, mostly against a server process that is sent raw bytes."""

import asyncio
import contextlib
import json
import signal
import time
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import pytest
from uvicorn.server import ServerState

from antiphon.http_server.http_protocol import HttpProtocol
from antiphon.http_server.settings import HttpServerSettings
from tests.http_server.recording_transport import RecordingHttpTransport, run_loop_once
from tests.transport.edge_process import (
    DEADLINE_SECONDS,
    MAX_ATTEMPTS,
    RawClient,
    ServerProcess,
    connect,
    connect_persistent,
    make_request,
    run_server,
)

pytestmark = pytest.mark.anyio

ECHO_HEAD = "POST /v1/echo HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with run_server() as one:
        yield one.wait_started()


@pytest.fixture(scope="module")
def strict_server() -> Iterator[ServerProcess]:
    """A server whose request and stall timeouts are half a second."""
    with run_server(limits={"header_seconds": 0.5, "body_seconds": 0.5}, stall_seconds=0.5) as one:
        yield one.wait_started()


async def test_requests_share_a_connection(server: ServerProcess) -> None:
    async with connect(server) as client:
        for number in range(3):
            reply = await client.fetch(make_request("/v1/echo", method="POST", body=b"%d" % number))
            assert (reply.status, reply.body) == (200, b"%d" % number)
        assert "server" not in reply.headers
        assert "date" in reply.headers


async def test_pipelined_requests_are_answered_in_order(server: ServerProcess) -> None:
    async with connect(server) as client:
        await client.send(b"".join(make_request("/v1/echo", method="POST", body=b"%d" % n) for n in range(100)))
        assert [(await client.read_reply()).body for _ in range(100)] == [b"%d" % n for n in range(100)]


LAST_PATH: ContextVar[bytes] = ContextVar("note", default=b"nothing")


async def context_app(scope: Any, receive: Any, send: Any) -> None:
    """Respond with the value of a context variable and then set it, as tracing and rate limiting do."""
    found = LAST_PATH.get()
    LAST_PATH.set(scope["raw_path"])
    headers = [(b"content-length", b"%d" % len(found))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": found})


async def test_a_pipelined_request_does_not_inherit_the_context_of_another() -> None:
    transport = RecordingHttpTransport()
    connection = HttpProtocol(HttpServerSettings(context_app), ServerState(), {})
    connection.connection_made(transport)  # type: ignore[arg-type]  # has only the methods that are called
    connection.data_received(b"".join(make_request(f"/{number}") for number in range(3)))
    async with asyncio.timeout(DEADLINE_SECONDS):
        while len(transport.writes) < 3:
            await run_loop_once()
    assert [reply.rpartition(b"\r\n")[2] for reply in transport.writes] == [b"nothing"] * 3


async def test_a_disconnect_is_noticed_while_a_pipelined_request_waits(server: ServerProcess) -> None:
    before = server.read_stderr().count("flood ended")
    async with connect(server) as client:
        await client.send(make_request("/v1/flood") + make_request())
        await client.reader.readexactly(100_000)
    async with asyncio.timeout(DEADLINE_SECONDS):
        while server.read_stderr().count("flood ended") == before:  # noqa: ASYNC110 - polls the output of another process
            await asyncio.sleep(0.02)


async def test_a_head_request_does_not_report_an_empty_body(server: ServerProcess) -> None:
    async with connect(server) as client:
        await client.send(make_request("/v1/models", method="HEAD") + make_request())
        async with asyncio.timeout(DEADLINE_SECONDS):
            head = await client.reader.readuntil(b"\r\n\r\n")
        assert b"content-length: 0" not in head
        assert (await client.read_reply()).status == 200


async def test_http_1_0_connections_are_closed_despite_keep_alive(server: ServerProcess) -> None:
    async with connect(server) as client:
        old = make_request("/health", "Connection: keep-alive").replace(b"HTTP/1.1", b"HTTP/1.0")
        assert (await client.fetch(old)).headers["connection"] == "close"
        assert await client.read_until_closed() == b""


@pytest.mark.parametrize("path", ["/health?a#b?c", "/health#a?b", "/health?"])
async def test_a_path_ends_at_the_query_or_the_fragment(server: ServerProcess, path: str) -> None:
    async with connect(server) as client:
        assert (await client.fetch(make_request(path))).status == 200


@pytest.mark.parametrize(
    "target", ["http://localhost/health", "HTTP://localhost:80/health?a", "https://localhost/health"]
)
async def test_an_absolute_target_is_accepted(server: ServerProcess, target: str) -> None:
    async with connect(server) as client:
        assert (await client.fetch(make_request(target))).status == 200


async def test_the_host_of_an_absolute_target_replaces_the_host_header(server: ServerProcess) -> None:
    async with connect(server) as client:
        assert (await client.fetch(make_request("http://localhost/health", host="Host: elsewhere"))).status == 200
        assert (await client.fetch(make_request("http://elsewhere/health"))).status == 403


async def test_an_idle_connection_is_closed_after_keepalive_seconds() -> None:
    with run_server(keepalive_seconds=1, limits={"header_seconds": 0.5}) as brief:
        brief.wait_started()
        async with connect_persistent(brief) as client:
            assert await client.read_until_closed() == b""
            assert time.monotonic() - client.started_at > 0.95


async def test_a_request_cancelled_at_shutdown_gets_an_error_reply() -> None:
    """The error has the standard format, when the grace period of the shutdown is over."""
    with run_server(shutdown_grace=0.1) as ending:
        ending.wait_started()
        async with connect(ending) as client, connect(ending) as other:
            await client.send(make_request("/v1/wait"))
            assert (await other.fetch(make_request())).status == 200
            ending.send_signal(signal.SIGTERM)
            reply = await client.read_reply()
        assert (reply.status, reply.error["type"]) == (500, "server_error")
        assert reply.headers["connection"] == "close"


async def test_connection_close_adds_one_header_and_changes_nothing_else(server: ServerProcess) -> None:
    async with connect(server) as client:
        first = await client.fetch(make_request("/v1/models"))
        last = await client.fetch(make_request("/v1/models", "Connection: close"))
        assert await client.read_until_closed() == b""
    own = {"date", "x-request-id", "openai-processing-ms"}
    assert own <= first.headers.keys()
    headers = [{name: value for name, value in one.headers.items() if name not in own} for one in (first, last)]
    assert headers[0] == {"content-type": "application/json", "content-length": str(len(first.body))}
    assert headers[1] == {**headers[0], "connection": "close"}
    assert first.body == last.body


async def test_the_head_of_a_stream_is_sent_before_its_first_chunk(server: ServerProcess) -> None:
    async with connect(server) as client:
        await client.send(make_request("/v1/hang", "X-Silent: yes"))
        async with asyncio.timeout(DEADLINE_SECONDS):
            assert (await client.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")


async def test_expect_100_continue_is_answered_before_the_body(server: ServerProcess) -> None:
    async with connect(server) as client:
        await client.send((ECHO_HEAD + "Expect: 100-continue\r\nContent-Length: 3\r\n\r\n").encode())
        async with asyncio.timeout(DEADLINE_SECONDS):
            assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert (await client.fetch(b"[1]")).body == b"[1]"


async def test_a_reply_to_head_has_no_body(server: ServerProcess) -> None:
    async with connect(server) as client:
        await client.send(make_request(method="HEAD") + make_request("/version"))
        head = await client.reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        assert b"content-length: 15" in head
        assert (await client.read_reply()).body == b'{"version":"1.2.3"}'


@pytest.mark.parametrize("size", [65_000, 65_500])
async def test_headers_up_to_the_limit_are_accepted(server: ServerProcess, size: int) -> None:
    async with connect(server) as client:
        assert (await client.fetch(make_request("/health", "X: " + "x" * (size - 100)))).status == 200


OVERSIZED = {
    "one header": lambda: make_request("/health", "X: " + "x" * 66_000),
    "a header of 1 MB": lambda: make_request("/health", "X: " + "x" * 1_000_000),
    "many headers": lambda: make_request("/health", *[f"X-{n}: y" for n in range(100_000)]),
    "a long path": lambda: make_request("/" + "a" * 1_000_000),
    "a long query": lambda: make_request("/health?" + "a" * 1_000_000),
    "a long method": lambda: b"G" * 1_000_000,
    "blank lines": lambda: b"\r\n" * 100_000,
    "unterminated headers": lambda: make_request("/health", "X: " + "x" * 66_000)[:-4],
    "trailers": lambda: (ECHO_HEAD + "Transfer-Encoding: chunked\r\n\r\n0\r\nX: ").encode() + b"x" * 1_000_000,
    "a chunk extension": lambda: (ECHO_HEAD + "Transfer-Encoding: chunked\r\n\r\n1;x=").encode() + b"x" * 1_000_000,
}


@pytest.mark.parametrize("name", OVERSIZED)
@pytest.mark.shows("H6.3")
async def test_oversized_heads_are_rejected_at_once(server: ServerProcess, name: str) -> None:
    async with connect(server) as client:
        client.writer.write(OVERSIZED[name]())
        reply = await client.read_reply()
        assert reply.status in ((431, 400) if name == "a long method" else (431,))
        assert reply.headers["connection"] == "close"
        assert reply.error["type"] == "invalid_request_error"


async def test_a_hundred_megabytes_of_headers_cost_no_memory(server: ServerProcess) -> None:
    before = server.read_resident_bytes()
    async with connect(server) as client:
        await client.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: ")
        refusal = asyncio.ensure_future(
            client.read_reply()
        )  # a client that goes on sending for too long is disconnected
        grown = 0
        with contextlib.suppress(ConnectionError):
            for _ in range(1600):
                client.writer.write(b"x" * 65_536)
                async with asyncio.timeout(DEADLINE_SECONDS):
                    await client.writer.drain()
                grown = max(grown, server.read_resident_bytes() - before)
        assert (await refusal).status == 431
    assert grown < 16 * 1024 * 1024


async def test_an_oversized_body_is_rejected_while_it_is_being_sent() -> None:
    with run_server(limits={"body_bytes": 1000}) as small:
        small.wait_started()
        async with connect(small) as client:
            await client.send((ECHO_HEAD + "Content-Length: 50000000\r\n\r\n").encode())
            assert (await client.read_reply()).status == 413
            with contextlib.suppress(ConnectionError):
                for _ in range(50):
                    await client.send(b"x" * 1_000_000)  # read and discarded
            assert (await client.fetch(make_request())).status == 200


async def test_a_request_sent_byte_by_byte_is_accepted(server: ServerProcess) -> None:
    async with connect(server) as client:
        for byte in make_request("/v1/echo", method="POST", body=b"[1]"):
            await client.send(bytes([byte]))
            await asyncio.sleep(0)
        assert (await client.read_reply()).body == b"[1]"


SLOW = {
    "nothing at all": b"",
    "half a line": b"GET /hea",
    "no end of headers": b"GET /health HTTP/1.1\r\nHost: localhost\r\n",
    "a blank line": b"\r\n",
    "no body": (ECHO_HEAD + "Content-Length: 10\r\n\r\n").encode(),
    "half a body": (ECHO_HEAD + "Content-Length: 10\r\n\r\n12345").encode(),
    "no last chunk": (ECHO_HEAD + "Transfer-Encoding: chunked\r\n\r\n1\r\n1\r\n").encode(),
}


@pytest.mark.shows("H6.3")
async def test_a_slow_request_gets_408_and_the_connection_is_closed(strict_server: ServerProcess) -> None:
    async with asyncio.TaskGroup() as group:  # concurrently, since each one waits for its timeout
        for sent in SLOW.values():
            group.create_task(_check_timeout(strict_server, sent, persistent=False))
            if sent:  # an idle persistent connection is not slow
                group.create_task(_check_timeout(strict_server, sent, persistent=True))


async def _check_timeout(server: ServerProcess, sent: bytes, persistent: bool) -> None:
    async with connect_persistent(server) if persistent else connect(server) as client:
        began = time.monotonic() if persistent else client.started_at
        reply = await client.fetch(sent)
        assert reply.status == 408, sent
        assert reply.headers["connection"] == "close"
        assert "0.5 seconds" in reply.error["message"]
        assert time.monotonic() - began > 0.45
        assert await client.read_until_closed() == b""


@pytest.mark.shows("H6.3")
async def test_sending_byte_by_byte_does_not_extend_the_timeout(strict_server: ServerProcess) -> None:
    async with connect(strict_server) as client:
        await client.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: ")
        sending = asyncio.ensure_future(_send_slowly(client))
        assert (await client.read_reply()).status == 408  # although the client would go on sending
        sending.cancel()
        await asyncio.wait({sending})


async def _send_slowly(client: RawClient) -> None:
    with contextlib.suppress(ConnectionError):
        while True:
            await client.send(b"G")
            await asyncio.sleep(0.05)


async def test_an_unread_body_that_is_sent_slowly_times_out(strict_server: ServerProcess) -> None:
    async with connect_persistent(strict_server) as client:
        await client.send(b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n")
        assert (await client.read_reply()).status == 404
        sending = asyncio.ensure_future(_send_slowly(client))
        assert await client.read_until_closed() == b""
        sending.cancel()
        await asyncio.wait({sending})


IDLE_AFTER = {
    "nothing more": [make_request()],
    "the last chunk came alone": [(ECHO_HEAD + "Transfer-Encoding: chunked\r\n\r\n1\r\n1\r\n").encode(), b"0\r\n\r\n"],
    "the body came after the reply": [make_request("/nowhere", "Content-Length: 3", method="POST"), b"[1]"],
}


async def test_a_connection_that_is_idle_between_requests_stays_open(strict_server: ServerProcess) -> None:
    async with asyncio.TaskGroup() as group:
        for pieces in IDLE_AFTER.values():
            group.create_task(_check_stays_open(strict_server, pieces))


async def _check_stays_open(server: ServerProcess, pieces: list[bytes]) -> None:
    """Retry if the pieces were sent too slowly on a busy machine."""
    for _ in range(MAX_ATTEMPTS):
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            if await _request_after_pause(server, pieces) == 200:
                return
    raise AssertionError(f"The connection never stayed open after {pieces}.")


async def _request_after_pause(server: ServerProcess, pieces: list[bytes]) -> int:
    """Return the status of a request after a pause."""
    async with connect(server) as client:
        for piece in pieces:
            await client.send(piece)
            await asyncio.sleep(0.1)  # so that the pieces arrive separately
        if (await client.read_reply()).status == 408:
            return 408
        await asyncio.sleep(1.7)  # longer than the header and body timeouts: the timer itself is tested
        return (await client.fetch(make_request())).status


async def test_request_timeouts_do_not_cut_off_a_long_reply(strict_server: ServerProcess) -> None:
    async with connect_persistent(strict_server) as client:
        await client.send(make_request("/v1/hang"))
        await client.reader.readuntil(b"hello \r\n")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.2):
                await client.reader.read(1)


BROKEN = {
    "not HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "unknown method": b"BREW /health HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "space in path": b"GET /hea lth HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a target with a user": b"GET http://a@localhost/health HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "asterisk": b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "connect": b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "folded": b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: a\r\n b\r\n\r\n",
    "space before colon": b"GET /health HTTP/1.1\r\nHost : localhost\r\n\r\n",
    "bare line feed": b"GET /health HTTP/1.1\nHost: localhost\n\n",
    "NUL": b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: a\x00b\r\n\r\n",
    "length and chunks": (ECHO_HEAD + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n").encode(),
    "chunks and length": (ECHO_HEAD + "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n").encode(),
    "two lengths": (ECHO_HEAD + "Content-Length: 1\r\nContent-Length: 2\r\n\r\n12").encode(),
    "list of lengths": (ECHO_HEAD + "Content-Length: 1, 1\r\n\r\n1").encode(),
    "signed length": (ECHO_HEAD + "Content-Length: +1\r\n\r\n1").encode(),
    "chunked twice": (ECHO_HEAD + "Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n").encode(),
    "not quite chunked": (ECHO_HEAD + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n").encode(),
    "chunked not last": (ECHO_HEAD + "Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n").encode(),
    "bad chunk size": (ECHO_HEAD + "Transfer-Encoding: chunked\r\n\r\nzz\r\n1\r\n").encode(),
    "huge chunk size": (ECHO_HEAD + "Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n1\r\n").encode(),
    "bad chunk end": (ECHO_HEAD + "Transfer-Encoding: chunked\r\n\r\n1\r\n1XX0\r\n\r\n").encode(),
    "chunk ended by line feed": (ECHO_HEAD + "Transfer-Encoding: chunked\r\n\r\n1\n1\r\n0\r\n\r\n").encode(),
}


@pytest.mark.parametrize("name", BROKEN)
async def test_malformed_requests_are_rejected_and_the_connection_is_closed(server: ServerProcess, name: str) -> None:
    async with connect(server) as client:
        reply = await client.fetch(BROKEN[name])
        assert reply.status == 400
        assert reply.error["type"] == "invalid_request_error"
        assert reply.headers["connection"] == "close"
        await client.send(make_request())
        assert await client.read_until_closed() == b""


async def test_a_request_behind_a_malformed_one_is_not_answered(server: ServerProcess) -> None:
    async with connect(server) as client:
        reply = await client.fetch(BROKEN["length and chunks"] + make_request("/version"))
        assert reply.status == 400
        assert await client.read_until_closed() == b""


async def test_garbage_during_a_reply_cuts_it_off(server: ServerProcess) -> None:
    async with connect(server) as client:
        await client.send(make_request("/v1/hang"))
        await client.reader.readuntil(b"hello ")
        await client.send(b"\x00garbage\r\n\r\n")
        assert b"HTTP/1.1" not in await client.read_until_closed()


async def test_trailers_are_not_treated_as_headers() -> None:
    with run_server(api_key=["k"]) as locked:
        locked.wait_started()
        async with connect(locked) as client:
            smuggled = ECHO_HEAD + "Transfer-Encoding: chunked\r\n\r\n1\r\n1\r\n0\r\nAuthorization: Bearer k\r\n\r\n"
            assert (await client.fetch(smuggled.encode())).status == 401
            honest = (
                ECHO_HEAD + "Authorization: Bearer k\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n1\r\n0\r\nX: y\r\n\r\n"
            )
            assert (await client.fetch(honest.encode())).body == b"1"


async def test_a_client_that_offers_http_2_is_answered_in_http_1(server: ServerProcess) -> None:
    """Java's HttpClient offers h2c by default."""
    offer = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAA")
    async with connect(server) as client:
        for _ in range(2):
            reply = await client.fetch(
                make_request("/v1/echo", *offer, method="POST", body=b'"h2c is mentioned here, too"')
            )
            assert (reply.status, reply.body) == (200, b'"h2c is mentioned here, too"')


@pytest.mark.parametrize("cut", [0, 60, -1])
@pytest.mark.parametrize("protocol", ["h2c", "HTTP/3.0", "TLS/1.0"])
async def test_a_body_sent_with_an_upgrade_offer_is_not_parsed_as_a_request(
    server: ServerProcess, protocol: str, cut: int
) -> None:
    body = json.dumps(make_request("/health").decode()).encode()
    sent = make_request("/v1/echo", "Connection: Upgrade", f"Upgrade: {protocol}", method="POST", body=body)
    pieces = (sent[:cut], sent[cut:]) if cut >= 0 else (sent.removesuffix(body), body)
    async with connect(server) as client:
        for piece in pieces:
            await client.send(piece)
            await asyncio.sleep(0.02)  # so that the pieces arrive separately
        await client.send(make_request("/v1/models") * 2)
        assert (await client.read_reply()).body == body
        assert [(await client.read_reply()).headers["content-type"] for _ in range(2)] == ["application/json"] * 2


async def test_a_request_with_an_upgrade_offer_may_be_chunked(server: ServerProcess) -> None:
    offer = ECHO_HEAD + "Connection: Upgrade\r\nUpgrade: h2c\r\nTransfer-Encoding: %s\r\n\r\n"
    async with connect(server) as client:
        for piece in (offer % "chunked", "1\r\n1\r\n", "0\r\n\r\n", make_request("/v1/models").decode()):
            await client.send(piece.encode())
            await asyncio.sleep(0.02)  # so that the pieces arrive separately
        assert (await client.read_reply()).body == b"1"
        assert (await client.read_reply()).status == 200
        assert (await client.fetch((offer % "gzip").encode() + make_request())).status == 400
        assert await client.read_until_closed() == b""


async def test_a_websocket_upgrade_on_an_http_route_gets_426(server: ServerProcess) -> None:
    lines = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13")
    key = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
    async with connect(server) as client:
        assert (await client.fetch(make_request("/v1/echo", *lines, key))).status == 426


async def test_further_upgrade_offers_do_not_bypass_the_api_key() -> None:
    lines = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13")
    key = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
    with run_server(api_key=["k"]) as locked:
        locked.wait_started()
        for offers in (("Upgrade: h2c", *lines), (*lines, "Upgrade: h2c"), (*lines, "Upgrade: websocket")):
            async with connect(locked) as client:
                assert (await client.fetch(make_request("/v1/responses", *offers, key))).status == 401
                assert await client.read_until_closed() == b""


async def test_a_malformed_handshake_gets_a_standard_error(server: ServerProcess) -> None:
    lines = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: x")
    async with connect(server) as client:
        reply = await client.fetch(make_request("/v1/echo", *lines))
    assert (reply.status, json.loads(reply.body)["error"]["type"]) == (400, "invalid_request_error")


async def test_a_client_that_does_not_read_costs_no_memory_and_is_disconnected(strict_server: ServerProcess) -> None:
    before = strict_server.read_resident_bytes()
    async with connect_persistent(strict_server) as client:
        client.reader._transport.pause_reading()  # type: ignore[attr-defined]  # the client stops reading
        await client.send(make_request("/v1/flood"))
        await strict_server.wait_for_stderr("flood ended")
    assert strict_server.read_resident_bytes() - before < 8 * 1024 * 1024


async def test_a_client_that_reads_slowly_is_not_disconnected() -> None:
    """One of several attempts must succeed: on a busy machine the client may read nothing for longer than the limit."""
    with run_server(stall_seconds=0.6) as impatient:
        impatient.wait_started()
        for _ in range(MAX_ATTEMPTS):
            with contextlib.suppress(ConnectionError):
                if await _read_slowly(impatient):
                    return
    raise AssertionError("The client was disconnected in every attempt.")


async def _read_slowly(impatient: ServerProcess) -> bool:
    """Read far less than is written. Returns whether the stream was still open at the end."""
    dropped = impatient.read_stderr().count("flood ended")
    async with connect(impatient) as client, asyncio.timeout(DEADLINE_SECONDS):
        await client.send(make_request("/v1/flood"))
        deadline = time.monotonic() + 1.8
        while time.monotonic() < deadline:
            if not await client.reader.read(200_000):
                return False
            await asyncio.sleep(0.05)
        return impatient.read_stderr().count("flood ended") == dropped


async def test_rejected_requests_are_counted(server: ServerProcess) -> None:
    async with connect(server) as client:
        await client.fetch(BROKEN["NUL"])
    async with connect(server) as client:
        text = (await client.fetch(make_request("/metrics"))).body
    assert b'antiphon_requests_total{route="none",status="400"}' in text


async def test_the_preceding_tests_caused_no_traceback(server: ServerProcess, strict_server: ServerProcess) -> None:
    assert "Traceback" not in server.read_stderr() + strict_server.read_stderr()
