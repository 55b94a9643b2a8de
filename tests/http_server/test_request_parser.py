"""RequestParser: the events of requests, however they are split, and what is refused. Without IO."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.http_server.request_parser import (
    MAX_BATCH,
    EndOfRequest,
    Event,
    RequestHead,
    RequestParser,
    RequestRefusal,
    WebSocketOffer,
)

HOST = (b"host", b"a")
GET = b"GET /x?q=1#f HTTP/1.1\r\nHost: a\r\n\r\n"
POST = b"POST /y HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc"
CHUNKED = b"POST /z HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\nT: x\r\n\r\n"
OFFER = b"POST /o HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 3\r\n\r\nabc"
HANDSHAKE = (
    b"GET /w?k=1 HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Upgrade\r\nUpgrade: h2c\r\nUpgrade: WebSocket\r\n\r\n"
)


def parse(*pieces: bytes, max_head_bytes: int = 1000, websockets: bool = True) -> list[Event]:
    """Return all events; adjacent pieces of a body are joined."""
    parser = RequestParser(max_head_bytes, accept_websockets=websockets)
    events: list[Event] = []
    for piece in pieces:
        parser.receive(piece)
        while parser.unparsed and not (events and isinstance(events[-1], RequestRefusal | WebSocketOffer)):
            events += parser.next_events()
    joined: list[Event] = []
    for event in events:
        if isinstance(event, bytes) and joined and isinstance(joined[-1], bytes):
            joined[-1] += event
        else:
            joined.append(event)
    return joined


def make_head(method: str, path: bytes, *headers: tuple[bytes, bytes], **fields: Any) -> RequestHead:
    return RequestHead(
        method, path, fields.get("query", b""), [HOST, *headers], fields.get("version", "1.1"), fields.get("keep", True)
    )


def test_a_request_is_its_head_its_body_and_its_end() -> None:
    assert parse(GET) == [make_head("GET", b"/x", query=b"q=1"), EndOfRequest()]
    assert parse(POST) == [make_head("POST", b"/y", (b"content-length", b"3")), b"abc", EndOfRequest()]


def test_trailers_are_not_headers() -> None:
    """RFC 9110 §6.5.1."""
    assert parse(CHUNKED, GET) == [
        make_head("POST", b"/z", (b"transfer-encoding", b"chunked")),
        b"abc",
        EndOfRequest(),
        make_head("GET", b"/x", query=b"q=1"),
        EndOfRequest(),
    ]


@given(
    st.lists(st.sampled_from([GET, POST, CHUNKED, OFFER]), max_size=12),
    st.sampled_from([b"", HANDSHAKE, b"\x00"]),
    st.lists(st.integers(0, 1500), max_size=8),
)
def test_requests_are_parsed_alike_however_they_are_split(requests: list[bytes], end: bytes, cuts: list[int]) -> None:
    data = b"".join(requests) + end
    bounds = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    pieces = [data[start:stop] for start, stop in pairwise(bounds)]
    assert parse(*pieces) == parse(data)


def test_many_requests_are_parsed_in_batches() -> None:
    parser = RequestParser(1000, accept_websockets=False)
    parser.receive(GET * 100)
    heads = [event for event in parser.next_events() if isinstance(event, RequestHead)]
    assert 1 <= len(heads) <= MAX_BATCH
    assert len(parser.unparsed) == (100 - len(heads)) * len(GET)


@pytest.mark.parametrize(
    ("target", "path", "query", "host"),
    [
        (b"http://b/x?q", b"/x", b"q", b"b"),
        (b"HTTPS://b:443/x", b"/x", b"", b"b:443"),
        (b"http://b", b"/", b"", b"b"),
        (b"http://[::1]:80?q", b"/", b"q", b"[::1]:80"),
    ],
)
def test_the_absolute_form_names_the_host(target: bytes, path: bytes, query: bytes, host: bytes) -> None:
    """RFC 9112 §3.2.2: the host of the target replaces that of the Host header."""
    head, _ = parse(b"GET %b HTTP/1.1\r\nHost: a\r\n\r\n" % target)
    assert isinstance(head, RequestHead)
    assert (head.path, head.query, head.headers) == (path, query, [(b"host", host)])


@pytest.mark.parametrize(
    "line",
    [b"GET http:///x", b"GET ftp://b/x", b"GET http://u@b/x", b"OPTIONS *", b"CONNECT b:80", b"GET x", b"GET /\xff"],
)
def test_other_targets_are_refused(line: bytes) -> None:
    assert parse(line + b" HTTP/1.1\r\nHost: a\r\n\r\n") == [
        RequestRefusal(400, "This is not a well-formed HTTP request.")
    ]


@pytest.mark.parametrize(
    ("line", "connection", "keep_alive"),
    [
        (b"HTTP/1.1", b"", True),
        (b"HTTP/1.1", b"Connection: close\r\n", False),
        (b"HTTP/1.0", b"", False),
        (b"HTTP/1.0", b"Connection: keep-alive\r\n", False),
    ],
)
def test_keep_alive_depends_on_version_and_header(line: bytes, connection: bytes, keep_alive: bool) -> None:
    head, *_ = parse(b"GET / %b\r\nHost: a\r\n%b\r\n" % (line, connection))
    assert isinstance(head, RequestHead)
    assert (head.keep_alive, head.version) == (keep_alive, line.decode()[5:])


def test_a_websocket_is_offered_as_the_only_protocol() -> None:
    assert parse(GET, HANDSHAKE + b"ignored")[2:] == [
        WebSocketOffer(
            b"GET /w?k=1 HTTP/1.1\r\nhost: a\r\nconnection: keep-alive, Upgrade\r\nupgrade: websocket\r\n\r\n"
        )
    ]


def test_a_websocket_that_is_not_accepted_is_an_ordinary_request() -> None:
    head, end = parse(HANDSHAKE, websockets=False)
    assert (isinstance(head, RequestHead), end) == (True, EndOfRequest())


@pytest.mark.parametrize(
    "data",
    [b"GET / HTTP/1.1\r\nX: " + b"x" * 2000, b"GET /" + b"x" * 2000 + b" HTTP/1.1\r\n\r\n", b"\r\n" * 2000],
)
def test_an_oversized_head_is_refused(data: bytes) -> None:
    assert parse(data) == [RequestRefusal(431, "The request line and headers are larger than 1000 bytes together.")]


def test_a_large_body_does_not_count_as_a_head() -> None:
    body = b"x" * 5000
    assert parse(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5000\r\n\r\n" + body)[1:] == [body, EndOfRequest()]
    assert parse(GET * 100 + b"\x00")[-1] == RequestRefusal(400, "This is not a well-formed HTTP request.")


def test_the_state_between_bytes_is_visible() -> None:
    parser = RequestParser(1000, accept_websockets=False)
    assert (parser.is_between_requests, parser.is_in_head) == (True, False)
    parser.receive(POST[:10])
    parser.next_events()
    assert (parser.is_between_requests, parser.is_in_head) == (False, True)
    parser.receive(POST[10:-1])
    parser.next_events()
    assert (parser.is_between_requests, parser.is_in_head) == (False, False)
    parser.receive(POST[-1:])
    parser.next_events()
    assert (parser.is_between_requests, parser.is_in_head) == (True, False)
