"""The forward proxy: plain requests and tunnels, to allowed names at allowed addresses only."""

import asyncio
from contextlib import suppress

import pytest

from antiphon.egress.domains import DomainList
from antiphon.egress.proxy import ForwardProxy, ProxyLimits
from tests.egress.hosts import FakeResolver, make_egress_client, respond_with, run_host
from tests.egress.test_client_hello import make_hello
from tests.support.local_servers import Reader, Writer, serve_tcp

pytestmark = pytest.mark.anyio
OPEN = "open.example"


class FakeClient:
    """A client that sends some pieces, then waits or is at its end, and records what it receives."""

    def __init__(self, *pieces: bytes, is_open: bool = False) -> None:
        self.pieces = [*pieces]
        self._is_open = is_open
        self.received = b""

    async def receive(self) -> bytes:
        if not self.pieces and self._is_open:
            await asyncio.Event().wait()
        return self.pieces.pop(0) if self.pieces else b""

    async def send(self, data: bytes) -> None:
        self.received += data


def make_proxy(*allowed: str, limits: ProxyLimits | None = None) -> ForwardProxy:
    resolver = FakeResolver(open_example=[["127.0.0.1"]], private_example=[["10.0.0.1"]])
    return ForwardProxy(make_egress_client(OPEN, resolver=resolver), DomainList(allowed or (OPEN,)), limits)


async def exchange(*pieces: bytes, proxy: ForwardProxy | None = None) -> bytes:
    client = FakeClient(*pieces)
    async with asyncio.timeout(20):
        await (proxy or make_proxy()).serve(client)
    return client.received


@pytest.mark.shows("E6.9")
async def test_a_plain_request_is_rendered_for_the_host_of_its_url() -> None:
    async with run_host(respond_with(b"hello")) as host:
        url = f"http://{OPEN.upper()}:{host.port}/a%20b?c=d"
        head = (
            f"POST {url} HTTP/1.1\r\nHost: other.example\r\nContent-Length: 3\r\nX-Own: 1\r\n"
            "Connection: close, X-Hop\r\nX-Hop: 1\r\nProxy-Authorization: secret\r\nUpgrade: websocket\r\n\r\n"
        )
        answer = await exchange(head[:50].encode(), head[50:].encode() + b"abcGET / HTTP/1.1\r\n\r\n")
        assert answer.endswith(b"\r\n\r\nhello")
        assert host.heads == [
            f"POST /a%20b?c=d HTTP/1.1\r\nHost: {OPEN}:{host.port}\r\ncontent-length: 3\r\nx-own: 1\r\n"
            "Connection: close\r\n\r\n".encode()
        ]


@pytest.mark.parametrize(
    ("request_line", "headers", "status", "text"),
    [
        ("GET http://other.example/", "", 403, "not among the allowed domains"),
        ("GET http://127.0.0.1/", "", 403, "not among the allowed domains"),
        ("CONNECT 127.0.0.1:443", "", 403, "not among the allowed domains"),
        ("CONNECT [::1]:443", "", 403, "not among the allowed domains"),
        ("CONNECT other.example:443", "", 403, "not among the allowed domains"),
        ("CONNECT open.example.other:443", "", 403, "not among the allowed domains"),
        ("CONNECT localhost:443", "", 403, "not among the allowed domains"),
        ("GET http://private.example/", "", 403, "leads to a private address"),
        ("CONNECT private.example:443", "", 403, "leads to a private address"),
        ("CONNECT missing.example:443", "", 502, "no host"),
        ("GET https://open.example/", "", 400, "CONNECT"),
        ("GET /", "", 400, "proxy"),
        ("GET ftp://open.example/", "", 400, "proxy"),
        ("GET http://user@open.example/", "", 400, "proxy"),
        ("GET http://0x7f.1/", "", 400, "proxy"),
        ("POST http://open.example/", "Transfer-Encoding: chunked\r\n", 411, "Content-Length"),
        ("POST http://open.example/", "Content-Length: 1\r\nContent-Length: 2\r\n", 400, "well-formed"),
        ("POST http://open.example/", "Content-Length: x\r\n", 400, "well-formed"),
        ("GET http://open.example/", "X: a\n\n", 400, ""),
        ("hello", "", 400, "well-formed"),
        ("GET http://open.example/", "X: " + "x" * 70_000 + "\r\n", 400, "too long"),
    ],
)
async def test_other_requests_are_refused(request_line: str, headers: str, status: int, text: str) -> None:
    proxy = make_proxy(OPEN, "private.example", "missing.example")
    answer = await exchange(f"{request_line} HTTP/1.1\r\n{headers}".encode(), b"\r\n", b"", proxy=proxy)
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())
    assert text in answer.decode().partition("\r\n")[0]


