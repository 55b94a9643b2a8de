"""An answer is counted while it comes, and is whole or an error, however it is cut."""

import gzip
import zlib
from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.egress.http_response import Answer
from antiphon.errors import FetchFailed
from tests.egress.hosts import answer, moved

MOST = 3 * 1024 * 1024
TEXT = bytes(range(256)) * 40


def taken(data: bytes, cuts: list[int] | None = None, most: int = MOST) -> Answer:
    made = Answer("host", most, "field")
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts or ())})
    for start, end in pairwise(places):
        made.feed(data[start:end])
        if made.complete:
            return made
    made.end()
    return made


def raw_deflate(data: bytes) -> bytes:
    packing = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packing.compress(data) + packing.flush()


WAYS = {
    "plain": answer(TEXT, "Content-Type: Image/PNG; q=1"),
    "chunked": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: image/png\r\n\r\n"
    + b"%x;ext=1\r\n%b\r\n0\r\nTrailer: x\r\n\r\n" % (len(TEXT), TEXT),
    "to the end": b"HTTP/1.0 200 OK\r\nContent-Type: image/png\r\n\r\n" + TEXT,
    "gzip": answer(gzip.compress(TEXT), "Content-Type: image/png", "Content-Encoding: gzip"),
    "zlib": answer(zlib.compress(TEXT), "Content-Type: image/png", "Content-Encoding: deflate"),
    "deflate": answer(raw_deflate(TEXT), "Content-Type: image/png", "Content-Encoding: Deflate"),
    "early hints": b"HTTP/1.1 103 Early Hints\r\nContent-Type: x/y\r\n\r\n" + answer(TEXT, "Content-Type: image/png"),
}


@pytest.mark.parametrize("way", WAYS)
@given(cuts=st.lists(st.integers(0, 100_000), max_size=8))
def test_every_way_to_send_a_body_is_read_however_it_is_cut(way: str, cuts: list[int]) -> None:
    made = taken(WAYS[way], cuts)
    assert (made.body(), made.media_type, made.location) == (TEXT, "image/png", None)


BOMB = zlib.compressobj(9, wbits=31)
SWOLLEN = BOMB.compress(bytes(200 * 1024 * 1024)) + BOMB.flush()
UNWANTED = {
    "nonsense": b"SSH-2.0-OpenSSH_9.9\r\n",
    "a short body": answer(TEXT)[:-1],
    "half a head": b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\n",
    "half a gzip": answer(gzip.compress(TEXT)[:-20], "Content-Encoding: gzip"),
    "no gzip": answer(TEXT, "Content-Encoding: gzip"),
    "brotli": answer(TEXT, "Content-Encoding: br"),
    "zstd": answer(TEXT, "Content-Encoding: zstd"),
    "gzip twice": answer(gzip.compress(gzip.compress(TEXT)), "Content-Encoding: gzip, gzip"),
    "two types": answer(TEXT, "Content-Type: image/png", "Content-Type: text/html"),
    "two lengths": answer(TEXT, "Content-Length: 3"),
    "an upgrade": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
    "a 404": answer(b"", status="404 Not Found"),
    "a 206": answer(TEXT, status="206 Partial Content"),
    "a 304": b"HTTP/1.1 304 Not Modified\r\n\r\n",
    "a head without an end": b"HTTP/1.1 200 OK\r\n" + b"X-Long: " + b"a" * 100_000,
    "too many headers": b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20_000,
    "a promise too large": b"HTTP/1.1 200 OK\r\nContent-Length: 5368709120\r\n\r\n" + TEXT,
    "a body too large": b"HTTP/1.1 200 OK\r\n\r\n" + bytes(MOST + 1),
    "a bomb": answer(SWOLLEN, "Content-Encoding: gzip"),
    "much framing": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1;x=" + b"y" * (4 * MOST) + b"\r\n",
}


@pytest.mark.parametrize("what", UNWANTED)
@settings(max_examples=15)
@given(cuts=st.lists(st.integers(0, 100_000), max_size=3))
def test_what_is_not_wanted_is_an_error_that_names_the_field(what: str, cuts: list[int]) -> None:
    with pytest.raises(FetchFailed) as failed:
        taken(UNWANTED[what], cuts).body()
    assert failed.value.param == "field"
    assert failed.value.message.startswith("host ")


def test_what_comes_in_crumbs_is_counted_as_it_comes() -> None:
    crumbs = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 100_000 + b"0\r\n\r\n"
    assert len(taken(crumbs, most=400_000).body()) == 100_000
    with pytest.raises(FetchFailed, match="more than the 200,000 bytes"):
        taken(crumbs, most=200_000)


def test_a_bomb_is_given_up_early() -> None:
    """200 MB in 200 kB: what was made of it before that was seen is a small part."""
    made = Answer("host", 400 * 1024 * 1024, "")
    with pytest.raises(FetchFailed, match="swells beyond measure"):
        made.feed(answer(SWOLLEN, "Content-Encoding: gzip"))
    assert made._swollen._size < 50 * 1024 * 1024


@given(st.binary(max_size=300))
def test_any_bytes_are_an_answer_or_an_error(data: bytes) -> None:
    for given_bytes in (data, b"HTTP/1.1 200 OK\r\n" + data, b"HTTP/1.1 200 OK\r\n\r\n" + data):
        with suppress(FetchFailed):
            assert isinstance(taken(given_bytes).body(), bytes)


def test_a_redirect_leads_somewhere_or_fails() -> None:
    assert taken(moved("/x", 308)).location == "/x"
    assert taken(answer(b"", status="300 Choices")).location is None
    for nowhere in (answer(b"", status="302 Found"), moved("").replace(b": \r", b": \xff\r")):
        with pytest.raises(FetchFailed, match="nowhere"):
            taken(nowhere).location  # noqa: B018 - it is what raises
