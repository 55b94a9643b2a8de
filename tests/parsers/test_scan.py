"""Markers in pieces: any cut gives the same, nothing is lost, and the time is linear."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.parsers.scan import Scan
from tests.parsers.cuts import CUTS, pieces

MARKERS = ("<a>", "</a>", "xyxz", "yx")


def scanned(parts: list[str], markers: tuple[str, ...] = MARKERS) -> list[tuple[str, str]]:
    """What was found, with neighbouring text joined."""
    scan = Scan(*markers)
    found = [pair for part in parts for pair in scan.feed(part)] + [(scan.finish(), "")]
    joined: list[tuple[str, str]] = []
    gathered = ""
    for text, marker in found:
        gathered += text
        if marker:
            joined.append((gathered, marker))
            gathered = ""
    return [*joined, (gathered, "")]


@given(text=st.text(alphabet="<a>/xyz ", max_size=60), cuts=CUTS)
def test_a_cut_anywhere_finds_the_same_markers(text: str, cuts: list[int]) -> None:
    assert scanned(pieces(text, cuts)) == scanned([text])


@given(text=st.text(alphabet="<a>/xyz ", max_size=60))
def test_text_and_markers_together_are_the_input(text: str) -> None:
    assert "".join(before + marker for before, marker in scanned(list(text))) == text


def test_text_that_cannot_become_a_marker_is_not_held_back() -> None:
    scan = Scan("</think>")
    assert scan.feed("hello < world <") == [("hello < world ", "")]
    assert scan.feed("/thin") == []
    assert scan.feed("gs") == [("</things", "")]
    assert scan.finish() == ""


def test_the_marker_that_begins_first_counts_even_if_it_ends_later() -> None:
    scan = Scan("abcX", "c")
    assert scan.feed("abc") == []
    assert scan.feed("X") == [("", "abcX")]
    assert scan.feed("-abc") == [("-", "")]
    assert scan.feed("-") == [("ab", "c"), ("-", "")]


@pytest.mark.parametrize("markers", [("<a", "<a>"), ("", "x")])
def test_ambiguous_markers_are_refused(markers: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="ambiguous"):
        Scan(*markers)


@pytest.mark.parametrize("text", ["<" * 100_000, "<a>" * 33_000, "</a" * 33_000, "xyx" * 33_000, "<a></a>xyxz" * 9_000])
@pytest.mark.parametrize("size", [1, 17, 200_000])
def test_text_made_to_be_slow_is_scanned_in_linear_time(text: str, size: int) -> None:
    scan = Scan(*MARKERS)
    begun = time.process_time()
    for at in range(0, len(text) // 5 if size == 1 else len(text), size):
        scan.feed(text[at : at + size])
    assert time.process_time() - begun < 0.5  # by quadratic means it takes minutes
