"""An HTTP response is limited while it arrives, and is complete or an error at every cut."""

import gzip
import zlib
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.egress.http import HttpResponse
from antiphon.errors import FetchFailed
from tests.egress.hosts import build_redirect, build_response

MAX_BYTES = 3 * 1024 * 1024
TEXT = bytes(range(256)) * 40


def read_response(data: bytes, cuts: list[int] | None = None, max_bytes: int = MAX_BYTES) -> HttpResponse:
    response = HttpResponse("host", max_bytes, "field")
    positions = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts or ())})
    for start, end in pairwise(positions):
        response.feed(data[start:end])
        if response.complete:
            return response
    response.require_end()
    return response


def deflate_raw(data: bytes) -> bytes:
    compressor = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return compressor.compress(data) + compressor.flush()


ENCODINGS = {
    "plain": build_response(TEXT, "Content-Type: Image/PNG; q=1"),
    "chunked": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: image/png\r\n\r\n"
    + b"%x;ext=1\r\n%b\r\n0\r\nTrailer: x\r\n\r\n" % (len(TEXT), TEXT),
    "to the end": b"HTTP/1.0 200 OK\r\nContent-Type: image/png\r\n\r\n" + TEXT,
    "gzip": build_response(gzip.compress(TEXT), "Content-Type: image/png", "Content-Encoding: gzip"),
    "zlib": build_response(zlib.compress(TEXT), "Content-Type: image/png", "Content-Encoding: deflate"),
    "deflate": build_response(deflate_raw(TEXT), "Content-Type: image/png", "Content-Encoding: Deflate"),
    "early hints": b"HTTP/1.1 103 Early Hints\r\nContent-Type: x/y\r\n\r\n"
    + build_response(TEXT, "Content-Type: image/png"),
}


@pytest.mark.parametrize("encoding", ENCODINGS)
@given(cuts=st.lists(st.integers(0, 100_000), max_size=8))
def test_every_encoding_of_a_body_is_read_at_every_cut(encoding: str, cuts: list[int]) -> None:
    response = read_response(ENCODINGS[encoding], cuts)
    assert (response.body(), response.media_type, response.location) == (TEXT, "image/png", None)


COMPRESSOR = zlib.compressobj(9, wbits=31)
BOMB_BYTES = COMPRESSOR.compress(bytes(200 * 1024 * 1024)) + COMPRESSOR.flush()
INVALID = {
    "nonsense": b"SSH-2.0-OpenSSH_9.9\r\n",
    "a short body": build_response(TEXT)[:-1],
    "half a head": b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\n",
    "half a gzip": build_response(gzip.compress(TEXT)[:-20], "Content-Encoding: gzip"),
    "invalid gzip": build_response(TEXT, "Content-Encoding: gzip"),
    "brotli": build_response(TEXT, "Content-Encoding: br"),
    "zstd": build_response(TEXT, "Content-Encoding: zstd"),
    "gzip twice": build_response(gzip.compress(gzip.compress(TEXT)), "Content-Encoding: gzip, gzip"),
    "two types": build_response(TEXT, "Content-Type: image/png", "Content-Type: text/html"),
    "two lengths": build_response(TEXT, "Content-Length: 3"),
    "an upgrade": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
    "a 404": build_response(b"", status="404 Not Found"),
    "a 206": build_response(TEXT, status="206 Partial Content"),
    "a 304": b"HTTP/1.1 304 Not Modified\r\n\r\n",
    "a head without an end": b"HTTP/1.1 200 OK\r\n" + b"X-Long: " + b"a" * 100_000,
    "too many headers": b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20_000,
    "a declared length too large": b"HTTP/1.1 200 OK\r\nContent-Length: 5368709120\r\n\r\n" + TEXT,
    "a body too large": b"HTTP/1.1 200 OK\r\n\r\n" + bytes(MAX_BYTES + 1),
    "a bomb": build_response(BOMB_BYTES, "Content-Encoding: gzip"),
    "much framing": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    + b"1;x="
    + b"y" * (4 * MAX_BYTES)
    + b"\r\n",
}


