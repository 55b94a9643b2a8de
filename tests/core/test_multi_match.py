"""Matching of many strings at once, at any position and with any overlap, compared with a naive search."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.multi_match import MultiStringMatcher, remove_gaps

STRINGS = ("<|a|>", "<|ab|>", "]~b]", "]~", "<a>", "a", "ab", ".*", "<|a|")
MATCHER = MultiStringMatcher(STRINGS)
PIECES = st.lists(st.sampled_from([*STRINGS, "<", "|", ">", "]", "~", "b", "x", "\n"])).map("".join)


def find_naively(text: str) -> set[int]:
    return {at for at in range(len(text)) if text.startswith(STRINGS, at)}


@given(text=PIECES)
def test_exactly_the_starting_positions_are_found(text: str) -> None:
    assert set(MATCHER.find_starts(text)) == find_naively(text)
    assert MATCHER.has_match(text) is bool(find_naively(text))


@given(text=PIECES)
def test_gaps_remove_every_match_and_lose_no_character(text: str) -> None:
    longer = MultiStringMatcher([one for one in STRINGS if len(one) > 1])
    broken = longer.insert_gaps(text)
    assert not longer.has_match(broken)
    assert broken.replace("\u200b", "") == text


def test_a_text_without_matches_is_returned_unchanged() -> None:
    text = "nothing".upper()
    assert MATCHER.insert_gaps(text) is text


def test_overlapping_matches_all_get_gaps() -> None:
    assert MultiStringMatcher(["]~b]"]).insert_gaps("]~b]~b]") == "]\u200b~b]\u200b~b]"


@pytest.mark.parametrize(
    ("text", "expected"),
    [("a\u200bb", "a\u200bb"), ("\u200bb", "\u200bb"), ("<\u200bb", "<b"), ("<\u200b\u200bb", "<b")],
)
def test_gaps_are_removed_only_where_they_are_inserted(text: str, expected: str) -> None:
    assert remove_gaps(text) == expected


def test_the_first_character_of_a_match_can_be_replaced() -> None:
    assert (
        MultiStringMatcher(["<x>", "</x>"]).replace_first_chars("a<x>b</x><y>", "\\u003c") == "a\\u003cx>b\\u003c/x><y>"
    )


@pytest.mark.parametrize("strings", [(), ("",)])
def test_an_empty_set_of_strings_matches_nothing(strings: tuple[str, ...]) -> None:
    assert not MultiStringMatcher(strings).has_match("abc")
    assert list(MultiStringMatcher(strings).find_starts("abc")) == []


def test_a_string_is_found_across_window_boundaries() -> None:
    matcher = MultiStringMatcher(["<|im_start|>"])
    for before in range(32 * 1024 - 14, 32 * 1024 + 2):
        assert list(matcher.find_starts("a" * before + "<|im_start|>")) == [before]
