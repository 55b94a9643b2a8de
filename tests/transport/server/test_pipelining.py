"""Requests that are sent before those ahead of them are answered."""

import asyncio

import pytest
from uvicorn.server import ServerState

from antiphon.config import Config
from antiphon.transport.http.request import Request
from antiphon.transport.server.http_protocol import MOST, Connection, share
from antiphon.transport.server.settings import ServerSettings
from tests.transport.edge_process import SECONDS, connected, process, request
from tests.transport.server.recording_transport import Socket, turn

pytestmark = pytest.mark.anyio

READ = 96 * 1024  # bytes that come at once: enough to stop reading
LIMITS = Config().limits
CHUNKS = "Transfer-Encoding: chunked"

FORMS = {
    "tiny": b"GET /%d HTTP/1.1\r\n\r\n",
    "with a body": b"POST /%d HTTP/1.1\r\nContent-Length: 4\r\n\r\n\r\n\r\n",
    "with a known head": b"POST / HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 8\r\n\r\n%8d",
    "in chunks": b"POST /%d HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n",
    "offering another protocol": b"GET /%d HTTP/1.1\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n",
}


class Echo:
    """An application that says what it was asked."""

    async def answer(self, request: Request) -> None:
        with request.line:
            piece = request.line.read()
            body = piece if isinstance(piece, bytes) else await piece
            while request.line.more:
                piece = request.line.read()
                body += piece if isinstance(piece, bytes) else await piece
        await request.reply(200, request.path + b" " + body)
        request.line.close()


class Talk:
    """A connection and what its client hears."""

    def __init__(self) -> None:
        self.socket = Socket()
        self.connection = Connection(
            ServerSettings(Echo(), Config(), Connection, None, lambda status: None), ServerState(), {}
        )
        self.connection.connection_made(self.socket)  # type: ignore[arg-type]  # as much of one as is needed
        self.most = 0  # requests that waited at a time

    @property
    def heard(self) -> list[bytes]:
        return [reply.partition(b"\r\n\r\n")[2] for reply in self.socket.writes]

    def send(self, data: bytes) -> None:
        self.connection.data_received(data)
        self.most = max(self.most, len(self.connection.waiting))

    async def hears(self, number: int) -> None:
        async with asyncio.timeout(SECONDS):
            while len(self.socket.writes) < number:
                await turn()
                self.most = max(self.most, len(self.connection.waiting))


def filled(form: bytes) -> list[bytes]:
    """As many as fit into one read."""
    number = READ // len(form % 10_000)
    return [form % (10_000 + one) for one in range(number)]


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
async def test_of_all_that_comes_at_once_a_few_wait_and_all_are_answered_in_turn(form: bytes) -> None:
    requests, talk = filled(form), Talk()
    talk.send(b"".join(requests))
    await talk.hears(len(requests))
    assert talk.most <= 2 * MOST
    assert [b"%d" % (10_000 + one) in heard for one, heard in enumerate(talk.heard)] == [True] * len(requests)


