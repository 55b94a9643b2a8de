"""Data URLs and base64 in canonical form and in the variants that some clients send."""

import tracemalloc
from base64 import b64encode, encodebytes, urlsafe_b64encode
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core import data_urls
from antiphon.core.data_urls import (
    DecodedData,
    UnreadableMedia,
    is_data_url,
    read_base64,
    read_data_url,
    to_data_url,
)

MAX_BYTES = 1000


@given(st.binary(max_size=600))
def test_an_encoded_body_is_decoded(body: bytes) -> None:
    assert read_data_url(to_data_url("image/png", body), MAX_BYTES) == DecodedData(body, True, "image/png")
    assert read_base64(b64encode(body).decode(), MAX_BYTES).body == body


@given(st.binary(min_size=1, max_size=600))
def test_whitespace_url_safe_alphabet_and_missing_padding_are_accepted(body: bytes) -> None:
    plain = b64encode(body).decode()
    lines = "\r\n".join(plain[at : at + 76] for at in range(0, len(plain), 76))
    for written in (f" {lines}\n", urlsafe_b64encode(body).decode(), plain.rstrip("="), f"{plain}\n"):
        assert read_base64(written, MAX_BYTES) == DecodedData(body, written == plain)


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        ("data:image/png;base64", "image/png"),
        ("DATA:Image/PNG;BASE64", "image/png"),
        ("data:;base64", ""),
        ("data:image/svg+xml;charset=utf-8;base64", "image/svg+xml"),
        ("data:video/jpeg; base64", "video/jpeg"),
    ],
)
def test_the_declared_type_is_returned(head: str, kind: str) -> None:
    assert is_data_url(head)
    assert read_data_url(f"{head},QUJD", MAX_BYTES) == DecodedData(b"ABC", True, kind)


@pytest.mark.parametrize(
    "url",
    [
        "data:",
        "data:image/png",
        "data:image/png;base64",
        "data:image/png,QUJD",
        "data:image/png;base64,QUJDR",
        "data:image/png;base64,QU=JD",
        "data:image/png;base64,%51%55%4a%44",
        "data:image/png;base64,ÄÖ",
        "data:image/png;base64,\ud800",
        "data:image/png;" + "x" * 300 + ";base64,QUJD",
        "data:image/png;base64," + "A" * 4000,
    ],
)
def test_invalid_data_urls_are_rejected(url: str) -> None:
    with pytest.raises(UnreadableMedia):
        read_data_url(url, MAX_BYTES)


def test_data_is_accepted_up_to_the_limit() -> None:
    for size, line_ends in ((999, "\n\r\n\n"), (1000, ""), (1001, "")):  # with each padding
        url = to_data_url("image/png", bytes(size)) + line_ends
        assert len(read_data_url(url, size).body) == size
        with pytest.raises(UnreadableMedia):
            read_data_url(url, size - 1)


@given(st.text(max_size=300))
def test_any_text_is_decoded_or_rejected(text: str) -> None:
    for read in (read_data_url, read_base64):
        with suppress(UnreadableMedia):
            assert len(read(text, MAX_BYTES).body) <= MAX_BYTES


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 11, 12, 13, 3_000])
def test_piece_boundaries_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(data_urls, "_PIECE_CHARS", 4)
    body = bytes(number % 251 for number in range(size))
    plain = b64encode(body).decode()
    assert read_base64(plain, 10_000) == DecodedData(body, True)
    assert read_base64(f"{plain}\n", 10_000) == DecodedData(body, False)
    for wrong in (f"QQ=={plain}", f"{plain}QUI=QUI="):
        if "=" in wrong[:-4]:
            with pytest.raises(UnreadableMedia):
                read_base64(wrong, 10_000)


def test_a_large_url_is_decoded_without_extra_copies() -> None:
    large = "data:image/png;base64," + "A" * 4_000_000
    tracemalloc.start()
    try:
        assert len(read_data_url(large, 4_000_000).body) == 3_000_000
        assert tracemalloc.get_traced_memory()[1] < 4_500_000
    finally:
        tracemalloc.stop()


def test_an_oversized_url_is_rejected_before_decoding() -> None:
    large = "data:image/png;base64," + "A" * 50_000_000
    tracemalloc.start()
    try:
        for read in (read_data_url, read_base64):
            with pytest.raises(UnreadableMedia, match="more than"):
                read(large, MAX_BYTES)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_line_breaks_do_not_count_as_data() -> None:
    body = b"x" * 57_000
    assert read_base64(encodebytes(body).decode().replace("\n", "\r\n"), 57_000).body == body
    with pytest.raises(UnreadableMedia, match="57,000 bytes; at most 56,999"):
        read_base64(encodebytes(body).decode(), 56_999)
