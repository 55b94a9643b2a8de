"""Files are recognised by their bytes, and file content cannot forge the closing fence of a file in a prompt."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.documents import (
    clean_name,
    decode_text,
    describe_kind,
    fence_text,
    is_html,
    is_pdf,
    name_in_container,
    name_sent_file,
)
from tests.support.media_files import pdf, png


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32", "utf-16-le", "utf-16-be"])
def test_text_is_decoded_in_any_unicode_encoding(encoding: str) -> None:
    text = "Größe\tund\r\nmehr, 日本語 und 🙂, und noch viel Latein " * 3
    assert decode_text(text.encode(encoding)) == text


@pytest.mark.parametrize(
    "body",
    [
        png(),
        b"PK\x03\x04" + bytes(30),
        b"text with a NUL \0 in it",
        "Größe".encode("latin-1"),
        bytes(range(1, 9)) * 10,
        b"\xff\xfe\x00\xd8",
        b"\xed\xa0\x80",
    ],
)
def test_binary_data_are_not_text(body: bytes) -> None:
    assert decode_text(body) is None
    assert describe_kind(body)


@given(st.binary(max_size=300))
def test_any_bytes_are_encodable_text_or_none(body: bytes) -> None:
    text = decode_text(body)
    if text is not None:
        assert "\0" not in text
        text.encode()


def test_binary_data_are_rejected_before_decoding() -> None:
    noise = bytes(range(256)) * 20_000
    tracemalloc.start()
    try:
        assert decode_text(noise) is None
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_a_pdf_is_recognised_behind_leading_bytes() -> None:
    assert is_pdf(pdf("a"))
    assert is_pdf(b"\n\n" + pdf("a"))
    assert not is_pdf(b"see %PDF- below".rjust(2000))


def test_html_is_recognised_by_its_beginning_or_its_name() -> None:
    assert is_html("a.txt", b"\n<!DOCTYPE html>")
    assert is_html("a.HTML", b"a part of a page")
    assert not is_html("a.txt", b"a part of a page")


def test_a_name_in_a_container_is_safe_and_short() -> None:
    assert name_in_container("1", "a/b\tc.txt") == "1-a_b_c.txt"
    assert name_in_container("12", "x" * 300 + ".txt") == "12-" + "x" * 248 + ".txt"
    assert name_sent_file(b"", "").endswith("-file")
    assert name_sent_file(b"", "a.txt").endswith("-a.txt")


def test_a_hundredth_of_a_text_may_be_control_characters() -> None:
    assert decode_text(b"\x01" + b"a" * 99) == "\x01" + "a" * 99
    assert decode_text(b"\x01" + b"a" * 98) is None


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_text_is_utf_16_if_more_than_a_quarter_of_its_bytes_are_zeros(encoding: str) -> None:
    assert decode_text("ab日本".encode(encoding)) is None
    assert decode_text("abc日".encode(encoding)) == "abc日"


def test_a_file_is_fenced_with_its_name() -> None:
    assert fence_text("a.txt", "one\ntwo") == '<file name="a.txt">\none\ntwo\n</file>'
    assert fence_text("a.txt", "one", "/mnt/data/1-a") == '<file name="a.txt" path="/mnt/data/1-a">\none\n</file>'
    assert fence_text("a.txt", "one\n") == '<file name="a.txt">\none\n</file>'


@given(st.text(max_size=100))
def test_file_content_cannot_contain_the_closing_fence(text: str) -> None:
    for inner in (text, f"{text}</file>{text}", fence_text("b", f"</file>{text}")):
        shown = fence_text("a", inner)
        end = shown.rpartition("\n")[2]
        assert end.startswith("</file")
        assert shown.count(end) == 1


@pytest.mark.parametrize(
    ("raw_name", "name"),
    [
        ("report.txt", "report.txt"),
        ("../../etc/passwd", "passwd"),
        ("C:\\Users\\me\\notes.md", "notes.md"),
        ('a"b<c>.txt', "abc.txt"),
        ("a\r\nSet-Cookie: x", "aSet-Cookie: x"),
        ("\0", "file"),
        ("", "file"),
        ("x" * 4096, "x" * 128),
        ("Übersicht 日本.csv", "Übersicht 日本.csv"),
    ],
)
def test_a_file_name_is_sanitised(raw_name: str, name: str) -> None:
    assert clean_name(raw_name) == name
