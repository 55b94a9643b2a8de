"""Cutting at stop strings gives the same text wherever the input is split."""

from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.stop_strings import StopStringCutter


@given(
    text=st.text("abc", max_size=30), stops=st.lists(st.text("abc", min_size=1, max_size=4), min_size=1), cuts=st.data()
)
def test_an_answer_ends_before_its_first_stop_string(text: str, stops: list[str], cuts: st.DataObject) -> None:
    cut, output, remaining = StopStringCutter(stops), "", text
    while remaining:
        size = cuts.draw(st.integers(1, len(remaining)))
        output += cut.feed(remaining[:size])
        remaining = remaining[size:]
    ends = [(at + len(stop), at) for stop in stops if (at := text.find(stop)) >= 0]
    assert cut.stopped is bool(ends)
    assert output + cut.finish() == (text[: min(ends)[1]] if ends else text)


def test_only_a_possible_stop_string_prefix_is_held_back() -> None:
    cut = StopStringCutter(["END"])
    assert [cut.feed(piece) for piece in ("one E", "N", "x E", "ND")] == ["one ", "", "ENx ", ""]
    assert cut.finish() == ""


def test_of_two_stop_strings_the_one_that_ends_first_wins() -> None:
    cut = StopStringCutter(["one two three", "two"])
    assert cut.feed("say one two three") == "say one "
    assert cut.stop == "two"
