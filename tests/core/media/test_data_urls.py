"""Data URLs are read as they should be written, and as some clients write them."""

import tracemalloc
from base64 import b64encode, urlsafe_b64encode
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.media import data_urls
from antiphon.core.media.data_urls import Data, Unreadable, data_url, is_data_url, read_base64, read_data_url

MOST = 1000


@given(st.binary(max_size=600))
def test_what_was_written_is_read(body: bytes) -> None:
    assert read_data_url(data_url("image/png", body), MOST) == Data(body, True, "image/png")
    assert read_base64(b64encode(body).decode(), MOST).body == body


@given(st.binary(min_size=1, max_size=600))
def test_blanks_the_other_alphabet_and_missing_padding_are_put_right(body: bytes) -> None:
    plain = b64encode(body).decode()
    lines = "\r\n".join(plain[at : at + 76] for at in range(0, len(plain), 76))
    for written in (f" {lines}\n", urlsafe_b64encode(body).decode(), plain.rstrip("="), f"{plain}\n"):
        assert read_base64(written, MOST) == Data(body, written == plain)


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
def test_the_declared_type_is_told(head: str, kind: str) -> None:
    assert is_data_url(head)
    assert read_data_url(f"{head},QUJD", MOST) == Data(b"ABC", True, kind)


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
def test_what_is_none_is_refused(url: str) -> None:
    with pytest.raises(Unreadable):
        read_data_url(url, MOST)


@given(st.text(max_size=300))
def test_any_text_is_data_or_refused(text: str) -> None:
    for read in (read_data_url, read_base64):
        with suppress(Unreadable):
            assert len(read(text, MOST).body) <= MOST


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 11, 12, 13, 3_000])
def test_wherever_it_is_cut_it_is_the_same(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(data_urls, "_PIECE", 4)
    body = bytes(number % 251 for number in range(size))
    plain = b64encode(body).decode()
    assert read_base64(plain, 10_000) == Data(body, True)
    assert read_base64(f"{plain}\n", 10_000) == Data(body, False)
    for wrong in (f"QQ=={plain}", f"{plain}QUI=QUI="):
        if "=" in wrong[:-4]:
            with pytest.raises(Unreadable):
                read_base64(wrong, 10_000)


def test_what_is_large_is_not_copied_on_the_way() -> None:
    large = "data:image/png;base64," + "A" * 4_000_000
    tracemalloc.start()
    try:
        assert len(read_data_url(large, 4_000_000).body) == 3_000_000
        assert tracemalloc.get_traced_memory()[1] < 4_500_000
    finally:
        tracemalloc.stop()


def test_what_is_too_large_is_not_decoded_first() -> None:
    large = "data:image/png;base64," + "A" * 50_000_000
    tracemalloc.start()
    try:
        for read in (read_data_url, read_base64):
            with pytest.raises(Unreadable, match="more than"):
                read(large, MOST)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
