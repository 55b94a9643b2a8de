import asyncio
import contextlib
import json
import signal
import time
from collections.abc import Iterator
from contextvars import ContextVar

import pytest
from uvicorn.server import ServerState

from antiphon.config import Config
from antiphon.transport.http.request import Request
from antiphon.transport.server.http_protocol import Connection
from antiphon.transport.server.settings import ServerSettings
from tests.transport.edge_process import SECONDS, TRIES, Client, Process, connected, kept, process, request
from tests.transport.server.recording_transport import Socket, turn

pytestmark = pytest.mark.anyio

ECHO = "POST /v1/echo HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.fixture(scope="module")
def server() -> Iterator[Process]:
    with process() as one:
        yield one.started()


@pytest.fixture(scope="module")
def strict() -> Iterator[Process]:
    """It waits half a second for anything."""
    with process(limits={"header_seconds": 0.5, "body_seconds": 0.5}, stall_seconds=0.5) as one:
        yield one.started()


async def test_requests_share_a_connection(server: Process) -> None:
    async with connected(server) as client:
        for number in range(3):
            reply = await client.ask(request("/v1/echo", method="POST", body=b"%d" % number))
            assert (reply.status, reply.body) == (200, b"%d" % number)
        assert "server" not in reply.headers
        assert "date" in reply.headers


async def test_pipelined_requests_are_answered_in_turn(server: Process) -> None:
    async with connected(server) as client:
        await client.send(b"".join(request("/v1/echo", method="POST", body=b"%d" % n) for n in range(100)))
        assert [(await client.reply()).body for _ in range(100)] == [b"%d" % n for n in range(100)]


NOTE: ContextVar[bytes] = ContextVar("note", default=b"nothing")


class Noting:
    """An application that says what it finds noted, and notes whom that was for, as others do of a trace or a bill."""

    async def answer(self, request: Request) -> None:
        found = NOTE.get()
        NOTE.set(request.path)
        await request.reply(200, found)
        request.line.close()


async def test_a_request_that_waited_for_another_has_nothing_of_it() -> None:
    config, socket = ServerSettings(Noting(), Config(), Connection, None, lambda status: None), Socket()
    connection = Connection(config, ServerState(), {})
    connection.connection_made(socket)  # type: ignore[arg-type]  # as much of one as is needed
    connection.data_received(b"".join(request(f"/{number}") for number in range(3)))
    async with asyncio.timeout(SECONDS):
        while len(socket.writes) < 3:
            await turn()
    assert [reply.rpartition(b"\r\n")[2] for reply in socket.writes] == [b"nothing"] * 3


async def test_a_client_that_asked_for_more_and_leaves_is_noticed(server: Process) -> None:
    before = server.said().count("flood ended")
    async with connected(server) as client:
        await client.send(request("/v1/flood") + request())
        await client.reader.readexactly(100_000)
    async with asyncio.timeout(SECONDS):
        while server.said().count("flood ended") == before:  # noqa: ASYNC110 - another process says it
            await asyncio.sleep(0.02)


async def test_who_asks_for_the_head_alone_gets_it_alone(server: Process) -> None:
    async with connected(server) as client:
        await client.send(request("/v1/models", method="HEAD") + request())
        async with asyncio.timeout(SECONDS):
            head = await client.reader.readuntil(b"\r\n\r\n")
        assert b"content-length: 0" not in head
        assert (await client.reply()).status == 200


async def test_clients_of_old_are_not_kept_though_they_ask_for_it(server: Process) -> None:
    async with connected(server) as client:
        old = request("/health", "Connection: keep-alive").replace(b"HTTP/1.1", b"HTTP/1.0")
        assert (await client.ask(old)).headers["connection"] == "close"
        assert await client.hung_up() == b""


@pytest.mark.parametrize("path", ["/health?a#b?c", "/health#a?b", "/health?"])
async def test_a_path_ends_where_query_or_fragment_begin(server: Process, path: str) -> None:
    async with connected(server) as client:
        assert (await client.ask(request(path))).status == 200


async def test_who_rests_too_long_is_hung_up_on() -> None:
    with process(keepalive_seconds=1, limits={"header_seconds": 0.5}) as brief:
        brief.started()
        async with kept(brief) as client:
            assert await client.hung_up() == b""
            assert time.monotonic() - client.since > 0.95


