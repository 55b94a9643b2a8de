"""Received data is counted: its bytes, and the pieces of its JSON."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.egress.mcp_transport import JsonMeter, WireNotes

VALUES = st.recursive(
    st.none() | st.integers() | st.text(alphabet='ab\\"[]{},:\n'),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(alphabet='k\\",:{'), inner),
)


def _count_pieces(value: Any) -> int:
    match value:
        case list():
            return 1 + max(0, len(value) - 1) + sum(map(_count_pieces, value))
        case dict():
            return 1 + max(0, len(value) - 1) + len(value) + sum(map(_count_pieces, value.values()))
        case _:
            return 0


@given(VALUES, st.lists(st.integers(0, 200)))
def test_pieces_outside_of_strings_are_counted_at_every_cut(value: Any, cuts: list[int]) -> None:
    body = json.dumps(value).encode()
    meter = JsonMeter(1 << 20, 1 << 20)
    edges = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    for begin, end in pairwise(edges):
        assert meter.add(body[begin:end]) == ""
    assert meter._pieces == _count_pieces(value)
    assert meter.received == len(body)


def test_an_unclosed_quote_hides_nothing_after_its_line() -> None:
    meter = JsonMeter(1 << 20, 10)
    assert meter.add(b': a comment with a "\ndata: [[') == ""
    assert meter.add(b"[[[[[[[[[") == "sent JSON that is made of too many pieces"


@pytest.mark.parametrize("size", [10, 1000])
def test_the_number_of_bytes_is_limited(size: int) -> None:
    assert JsonMeter(size, 10).add(b"a" * size) == ""
    assert JsonMeter(size, 10).add(b"a" * (size + 1)) == f"sent more than the {size:,} bytes that are allowed"


def test_the_number_of_pieces_is_limited() -> None:
    meter = JsonMeter(1 << 20, 10)
    assert meter.add(b"[" * 10) == ""
    assert meter.add(b"[") == "sent JSON that is made of too many pieces"


@pytest.mark.anyio
async def test_the_first_fault_wakes_the_caller_and_stays() -> None:
    notes = WireNotes(10, 10)
    assert not notes.failed.done()
    notes.fail("closed the connection", is_sentence=True)
    assert notes.failed.done()
    notes.fail("sent too much")
    assert (notes.fault, notes.is_sentence) == ("closed the connection", True)