@pytest.mark.parametrize("kind", INVALID)
@settings(max_examples=15)
@given(cuts=st.lists(st.integers(0, 100_000), max_size=3))
def test_an_invalid_response_is_an_error_with_the_parameter_name(kind: str, cuts: list[int]) -> None:
    with pytest.raises(FetchFailed) as failed:
        read_response(INVALID[kind], cuts).body()
    assert failed.value.param == "field"
    assert failed.value.message.startswith("host ")


def test_the_framing_of_tiny_chunks_counts_towards_the_limit() -> None:
    data = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 100_000 + b"0\r\n\r\n"
    assert len(read_response(data, max_bytes=400_000).body()) == 100_000
    with pytest.raises(FetchFailed, match="more than the 200,000 bytes"):
        read_response(data, max_bytes=200_000)


def chunk_with_extension(size: int) -> bytes:
    """Return a response of one byte that has this size on the wire."""
    head, tail = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;x=", b"\r\nx\r\n0\r\n\r\n"
    return head + b"y" * (size - len(head) - len(tail)) + tail


def close_at_end(size: int) -> bytes:
    return b"HTTP/1.1 200 OK\r\n\r\n" + bytes(size)


def gzip_response(size: int) -> bytes:
    return build_response(gzip.compress(bytes(size)), "Content-Encoding: gzip")


@pytest.mark.parametrize(
    ("make_response", "size", "max_bytes"),
    [
        (lambda size: build_response(bytes(size)), 1000, 1000),
        (close_at_end, 1000, 1000),
        (gzip_response, 1000, 1000),
        (gzip_response, 1024 * 1024, MAX_BYTES),  # of any ratio
        (chunk_with_extension, 1000 + 256 * 1024, 1000),
    ],
)
def test_a_size_is_accepted_up_to_its_limit(make_response: Callable[[int], bytes], size: int, max_bytes: int) -> None:
    read_response(make_response(size), max_bytes=max_bytes).body()
    with pytest.raises(FetchFailed):
        read_response(make_response(size + 1), max_bytes=max_bytes).body()


def test_a_large_body_is_accepted_if_its_ratio_is_usual() -> None:
    text = Random(1).randbytes(MAX_BYTES // 2)
    assert read_response(build_response(gzip.compress(text, 1), "Content-Encoding: gzip")).body() == text


@pytest.mark.parametrize("size", range(65_536, 65_796, 10))
def test_a_body_is_decoded_to_its_end_if_the_last_byte_is_part_of_the_last_step(size: int) -> None:
    data = build_response(deflate_raw(bytes(size)), "Content-Encoding: deflate")
    assert len(read_response(data).body()) == size


def test_an_error_status_is_reported_whatever_its_body_is() -> None:
    data = build_response(TEXT, "Content-Encoding: gzip", status="500 Failed")
    with pytest.raises(FetchFailed, match="HTTP status 500"):
        read_response(data).body()


def test_a_decompression_bomb_is_rejected_early() -> None:
    """200 MB in 200 kB: only a small part is decompressed before the bomb is detected."""
    response = HttpResponse("host", 400 * 1024 * 1024, "")
    with pytest.raises(FetchFailed, match="swells beyond measure"):
        response.feed(build_response(BOMB_BYTES, "Content-Encoding: gzip"))
    assert response._size < 50 * 1024 * 1024


@given(st.binary(max_size=300))
def test_any_bytes_are_a_response_or_an_error(data: bytes) -> None:
    for received in (data, b"HTTP/1.1 200 OK\r\n" + data, b"HTTP/1.1 200 OK\r\n\r\n" + data):
        with suppress(FetchFailed):
            assert isinstance(read_response(received).body(), bytes)


def test_a_redirect_has_a_location_or_fails() -> None:
    assert read_response(build_redirect("/x", 308)).location == "/x"
    assert read_response(build_response(b"", status="300 Choices")).location is None
    for nowhere in (build_response(b"", status="302 Found"), build_redirect("").replace(b": \r", b": \xff\r")):
        with pytest.raises(FetchFailed, match="nowhere"):
            read_response(nowhere).location  # noqa: B018 - the property raises
