"""The head cache must not change how requests are parsed: every byte stream is read with it and without it.

Covers `transport/server/settings.py`.
"""

import asyncio
import re
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from uvicorn.server import ServerState

from antiphon.config import Config
from antiphon.transport.http.channel import ClientGone
from antiphon.transport.http.request import Request
from antiphon.transport.server.head_cache import HeadCache, cache_head
from antiphon.transport.server.http_exchange import HttpExchange
from antiphon.transport.server.http_protocol import READ_BUFFER, HttpProtocol
from antiphon.transport.server.settings import HttpServerSettings
from antiphon.transport.server.ws_protocol import WebSocketProtocol
from tests.transport.server.recording_transport import RecordingHttpTransport, run_loop_once

pytestmark = pytest.mark.anyio

PLAIN = b"POST /v1/echo?a=b HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\nContent-Type: application/json\r\n\r\n"
LENGTH_LAST = b"POST / HTTP/1.1\r\nhost: h\r\nConnection: Keep-Alive\r\ncontent-length:\t%d\r\n\r\n"
TWICE = b"POST / HTTP/1.1\r\nA: b\r\nContent-Length: %d\r\nA: c\r\n\r\n"
EARLY = b"POST /early HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n"
EXPECTS = b"POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n"
UPGRADE = b"POST / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: %d\r\n\r\n"
CLOSES = b"POST / HTTP/1.1\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
HTTP_1_0 = b"POST / HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: %d\r\n\r\n"
BLANK = LENGTH_LAST.replace(b"%d", b"%d ")
HEADS = [PLAIN, BLANK, LENGTH_LAST, TWICE, EARLY, EXPECTS, UPGRADE, CLOSES, HTTP_1_0]
BODIES = [b"", b"[1]", b"{}\r\n\r\n", PLAIN % 1, b"x" * (READ_BUFFER + 1)]
OTHER_REQUESTS = [
    b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n",
    b"\r\n",
    b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n[1]\r\n0\r\n\r\n",
    PLAIN.replace(b"%d", b"+3") + b"[1]",
    PLAIN.replace(b"%d", b"3, 3") + b"[1]",
    PLAIN.replace(b"%d", b"0x3") + b"[1]",
    PLAIN.replace(b"%d", b"003") + b"[1]",
    PLAIN.replace(b"%d", b"") + b"[1]",
    PLAIN.replace(b"%d", b"3\r\nContent-Length: 4") + b"[1]",
    PLAIN.replace(b"%d", b"3\r\nTransfer-Encoding: chunked") + b"0\r\n\r\n",
    PLAIN.replace(b"%d", b"9" * 30),
    PLAIN.replace(b"\r\n", b"\n") % 0,
    b"nothing that anybody knows\r\n\r\n",
]
UPGRADE_REQUESTS = [
    *(UPGRADE % len(body) + body for body in BODIES),
    UPGRADE.replace(b"Content-Length: %d", b"Transfer-Encoding: chunked") + b"3\r\n[1]\r\n0\r\n\r\n",
    UPGRADE.replace(b"Content-Length: %d", b"Transfer-Encoding: gzip"),
    UPGRADE.replace(b"\r\nContent-Length: %d", b""),
]
COMMON_REQUESTS = [head % len(body) + body for head in (PLAIN, LENGTH_LAST) for body in BODIES[:4]]
ALL_REQUESTS = [*COMMON_REQUESTS, *(head % len(body) + body for head in HEADS for body in BODIES), *OTHER_REQUESTS]


class UncachedProtocol(HttpProtocol):
    """Parses every head anew."""

    __slots__ = ()

    def data_received(self, data: bytes) -> None:
        self._cached_head = None
        super().data_received(data)


class EchoApp:
    """Replies with the request as it was parsed."""

    async def answer(self, request: Request) -> None:
        channel, body = request.channel, b""
        with suppress(ClientGone):
            reads = request.path != b"/early"
            while reads:
                piece = channel.read()
                body += piece if isinstance(piece, bytes) else await piece
                reads = channel.more
            parsed = (request.method, request.path, channel.query, channel.fields, sorted(channel.repeated), body)
            await request.reply(200, repr(parsed).encode())
        channel.close()


async def run_connection(protocol_type: type[HttpProtocol], pieces: list[bytes], turns: list[int]) -> tuple[Any, ...]:
    """Return what a client sees of a connection, and how the connection ends.

    `turns`: iterations of the event loop between one piece and the next.
    """
    refused: list[int] = []
    config = HttpServerSettings(EchoApp(), Config(), HttpProtocol, WebSocketProtocol, refused.append)
    config.load()
    state, transport = ServerState(), RecordingHttpTransport()
    connection = protocol_type(config, state, {})
    connection.connection_made(transport)  # type: ignore[arg-type]  # has only the methods that are called
    for number, piece in enumerate(pieces):
        if not transport.closing:
            connection.data_received(piece)
        for _ in range(turns[number % len(turns)]):
            await run_loop_once()
    for _ in range(40):
        await run_loop_once()
    expected_input = connection._get_expected_input()
    connection.connection_lost(None)
    await asyncio.gather(*state.tasks)
    output = re.sub(rb"(x-request-id|openai-processing-ms): \S+", rb"\1: ?", b"".join(transport.writes))
    return output, transport.calls, transport.closing, refused, expected_input


