"""What every parser in the registry keeps: to register is to be tested."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.deltas import CallDone, CallStarted
from antiphon.core.prompt import CallPiece, Chunk
from antiphon.errors import StartupError
from antiphon.parsers.base import Parser
from antiphon.parsers.registry import PARSERS, load_parser
from tests.parsers.cuts import CUTS, pieces
from tests.parsers.joined_deltas import NO_PROMPT, everything, joined, opened
from tests.support.cpu import cpu_time

# Marks of the families we know and pieces of them, in any order.
MARKS = ["<think>", "</think>", "<seed:think>", "[THINK]", "[/THINK]", "<tool_call>", "</tool_call>", "<|im_end|>"]
SAID = st.lists(st.sampled_from([*MARKS, "<", "</", "[", "think", ">", "{", '"', " ", "\n", "word", "é"])).map("".join)
HOSTILE = [
    "<" * 100_000,
    "<think>" * 14_000,
    "</think" * 14_000,
    " " * 100_000,
    "[THINK]\n" * 12_000,
    "<think>" + " " * 100_000,
]

pytestmark = pytest.mark.parametrize("parser", [pytest.param(load_parser(name), id=name) for name in PARSERS])


@given(text=SAID, cuts=CUTS, begun=st.booleans())
@pytest.mark.shows("D.18")
def test_cutting_the_output_elsewhere_changes_nothing(
    parser: type[Parser], text: str, cuts: list[int], begun: bool
) -> None:
    prompt = opened("<think>") if begun else NO_PROMPT
    whole = joined(everything(parser(prompt), [Chunk(text=text)]))
    assert joined(everything(parser(prompt), [Chunk(text=part) for part in pieces(text, cuts)])) == whole


@given(text=SAID.filter(lambda text: not any(mark in text for mark in MARKS)), cuts=CUTS)
def test_text_without_marks_comes_out_whole(parser: type[Parser], text: str, cuts: list[int]) -> None:
    told = joined(everything(parser(NO_PROMPT), [Chunk(text=part) for part in pieces(text, cuts)]))
    assert [said for said in told if said[0] != "break"] == ([("text", text)] if text else [])


def test_finish_ends_every_call_and_a_second_finish_has_nothing_to_say(parser: type[Parser]) -> None:
    made = parser(NO_PROMPT)
    deltas = everything(made, [Chunk(calls=(CallPiece(index=0, name="f", arguments='{"a'),)), Chunk(text="<thi")])
    started = {delta.key for delta in deltas if isinstance(delta, CallStarted)}
    assert {delta.key for delta in deltas if isinstance(delta, CallDone)} == started
    assert not made.finish()


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: text[:9])
@pytest.mark.parametrize("size", [11, 200_000])
def test_a_hundred_kilobytes_made_to_be_slow_take_linear_time(parser: type[Parser], text: str, size: int) -> None:
    made = parser(NO_PROMPT)
    chunks = [Chunk(text=text[at : at + size]) for at in range(0, len(text), size)]
    with cpu_time() as spent:
        everything(made, chunks)
    assert spent.seconds < 0.5  # by quadratic means it takes minutes


def test_a_name_that_is_not_registered_is_answered_with_those_that_are(parser: type[Parser]) -> None:
    with pytest.raises(StartupError, match="chat"):
        load_parser(f"no-{parser.__name__}")
