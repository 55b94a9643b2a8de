"""Cutting at a stop string: the same wherever the text is cut into pieces."""

from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.stop_strings import StopCut


@given(
    text=st.text("abc", max_size=30), stops=st.lists(st.text("abc", min_size=1, max_size=4), min_size=1), cuts=st.data()
)
def test_an_answer_ends_before_its_first_stop_string(text: str, stops: list[str], cuts: st.DataObject) -> None:
    cut, given, rest = StopCut(stops), "", text
    while rest:
        size = cuts.draw(st.integers(1, len(rest)))
        given += cut.feed(rest[:size])
        rest = rest[size:]
    ends = [(at + len(stop), at) for stop in stops if (at := text.find(stop)) >= 0]
    assert cut.cut is bool(ends)
    assert given + cut.finish() == (text[: min(ends)[1]] if ends else text)


def test_only_what_may_become_a_stop_string_is_held_back() -> None:
    cut = StopCut(["END"])
    assert [cut.feed(piece) for piece in ("one E", "N", "x E", "ND")] == ["one ", "", "ENx ", ""]
    assert cut.finish() == ""