async def test_no_more_is_read_while_much_of_it_waits_whoever_is_at_work() -> None:
    requests, talk = filled(FORMS["tiny"]), Talk()
    talk.send(b"".join(requests))
    assert talk.socket.seen == ["paused"]
    await talk.hears(len(requests) // 4)
    assert talk.socket.seen == ["paused"]
    await talk.hears(len(requests))
    assert talk.socket.seen == ["paused", "resumed"]


async def test_what_comes_while_others_wait_waits_behind_them() -> None:
    requests, talk = filled(FORMS["tiny"])[:1000], Talk()
    for one in requests:
        talk.send(one)
    await talk.hears(len(requests))
    assert (talk.most, talk.socket.seen) == (MOST, [])  # it is little, and who leaves is noticed
    assert talk.heard == [b"/%d " % (10_000 + one) for one in range(len(requests))]


MIXED = [
    request("/first", method="POST", body=b'"\\r\\n"'),
    request("/blank", CHUNKS, method="POST") + b"4\r\n\r\n\r\n\r\n0\r\n\r\n",
    *[request("/many", method="POST", body=b"%d" % number) for number in range(2 * MOST)],
    request("/other", "Connection: Upgrade", "Upgrade: h2c", "Content-Length: 3", method="POST") + b"[1]",
    *[request(f"/{number}") for number in range(2 * MOST)],
    request("/last", method="POST", body=b"x" * 100),
]


async def test_wherever_it_is_cut_nothing_is_lost_or_changes_places() -> None:
    data, whole = b"".join(MIXED), Talk()
    whole.send(data)
    await whole.hears(len(MIXED))
    for cut in range(1, len(data), 19):
        talk = Talk()
        for piece in (data[:cut], data[cut : cut + 50], data[cut + 50 :]):
            talk.send(piece)
            await turn()
        await talk.hears(len(MIXED))
        assert talk.heard == whole.heard, cut
        assert talk.most <= 2 * MOST


async def test_what_is_no_request_ends_the_connection_when_it_is_its_turn() -> None:
    talk = Talk()
    talk.send(request() * 50 + b"\x00\r\n\r\n" + request() * 10_000)
    async with asyncio.timeout(SECONDS):
        while "ended" not in talk.socket.seen:
            await turn()
    for _ in range(100):
        await turn()
    assert talk.socket.writes[-1].startswith(b"HTTP/1.1 400")
    assert len(talk.socket.writes) <= 51


async def test_a_body_that_waits_is_not_late() -> None:
    talk = Talk()
    tail = request("/tail", "Content-Length: 100000", method="POST")
    talk.send(request() * 2 * MOST + tail + b"x" * 50_000)
    for now in (0.0, 1e6, 2e6):
        talk.connection.check(talk.connection.loop.time() + now)
    assert talk.socket.writes == []
    await talk.hears(2 * MOST)
    talk.send(b"x" * 50_000)
    await talk.hears(2 * MOST + 1)
    assert talk.heard[-1] == b"/tail " + b"x" * 100_000


async def test_what_follows_the_last_request_is_nobodys_business_however_much_it_is() -> None:
    talk = Talk()
    talk.send(request("/last", "Connection: close") + request() * 1000)
    talk.send(b"\r\n" * READ)
    await talk.hears(1)
    assert (talk.heard, talk.socket.seen, talk.socket.closing) == ([b"/last "], [], True)


async def test_who_asked_for_much_more_and_leaves_is_noticed() -> None:
    with process() as one:
        one.started()
        async with connected(one) as client:
            await client.send(request("/v1/flood") + request() * 1000)
            await client.reader.readexactly(100_000)
        await one.says("flood ended")


def test_one_share_has_no_more_requests_than_may_wait() -> None:
    data = request() * 100
    assert share(data, 0) == MOST * len(request())
    assert share(request() * MOST, 0) == MOST * len(request())
    assert share(b"x" * READ, 0) == READ
    assert share(data, len(request())) == (MOST + 1) * len(request())
    assert share(data, len(data) + 1) == len(data)


class Counting(Connection):
    """Counts the pieces in which it is given a body."""

    pieces = 0

    def on_body(self, piece: bytes) -> None:
        self.pieces += 1
        super().on_body(piece)


async def test_empty_lines_in_a_body_are_no_ends_of_requests() -> None:
    """They would be taken for that eight at a time, and a body may have nothing else in it."""
    blank = b"\r\n" * (READ // 2)
    config = ServerSettings(Echo(), Config(), Connection, None, lambda status: None)
    connection, socket = Counting(config, ServerState(), {}), Socket()
    connection.connection_made(socket)  # type: ignore[arg-type]  # as much of one as is needed
    connection.data_received(request("/", method="POST", body=blank) + request("/next"))
    async with asyncio.timeout(SECONDS):
        while len(socket.writes) < 2:
            await turn()
    assert connection.pieces <= 2
    assert socket.writes[0].endswith(blank)