async def test_a_request_that_is_ended_without_an_answer_is_told_so() -> None:
    """In the shape of every error, when the server stops and there is no more time."""
    with process(shutdown_grace=0.1) as ending:
        ending.started()
        async with connected(ending) as client, connected(ending) as other:
            await client.send(request("/v1/wait"))
            assert (await other.ask(request())).status == 200
            ending.send(signal.SIGTERM)
            reply = await client.reply()
        assert (reply.status, reply.error["type"]) == (500, "server_error")
        assert reply.headers["connection"] == "close"


async def test_who_does_not_want_to_be_kept_is_told_so_and_nothing_else(server: Process) -> None:
    async with connected(server) as client:
        kept = await client.ask(request("/v1/models"))
        last = await client.ask(request("/v1/models", "Connection: close"))
        assert await client.hung_up() == b""
    own = {"date", "x-request-id", "openai-processing-ms"}
    assert own <= kept.headers.keys()
    told = [{name: value for name, value in one.headers.items() if name not in own} for one in (kept, last)]
    assert told[0] == {"content-type": "application/json", "content-length": str(len(kept.body))}
    assert told[1] == {**told[0], "connection": "close"}
    assert kept.body == last.body


async def test_a_stream_begins_before_there_is_anything_in_it(server: Process) -> None:
    async with connected(server) as client:
        await client.send(request("/v1/hang", "X-Silent: yes"))
        async with asyncio.timeout(SECONDS):
            assert (await client.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")


async def test_who_asks_before_sending_a_body_is_told_to_go_on(server: Process) -> None:
    async with connected(server) as client:
        await client.send((ECHO + "Expect: 100-continue\r\nContent-Length: 3\r\n\r\n").encode())
        async with asyncio.timeout(SECONDS):
            assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert (await client.ask(b"[1]")).body == b"[1]"


async def test_a_reply_to_head_has_no_body(server: Process) -> None:
    async with connected(server) as client:
        await client.send(request(method="HEAD") + request("/version"))
        head = await client.reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        assert b"content-length: 15" in head
        assert (await client.reply()).body == b'{"version":"1.2.3"}'


@pytest.mark.parametrize("size", [65_000, 65_500])
async def test_headers_up_to_the_limit_are_taken(server: Process, size: int) -> None:
    async with connected(server) as client:
        assert (await client.ask(request("/health", "X: " + "x" * (size - 100)))).status == 200


HUGE = {
    "one header": lambda: request("/health", "X: " + "x" * 66_000),
    "a header of 1 MB": lambda: request("/health", "X: " + "x" * 1_000_000),
    "many headers": lambda: request("/health", *[f"X-{n}: y" for n in range(100_000)]),
    "a long path": lambda: request("/" + "a" * 1_000_000),
    "a long query": lambda: request("/health?" + "a" * 1_000_000),
    "a long method": lambda: b"G" * 1_000_000,
    "blank lines": lambda: b"\r\n" * 100_000,
    "headers without end": lambda: request("/health", "X: " + "x" * 66_000)[:-4],
    "trailers": lambda: (ECHO + "Transfer-Encoding: chunked\r\n\r\n0\r\nX: ").encode() + b"x" * 1_000_000,
    "a chunk extension": lambda: (ECHO + "Transfer-Encoding: chunked\r\n\r\n1;x=").encode() + b"x" * 1_000_000,
}


@pytest.mark.parametrize("name", HUGE)
@pytest.mark.shows("H6.3")
async def test_headers_beyond_the_limit_are_refused_at_once(server: Process, name: str) -> None:
    async with connected(server) as client:
        client.writer.write(HUGE[name]())
        reply = await client.reply()
        assert reply.status in ((431, 400) if name == "a long method" else (431,))
        assert reply.headers["connection"] == "close"
        assert reply.error["type"] == "invalid_request_error"


async def test_a_hundred_megabytes_of_headers_cost_no_memory(server: Process) -> None:
    before = server.resident()
    async with connected(server) as client:
        await client.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: ")
        refusal = asyncio.ensure_future(client.reply())  # who goes on sending for too long is hung up on
        grown = 0
        with contextlib.suppress(ConnectionError):
            for _ in range(1600):
                client.writer.write(b"x" * 65_536)
                async with asyncio.timeout(SECONDS):
                    await client.writer.drain()
                grown = max(grown, server.resident() - before)
        assert (await refusal).status == 431
    assert grown < 16 * 1024 * 1024


async def test_a_body_that_is_too_large_is_refused_while_it_is_still_sent() -> None:
    with process(limits={"body_bytes": 1000}) as small:
        small.started()
        async with connected(small) as client:
            await client.send((ECHO + "Content-Length: 50000000\r\n\r\n").encode())
            assert (await client.reply()).status == 413
            with contextlib.suppress(ConnectionError):
                for _ in range(50):
                    await client.send(b"x" * 1_000_000)  # read and dropped
            assert (await client.ask(request())).status == 200


async def test_a_whole_head_in_pieces_is_taken(server: Process) -> None:
    async with connected(server) as client:
        for byte in request("/v1/echo", method="POST", body=b"[1]"):
            await client.send(bytes([byte]))
            await asyncio.sleep(0)
        assert (await client.reply()).body == b"[1]"


SLOW = {
    "nothing at all": b"",
    "half a line": b"GET /hea",
    "no end of headers": b"GET /health HTTP/1.1\r\nHost: localhost\r\n",
    "a blank line": b"\r\n",
    "no body": (ECHO + "Content-Length: 10\r\n\r\n").encode(),
    "half a body": (ECHO + "Content-Length: 10\r\n\r\n12345").encode(),
    "no last chunk": (ECHO + "Transfer-Encoding: chunked\r\n\r\n1\r\n1\r\n").encode(),
}


@pytest.mark.shows("H6.3")
async def test_who_is_too_slow_is_hung_up_on(strict: Process) -> None:
    async with asyncio.TaskGroup() as group:  # together, since each takes its time
        for sent in SLOW.values():
            group.create_task(_is_hung_up_on(strict, sent, kept_alive=False))
            if sent:  # a kept connection that rests is not slow
                group.create_task(_is_hung_up_on(strict, sent, kept_alive=True))


async def _is_hung_up_on(strict: Process, sent: bytes, kept_alive: bool) -> None:
    async with kept(strict) if kept_alive else connected(strict) as client:
        began = time.monotonic() if kept_alive else client.since
        reply = await client.ask(sent)
        assert reply.status == 408, sent
        assert reply.headers["connection"] == "close"
        assert "0.5 seconds" in reply.error["message"]
        assert time.monotonic() - began > 0.45
        assert await client.hung_up() == b""


@pytest.mark.shows("H6.3")
async def test_dripping_does_not_gain_time(strict: Process) -> None:
    async with connected(strict) as client:
        await client.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: ")
        dripping = asyncio.ensure_future(_drip(client))
        assert (await client.reply()).status == 408  # though it would drip for as long as it is let
        dripping.cancel()
        await asyncio.wait({dripping})


async def _drip(client: Client) -> None:
    with contextlib.suppress(ConnectionError):
        while True:
            await client.send(b"G")
            await asyncio.sleep(0.05)


async def test_a_body_nobody_waits_for_may_not_drip_either(strict: Process) -> None:
    async with kept(strict) as client:
        await client.send(b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n")
        assert (await client.reply()).status == 404
        dripping = asyncio.ensure_future(_drip(client))
        assert await client.hung_up() == b""
        dripping.cancel()
        await asyncio.wait({dripping})


RESTING = {
    "nothing more": [request()],
    "the last chunk came alone": [(ECHO + "Transfer-Encoding: chunked\r\n\r\n1\r\n1\r\n").encode(), b"0\r\n\r\n"],
    "the body came after the reply": [request("/nowhere", "Content-Length: 3", method="POST"), b"[1]"],
}


async def test_a_connection_that_rests_between_requests_is_kept(strict: Process) -> None:
    async with asyncio.TaskGroup() as group:
        for pieces in RESTING.values():
            group.create_task(_is_kept(strict, pieces))


async def _is_kept(strict: Process, pieces: list[bytes]) -> None:
    """Again, if these pieces were too slow for it on a busy machine."""
    for _ in range(TRIES):
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            if await _rests(strict, pieces) == 200:
                return
    raise AssertionError(f"It was never kept after {pieces}.")


async def _rests(strict: Process, pieces: list[bytes]) -> int:
    """What a request is answered after a while."""
    async with connected(strict) as client:
        for piece in pieces:
            await client.send(piece)
            await asyncio.sleep(0.1)  # so that they arrive one by one
        if (await client.reply()).status == 408:
            return 408
        await asyncio.sleep(1.7)  # longer than headers and body may take; it is the clock that is tested
        return (await client.ask(request())).status


async def test_a_long_answer_is_not_cut_by_the_clocks_of_the_request(strict: Process) -> None:
    async with kept(strict) as client:
        await client.send(request("/v1/hang"))
        await client.reader.readuntil(b"hello \r\n")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.2):
                await client.reader.read(1)


BROKEN = {
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "unknown method": b"BREW /health HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "space in path": b"GET /hea lth HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "absolute target": b"GET http://localhost/health HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "asterisk": b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "connect": b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "folded": b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: a\r\n b\r\n\r\n",
    "space before colon": b"GET /health HTTP/1.1\r\nHost : localhost\r\n\r\n",
    "bare line feed": b"GET /health HTTP/1.1\nHost: localhost\n\n",
    "NUL": b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: a\x00b\r\n\r\n",
    "length and chunks": (ECHO + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n").encode(),
    "chunks and length": (ECHO + "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n").encode(),
    "two lengths": (ECHO + "Content-Length: 1\r\nContent-Length: 2\r\n\r\n12").encode(),
    "list of lengths": (ECHO + "Content-Length: 1, 1\r\n\r\n1").encode(),
    "signed length": (ECHO + "Content-Length: +1\r\n\r\n1").encode(),
    "chunked twice": (ECHO + "Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n").encode(),
    "not quite chunked": (ECHO + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n").encode(),
    "chunked not last": (ECHO + "Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n").encode(),
    "bad chunk size": (ECHO + "Transfer-Encoding: chunked\r\n\r\nzz\r\n1\r\n").encode(),
    "huge chunk size": (ECHO + "Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n1\r\n").encode(),
    "bad chunk end": (ECHO + "Transfer-Encoding: chunked\r\n\r\n1\r\n1XX0\r\n\r\n").encode(),
    "chunk ended by line feed": (ECHO + "Transfer-Encoding: chunked\r\n\r\n1\n1\r\n0\r\n\r\n").encode(),
}


@pytest.mark.parametrize("name", BROKEN)
async def test_what_is_not_quite_http_is_refused_and_the_connection_closed(server: Process, name: str) -> None:
    async with connected(server) as client:
        reply = await client.ask(BROKEN[name])
        assert reply.status == 400
        assert reply.error["type"] == "invalid_request_error"
        assert reply.headers["connection"] == "close"
        await client.send(request())
        assert await client.hung_up() == b""


async def test_what_is_smuggled_behind_a_broken_request_is_not_answered(server: Process) -> None:
    async with connected(server) as client:
        reply = await client.ask(BROKEN["length and chunks"] + request("/version"))
        assert reply.status == 400
        assert await client.hung_up() == b""


async def test_garbage_in_the_midst_of_an_answer_cuts_it(server: Process) -> None:
    async with connected(server) as client:
        await client.send(request("/v1/hang"))
        await client.reader.readuntil(b"hello ")
        await client.send(b"\x00garbage\r\n\r\n")
        assert b"HTTP/1.1" not in await client.hung_up()


async def test_trailers_do_not_pass_for_headers() -> None:
    with process(api_key=["k"]) as locked:
        locked.started()
        async with connected(locked) as client:
            smuggled = ECHO + "Transfer-Encoding: chunked\r\n\r\n1\r\n1\r\n0\r\nAuthorization: Bearer k\r\n\r\n"
            assert (await client.ask(smuggled.encode())).status == 401
            honest = ECHO + "Authorization: Bearer k\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n1\r\n0\r\nX: y\r\n\r\n"
            assert (await client.ask(honest.encode())).body == b"1"


async def test_a_client_that_offers_http_2_is_answered_in_http_1(server: Process) -> None:
    """As Java's HttpClient does by default."""
    offer = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAA")
    async with connected(server) as client:
        for _ in range(2):
            reply = await client.ask(request("/v1/echo", *offer, method="POST", body=b'"h2c is mentioned here, too"'))
            assert (reply.status, reply.body) == (200, b'"h2c is mentioned here, too"')


@pytest.mark.parametrize("cut", [0, 60, -1])
@pytest.mark.parametrize("protocol", ["h2c", "HTTP/3.0", "TLS/1.0"])
async def test_the_body_of_who_offers_another_protocol_is_no_request(server: Process, protocol: str, cut: int) -> None:
    body = json.dumps(request("/health").decode()).encode()
    sent = request("/v1/echo", "Connection: Upgrade", f"Upgrade: {protocol}", method="POST", body=body)
    pieces = (sent[:cut], sent[cut:]) if cut >= 0 else (sent.removesuffix(body), body)
    async with connected(server) as client:
        for piece in pieces:
            await client.send(piece)
            await asyncio.sleep(0.02)  # so that they arrive one by one
        await client.send(request("/v1/models") * 2)
        assert (await client.reply()).body == body
        assert [(await client.reply()).headers["content-type"] for _ in range(2)] == ["application/json"] * 2


async def test_who_offers_another_protocol_may_send_chunks(server: Process) -> None:
    offer = ECHO + "Connection: Upgrade\r\nUpgrade: h2c\r\nTransfer-Encoding: %s\r\n\r\n"
    async with connected(server) as client:
        for piece in (offer % "chunked", "1\r\n1\r\n", "0\r\n\r\n", request("/v1/models").decode()):
            await client.send(piece.encode())
            await asyncio.sleep(0.02)  # so that they arrive one by one
        assert (await client.reply()).body == b"1"
        assert (await client.reply()).status == 200
        assert (await client.ask((offer % "gzip").encode() + request())).status == 400
        assert await client.hung_up() == b""


async def test_a_websocket_is_told_to_use_http(server: Process) -> None:
    lines = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13")
    key = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
    async with connected(server) as client:
        assert (await client.ask(request("/v1/echo", *lines, key))).status == 426


async def test_who_offers_something_else_beside_a_websocket_is_held_to_the_same_key() -> None:
    lines = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13")
    key = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
    with process(api_key=["k"]) as locked:
        locked.started()
        for offers in (("Upgrade: h2c", *lines), (*lines, "Upgrade: h2c"), (*lines, "Upgrade: websocket")):
            async with connected(locked) as client:
                assert (await client.ask(request("/v1/responses", *offers, key))).status == 401
                assert await client.hung_up() == b""


async def test_a_handshake_that_is_not_well_formed_is_refused_in_the_shape_of_every_error(server: Process) -> None:
    lines = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: x")
    async with connected(server) as client:
        reply = await client.ask(request("/v1/echo", *lines))
    assert (reply.status, json.loads(reply.body)["error"]["type"]) == (400, "invalid_request_error")


async def test_a_client_that_does_not_read_is_written_to_no_further_and_dropped(strict: Process) -> None:
    before = strict.resident()
    async with kept(strict) as client:
        client.reader._transport.pause_reading()  # type: ignore[attr-defined]  # there is no other way to not read
        await client.send(request("/v1/flood"))
        await strict.says("flood ended")
    assert strict.resident() - before < 8 * 1024 * 1024


async def test_a_client_that_reads_slowly_is_not_dropped() -> None:
    """In one of a few tries: on a busy machine it may happen that it reads nothing for as long as is not allowed."""
    with process(stall_seconds=0.6) as impatient:
        impatient.started()
        for _ in range(TRIES):
            with contextlib.suppress(ConnectionError):
                if await _reads_slowly(impatient):
                    return
    raise AssertionError("It was dropped each time.")


async def _reads_slowly(impatient: Process) -> bool:
    """Far less than is written. Was there something to the last?"""
    dropped = impatient.said().count("flood ended")
    async with connected(impatient) as client, asyncio.timeout(SECONDS):
        await client.send(request("/v1/flood"))
        deadline = time.monotonic() + 1.8
        while time.monotonic() < deadline:
            if not await client.reader.read(200_000):
                return False
            await asyncio.sleep(0.05)
        return impatient.said().count("flood ended") == dropped


async def test_refusals_are_counted(server: Process) -> None:
    async with connected(server) as client:
        await client.ask(BROKEN["NUL"])
    async with connected(server) as client:
        text = (await client.ask(request("/metrics"))).body
    assert b'antiphon_requests_total{route="none",status="400"}' in text


async def test_nothing_of_all_this_was_worth_a_traceback(server: Process, strict: Process) -> None:
    assert "Traceback" not in server.said() + strict.said()
