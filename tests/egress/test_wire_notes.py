"""What comes is counted: bytes, and the pieces that JSON is made of."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.egress.wire_notes import Measure

VALUES = st.recursive(
    st.none() | st.integers() | st.text(alphabet='ab\\"[]{},:\n'),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(alphabet='k\\",:{'), inner),
)


def _pieces(value: Any) -> int:
    match value:
        case list():
            return 1 + max(0, len(value) - 1) + sum(map(_pieces, value))
        case dict():
            return 1 + max(0, len(value) - 1) + len(value) + sum(map(_pieces, value.values()))
        case _:
            return 0


@given(VALUES, st.lists(st.integers(0, 200)))
def test_pieces_are_counted_outside_of_strings_wherever_it_is_cut(value: Any, cuts: list[int]) -> None:
    body = json.dumps(value).encode()
    measure = Measure(1 << 20, 1 << 20)
    edges = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    for begin, end in pairwise(edges):
        assert measure.take(body[begin:end]) == ""
    assert measure._pieces == _pieces(value)
    assert measure.came == len(body)


def test_a_quote_that_is_never_closed_hides_nothing_beyond_its_line() -> None:
    measure = Measure(1 << 20, 10)
    assert measure.take(b': a comment with a "\ndata: [[') == ""
    assert measure.take(b"[[[[[[[[[") == "sent JSON that is made of too many pieces"


@pytest.mark.parametrize("size", [10, 1000])
def test_bytes_are_counted(size: int) -> None:
    assert Measure(size, 10).take(b"a" * size) == ""
    assert Measure(size, 10).take(b"a" * (size + 1)) == f"sent more than the {size:,} bytes that are allowed"
