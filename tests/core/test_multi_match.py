"""Many strings are found at once, wherever they begin and however they overlap."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.multi_match import Occurrences

STRINGS = ("<|a|>", "<|ab|>", "]~b]", "]~", "<a>", "a", "ab", ".*", "<|a|")
FOUND = Occurrences(STRINGS)
PIECES = st.lists(st.sampled_from([*STRINGS, "<", "|", ">", "]", "~", "b", "x", "\n"])).map("".join)


def naively(text: str) -> set[int]:
    return {at for at in range(len(text)) if text.startswith(STRINGS, at)}


@given(text=PIECES)
def test_every_place_is_found_and_no_other(text: str) -> None:
    assert set(FOUND.places(text)) == naively(text)
    assert FOUND.any_in(text) is bool(naively(text))


@given(text=PIECES)
def test_what_is_broken_has_none_in_it_and_all_its_characters(text: str) -> None:
    longer = Occurrences([one for one in STRINGS if len(one) > 1])
    broken = longer.broken(text, "\u200b")
    assert not longer.any_in(broken)
    assert broken.replace("\u200b", "") == text


def test_a_text_without_any_is_given_back_as_it_is() -> None:
    text = "nothing".upper()
    assert FOUND.broken(text, "-") is text


def test_those_that_overlap_are_all_broken() -> None:
    assert Occurrences(["]~b]"]).broken("]~b]~b]", "-") == "]-~b]-~b]"


def test_the_first_character_can_be_written_otherwise() -> None:
    assert Occurrences(["<x>", "</x>"]).changed("a<x>b</x><y>", "\\u003c") == "a\\u003cx>b\\u003c/x><y>"


@pytest.mark.parametrize("strings", [(), ("",)])
def test_nothing_is_found_where_nothing_is_looked_for(strings: tuple[str, ...]) -> None:
    assert not Occurrences(strings).any_in("abc")
    assert list(Occurrences(strings).places("abc")) == []


def test_a_string_is_found_wherever_a_long_text_is_cut_to_be_searched() -> None:
    found = Occurrences(["<|im_start|>"])
    for before in range(32 * 1024 - 14, 32 * 1024 + 2):
        assert list(found.places("a" * before + "<|im_start|>")) == [before]
