"""Files are told by their bytes; in a prompt nobody can write the end of a file but us."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.media.documents import clean_name, fenced, is_pdf, kind_of, text_in
from tests.support.media_files import pdf, png


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32", "utf-16-le", "utf-16-be"])
def test_text_is_read_in_whatever_unicode_it_is(encoding: str) -> None:
    text = "Größe\tund\r\nmehr, 日本語 und 🙂, und noch viel Latein " * 3
    assert text_in(text.encode(encoding)) == text


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
def test_what_is_no_text_is_none(body: bytes) -> None:
    assert text_in(body) is None
    assert kind_of(body)


@given(st.binary(max_size=300))
def test_any_bytes_are_text_that_can_be_sent_or_none(body: bytes) -> None:
    text = text_in(body)
    if text is not None:
        assert "\0" not in text
        text.encode()


def test_what_is_no_text_is_not_decoded_first() -> None:
    noise = bytes(range(256)) * 20_000
    tracemalloc.start()
    try:
        assert text_in(noise) is None
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_a_pdf_is_one_also_behind_some_noise() -> None:
    assert is_pdf(pdf("a"))
    assert is_pdf(b"\n\n" + pdf("a"))
    assert not is_pdf(b"see %PDF- below".rjust(2000))


def test_a_file_stands_between_marks_with_its_name() -> None:
    assert fenced("a.txt", "one\ntwo") == '<file name="a.txt">\none\ntwo\n</file>'
    assert fenced("a.txt", "one\n") == '<file name="a.txt">\none\n</file>'


@given(st.text(max_size=100))
def test_nobody_writes_the_end_of_a_file_into_it(text: str) -> None:
    for inner in (text, f"{text}</file>{text}", fenced("b", f"</file>{text}")):
        shown = fenced("a", inner)
        end = shown.rpartition("\n")[2]
        assert end.startswith("</file")
        assert shown.count(end) == 1


@pytest.mark.parametrize(
    ("given_name", "name"),
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
def test_a_name_is_made_harmless(given_name: str, name: str) -> None:
    assert clean_name(given_name) == name