@pytest.mark.shows("E6.9")
async def test_a_tunnel_carries_tls_for_its_own_host_only() -> None:
    received = bytearray()

    async def record(reader: Reader, writer: Writer) -> None:
        writer.write(b"server hello")
        received.extend(await reader.read())

    async with serve_tcp(record) as port:
        head, hello = f"CONNECT {OPEN}:{port} HTTP/1.1\r\n\r\n".encode(), make_hello(OPEN)
        answer = await exchange(head, hello[:3], hello[3:], b"more")
        assert answer == b"HTTP/1.1 200 Connection established\r\n\r\nserver hello"
        assert bytes(received) == hello + b"more"
        received.clear()
        for first in (make_hello("other.example"), make_hello(None), b"SSH-2.0-x\r\n" * 9, hello[:100], b""):
            answer = await exchange(head + first)
            assert answer == b"HTTP/1.1 200 Connection established\r\n\r\n"
        assert not received


async def test_a_body_is_sent_to_its_declared_length_and_not_beyond() -> None:
    received = bytearray()

    async def record(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        received.extend(await reader.readexactly(6))
        writer.write(b"done")
        writer.write_eof()
        with suppress(ConnectionError):
            received.extend(await reader.read())

    async with serve_tcp(record) as port:
        head = f"POST http://{OPEN}:{port}/ HTTP/1.1\r\nContent-Length: 6\r\n\r\n".encode()
        client = FakeClient(head + b"abc", b"de", b"fGET", b" / HTTP/1.1")
        async with asyncio.timeout(20):
            await make_proxy().serve(client)
    assert client.received == b"done"
    assert client.pieces == [b" / HTTP/1.1"]
    assert bytes(received) == b"abcdef"


async def test_a_tunnel_begins_with_the_last_byte_of_the_first_message() -> None:
    async def greet(reader: Reader, writer: Writer) -> None:
        writer.write(b"server hello")

    async with serve_tcp(greet) as port, asyncio.timeout(20):
        client = FakeClient(f"CONNECT {OPEN}:{port} HTTP/1.1\r\n\r\n".encode(), make_hello(OPEN), is_open=True)
        await make_proxy().serve(client)
    assert client.received.endswith(b"server hello")


async def test_a_connection_may_reach_its_limits() -> None:
    async with run_host(respond_with(b"hello")) as host:
        head = f"GET http://{OPEN}:{host.port}/ HTTP/1.1\r\n\r\n".encode()
        answer = await exchange(head)
        count = len(head) + len(answer)
        limited = make_proxy(limits=ProxyLimits(bytes=count, connections=1))
        assert await exchange(head, proxy=limited) == answer
        assert await exchange(head, proxy=make_proxy(limits=ProxyLimits(bytes=count - 1))) == b""


@pytest.mark.parametrize(("size", "status"), [(65_536, b"403"), (65_537, b"400")])
async def test_a_head_is_read_on_until_it_is_longer_than_the_limit(size: int, status: bytes) -> None:
    line = b"GET http://other.example/ HTTP/1.1\r\nX: "
    answer = await exchange(line + b"x" * (size - len(line)), b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 " + status)


async def test_a_refusal_has_its_reason_in_the_status_line_and_in_the_body() -> None:
    reason = b"A URL of https is requested through CONNECT."
    answer = await exchange(b"GET https://open.example/ HTTP/1.1\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 " + reason + b"\r\n")
    assert answer.endswith(b"\r\n\r\n" + reason + b"\n")


@pytest.mark.parametrize("limits", [ProxyLimits(bytes=10), ProxyLimits(connections=0), ProxyLimits(head_seconds=0.05)])
async def test_a_connection_beyond_a_limit_is_ended(limits: ProxyLimits) -> None:
    async with run_host(respond_with(b"hello")) as host, asyncio.timeout(20):
        head = f"GET http://{OPEN}:{host.port}/ HTTP/1.1\r\n"
        client = FakeClient(head.encode(), *([] if limits.head_seconds < 1 else [b"\r\n"]), is_open=True)
        await make_proxy(limits=limits).serve(client)
        assert (client.received, host.connects) == (b"", 0)


async def test_a_silent_host_is_left_and_a_lost_client_ends_the_connection() -> None:
    async def be_silent(reader: Reader, writer: Writer) -> None:
        await reader.read()

    class LostClient(FakeClient):
        async def receive(self) -> bytes:
            if self.pieces:
                return self.pieces.pop(0)
            raise ConnectionResetError

    async with serve_tcp(be_silent) as port, asyncio.timeout(20):
        head = f"CONNECT {OPEN}:{port} HTTP/1.1\r\n\r\n".encode()
        waiting = FakeClient(head, make_hello(OPEN), is_open=True)
        await make_proxy(limits=ProxyLimits(idle_seconds=0.05)).serve(waiting)
        await make_proxy().serve(LostClient(head, make_hello(OPEN)))
        assert waiting.received.endswith(b"established\r\n\r\n")
