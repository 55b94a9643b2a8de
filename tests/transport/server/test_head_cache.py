"""A head that is known says what the parser would have said: every stream of bytes is read both ways."""

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
from antiphon.transport.http.request import ClientGone, Request
from antiphon.transport.server.head_cache import Familiar, familiar
from antiphon.transport.server.http_exchange import Cycle
from antiphon.transport.server.http_protocol import READ_BUFFER, Connection
from antiphon.transport.server.settings import ServerSettings
from antiphon.transport.server.ws_protocol import Wire
from tests.transport.server.recording_transport import Socket, turn

pytestmark = pytest.mark.anyio

PLAIN = b"POST /v1/echo?a=b HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\nContent-Type: application/json\r\n\r\n"
LAST = b"POST / HTTP/1.1\r\nhost: h\r\nConnection: Keep-Alive\r\ncontent-length:\t%d\r\n\r\n"
TWICE = b"POST / HTTP/1.1\r\nA: b\r\nContent-Length: %d\r\nA: c\r\n\r\n"
EARLY = b"POST /early HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n"
EXPECTS = b"POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n"
OFFERS = b"POST / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: %d\r\n\r\n"
CLOSES = b"POST / HTTP/1.1\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
OLD = b"POST / HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: %d\r\n\r\n"
BLANK = LAST.replace(b"%d", b"%d ")
HEADS = [PLAIN, BLANK, LAST, TWICE, EARLY, EXPECTS, OFFERS, CLOSES, OLD]
BODIES = [b"", b"[1]", b"{}\r\n\r\n", PLAIN % 1, b"x" * (READ_BUFFER + 1)]
OTHERS = [
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
OFFERING = [
    *(OFFERS % len(body) + body for body in BODIES),
    OFFERS.replace(b"Content-Length: %d", b"Transfer-Encoding: chunked") + b"3\r\n[1]\r\n0\r\n\r\n",
    OFFERS.replace(b"Content-Length: %d", b"Transfer-Encoding: gzip"),
    OFFERS.replace(b"\r\nContent-Length: %d", b""),
]
USUAL = [head % len(body) + body for head in (PLAIN, LAST) for body in BODIES[:4]]
ANY = [*USUAL, *(head % len(body) + body for head in HEADS for body in BODIES), *OTHERS]


class Forgetful(Connection):
    """What it has read once it reads again."""

    __slots__ = ()

    def data_received(self, data: bytes) -> None:
        self._known = None
        super().data_received(data)


class Mirror:
    """Says what it was asked."""

    async def answer(self, request: Request) -> None:
        line, body = request.line, b""
        with suppress(ClientGone):
            reads = request.path != b"/early"
            while reads:
                piece = line.read()
                body += piece if isinstance(piece, bytes) else await piece
                reads = line.more
            asked = (request.method, request.path, line.query, line.fields, sorted(line.repeated), body)
            await request.reply(200, repr(asked).encode())
        line.close()


async def heard(kind: type[Connection], pieces: list[bytes], turns: list[int]) -> tuple[Any, ...]:
    """What a client sees of a connection, and how it ends. So many turns of the loop are between one piece and the
    next."""
    refused: list[int] = []
    config = ServerSettings(Mirror(), Config(), Connection, Wire, refused.append)
    config.load()
    state, socket = ServerState(), Socket()
    connection = kind(config, state, {})
    connection.connection_made(socket)  # type: ignore[arg-type]  # as much of one as is needed
    for number, piece in enumerate(pieces):
        if not socket.closing:
            connection.data_received(piece)
        for _ in range(turns[number % len(turns)]):
            await turn()
    for _ in range(40):
        await turn()
    awaited = connection._awaited()
    connection.connection_lost(None)
    await asyncio.gather(*state.tasks)
    said = re.sub(rb"(x-request-id|openai-processing-ms): \S+", rb"\1: ?", b"".join(socket.writes))
    return said, socket.seen, socket.closing, refused, awaited


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({0, len(stream), *(place % (len(stream) + 1) for place in places)})
    return [stream[start:stop] for start, stop in pairwise(edges)]


@settings(max_examples=300, deadline=None)
@given(
    requests=st.lists(st.sampled_from(USUAL) | st.sampled_from(ANY), max_size=6),
    places=st.lists(st.integers(0, 2000), max_size=6),
    whole=st.booleans(),
    turns=st.lists(st.integers(0, 5), min_size=1, max_size=4),
)
def test_what_is_known_changes_nothing(requests: list[bytes], places: list[int], whole: bool, turns: list[int]) -> None:
    pieces = requests if whole else cut(b"".join(requests), places)
    assert asyncio.run(heard(Connection, pieces, turns)) == asyncio.run(heard(Forgetful, pieces, turns))


@settings(max_examples=200, deadline=None)
@given(
    requests=st.lists(st.sampled_from(OFFERING) | st.sampled_from(USUAL), max_size=5),
    places=st.lists(st.integers(0, 1000), max_size=5),
    turns=st.lists(st.integers(0, 4), min_size=1, max_size=3),
)
def test_another_protocol_that_is_offered_changes_nothing(
    requests: list[bytes], places: list[int], turns: list[int]
) -> None:
    sent = b"".join(requests)
    offered = asyncio.run(heard(Connection, cut(sent, places), turns))
    ignored = asyncio.run(heard(Connection, cut(sent.replace(b"\nUpgrade", b"\nIgnored"), places), turns))
    assert (offered[0].replace(b"upgrade", b"ignored"), *offered[1:]) == ignored


@pytest.mark.parametrize("place", range(len(PLAIN % 3) + 3))
async def test_a_request_like_the_last_may_be_cut_anywhere(place: int) -> None:
    stream = PLAIN % 3 + b"[1]"
    pieces = [stream, stream[:place], stream[place:] + stream, stream]
    assert await heard(Connection, pieces, [3]) == await heard(Forgetful, pieces, [3])


async def test_what_is_said_of_one_head_is_not_remembered_of_another() -> None:
    old, new = OLD % 3 + b"[1]", PLAIN % 3 + b"[1]"
    assert await met(old + new) is None
    assert await heard(Connection, [old + new, old], [0]) == await heard(Forgetful, [old + new, old], [0])


async def met(*pieces: bytes) -> Familiar | None:
    """What a connection remembers of it."""
    config = ServerSettings(Mirror(), Config(), Connection, None, lambda status: None)
    connection = Connection(config, ServerState(), {})
    connection.connection_made(Socket())  # type: ignore[arg-type]  # as much of one as is needed
    for piece in pieces:
        connection.data_received(piece)
    return connection._known


@pytest.mark.parametrize("head", [PLAIN, LAST, EARLY])
async def test_a_head_is_known_by_all_but_the_length(head: bytes) -> None:
    known = await met(head % 3 + b"[1]")
    assert known is not None
    assert [known.length_in(head % number + b"[1]") for number in (0, 3, 17, 10**14)] == [
        b"%d" % number for number in (0, 3, 17, 10**14)
    ]
    for other in (head % 10**15, (head % 3)[:-1], head.replace(b"%d", b""), head.replace(b"%d", b"-1"), b"", b"\r\n"):
        assert known.length_in(other) == b""


@pytest.mark.parametrize(
    "sent",
    [
        *(head % 3 + b"[1]" for head in (BLANK, TWICE, EXPECTS, OFFERS, CLOSES, OLD)),
        OTHERS[0],
        OTHERS[2],
        b"\r\n" + PLAIN % 3,
        PLAIN.replace(b"Host", b"X-Request-Id: 1\r\nHost") % 3,
        PLAIN.replace(b"Host", b"X: " + b"x" * 4096 + b"\r\nHost") % 3,
    ],
)
async def test_what_means_more_than_it_says_or_comes_once_is_not_remembered(sent: bytes) -> None:
    assert await met(sent) is None


async def test_a_head_that_came_in_pieces_is_not_remembered() -> None:
    sent = PLAIN % 3 + b"[1]"
    assert await met(sent[:20], sent[20:]) is None
    assert await met(sent[:20], sent[20:], sent) is not None


def test_a_head_that_is_nearly_too_large_is_not_remembered() -> None:
    """A longer number would make it too large."""
    fields = {b"content-length": b"3"}
    cycle = Cycle(None, "POST", b"/", b"", fields)  # type: ignore[arg-type]  # it is not asked
    sent = b"POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\n"
    assert familiar(sent, cycle, len(sent) + 15) is not None
    assert familiar(sent, cycle, len(sent) + 14) is None