def split_at(stream: bytes, positions: list[int]) -> list[bytes]:
    edges = sorted({0, len(stream), *(position % (len(stream) + 1) for position in positions)})
    return [stream[start:stop] for start, stop in pairwise(edges)]


@settings(max_examples=300, deadline=None)
@given(
    requests=st.lists(st.sampled_from(COMMON_REQUESTS) | st.sampled_from(ALL_REQUESTS), max_size=6),
    places=st.lists(st.integers(0, 2000), max_size=6),
    whole=st.booleans(),
    turns=st.lists(st.integers(0, 5), min_size=1, max_size=4),
)
def test_the_cache_changes_no_reply(requests: list[bytes], places: list[int], whole: bool, turns: list[int]) -> None:
    pieces = requests if whole else split_at(b"".join(requests), places)
    assert asyncio.run(run_connection(HttpProtocol, pieces, turns)) == asyncio.run(
        run_connection(UncachedProtocol, pieces, turns)
    )


@settings(max_examples=200, deadline=None)
@given(
    requests=st.lists(st.sampled_from(UPGRADE_REQUESTS) | st.sampled_from(COMMON_REQUESTS), max_size=5),
    places=st.lists(st.integers(0, 1000), max_size=5),
    turns=st.lists(st.integers(0, 4), min_size=1, max_size=3),
)
def test_an_ignored_upgrade_offer_changes_no_reply(requests: list[bytes], places: list[int], turns: list[int]) -> None:
    sent = b"".join(requests)
    offered = asyncio.run(run_connection(HttpProtocol, split_at(sent, places), turns))
    ignored = asyncio.run(
        run_connection(HttpProtocol, split_at(sent.replace(b"\nUpgrade", b"\nIgnored"), places), turns)
    )
    assert (offered[0].replace(b"upgrade", b"ignored"), *offered[1:]) == ignored


@pytest.mark.parametrize("position", range(len(PLAIN % 3) + 3))
async def test_a_request_with_a_cached_head_may_be_split_at_any_byte(position: int) -> None:
    stream = PLAIN % 3 + b"[1]"
    pieces = [stream, stream[:position], stream[position:] + stream, stream]
    assert await run_connection(HttpProtocol, pieces, [3]) == await run_connection(UncachedProtocol, pieces, [3])


async def test_properties_of_one_head_are_not_cached_for_another() -> None:
    old, new = HTTP_1_0 % 3 + b"[1]", PLAIN % 3 + b"[1]"
    assert await read_cached_head(old + new) is None
    assert await run_connection(HttpProtocol, [old + new, old], [0]) == await run_connection(
        UncachedProtocol, [old + new, old], [0]
    )


async def read_cached_head(*pieces: bytes) -> HeadCache | None:
    """Return the head that a connection has cached after it read the pieces."""
    config = HttpServerSettings(EchoApp(), Config(), HttpProtocol, None, lambda status: None)
    connection = HttpProtocol(config, ServerState(), {})
    connection.connection_made(RecordingHttpTransport())  # type: ignore[arg-type]  # has only the methods that are called
    for piece in pieces:
        connection.data_received(piece)
    return connection._cached_head


@pytest.mark.parametrize("head", [PLAIN, LENGTH_LAST, EARLY])
async def test_a_cached_head_matches_any_content_length(head: bytes) -> None:
    cached = await read_cached_head(head % 3 + b"[1]")
    assert cached is not None
    assert [cached.match_length(head % number + b"[1]") for number in (0, 3, 17, 10**14)] == [
        b"%d" % number for number in (0, 3, 17, 10**14)
    ]
    for other in (head % 10**15, (head % 3)[:-1], head.replace(b"%d", b""), head.replace(b"%d", b"-1"), b"", b"\r\n"):
        assert cached.match_length(other) == b""


@pytest.mark.parametrize(
    "sent",
    [
        *(head % 3 + b"[1]" for head in (BLANK, TWICE, EXPECTS, UPGRADE, CLOSES, HTTP_1_0)),
        OTHER_REQUESTS[0],
        OTHER_REQUESTS[2],
        b"\r\n" + PLAIN % 3,
        PLAIN.replace(b"Host", b"X-Request-Id: 1\r\nHost") % 3,
        PLAIN.replace(b"Host", b"X: " + b"x" * 4096 + b"\r\nHost") % 3,
    ],
)
async def test_heads_with_other_framing_or_unique_fields_are_not_cached(sent: bytes) -> None:
    assert await read_cached_head(sent) is None


async def test_a_head_received_in_pieces_is_not_cached() -> None:
    sent = PLAIN % 3 + b"[1]"
    assert await read_cached_head(sent[:20], sent[20:]) is None
    assert await read_cached_head(sent[:20], sent[20:], sent) is not None


def test_a_head_near_the_size_limit_is_not_cached() -> None:
    """A longer Content-Length would exceed the limit."""
    fields = {b"content-length": b"3"}
    exchange = HttpExchange(None, "POST", b"/", b"", fields)  # type: ignore[arg-type]  # the connection is not used
    sent = b"POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\n"
    assert cache_head(sent, exchange, len(sent) + 15) is not None
    assert cache_head(sent, exchange, len(sent) + 14) is None
