"""Contract suite of parsers: runs against every parser."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.deltas import CallDone, CallStarted
from antiphon.core.prompt import CallPiece, Chunk
from antiphon.parsers.base import Parser
from antiphon.parsers.chat import ChatParser
from antiphon.parsers.harmony import HarmonyParser
from antiphon.parsers.raw import RawParser
from antiphon.parsers.unescape import UnescapingChatParser, UnescapingRawParser
from tests.parsers.cuts import CUTS, split_at
from tests.parsers.joined_deltas import NO_PROMPT, join_deltas, make_open_prompt, run_parser
from tests.support.cpu import cpu_timer

# Markers of the supported model families and fragments of them, in any order.
MARKERS = ["<think>", "</think>", "<seed:think>", "[THINK]", "[/THINK]", "<tool_call>", "</tool_call>", "<|im_end|>"]
OUTPUTS = st.lists(st.sampled_from([*MARKERS, "<", "</", "[", "think", ">", "{", '"', " ", "\n", "word", "é"])).map(
    "".join
)
HOSTILE_OUTPUTS = [
    "<" * 100_000,
    "<think>" * 14_000,
    "</think" * 14_000,
    " " * 100_000,
    "[THINK]\n" * 12_000,
    "<think>" + " " * 100_000,
]

PARSERS = [ChatParser, HarmonyParser, RawParser, UnescapingChatParser, UnescapingRawParser]

pytestmark = pytest.mark.parametrize("parser", PARSERS)


@given(text=OUTPUTS, cuts=CUTS, in_reasoning=st.booleans())
@pytest.mark.shows("D.18")
def test_the_result_does_not_depend_on_chunk_boundaries(
    parser: type[Parser], text: str, cuts: list[int], in_reasoning: bool
) -> None:
    prompt = make_open_prompt("<think>") if in_reasoning else NO_PROMPT
    expected = join_deltas(run_parser(parser(prompt), [Chunk(text=text)]))
    assert join_deltas(run_parser(parser(prompt), [Chunk(text=part) for part in split_at(text, cuts)])) == expected


@given(text=OUTPUTS.filter(lambda text: not any(marker in text for marker in MARKERS)), cuts=CUTS)
def test_text_without_markers_is_unchanged(parser: type[Parser], text: str, cuts: list[int]) -> None:
    pairs = join_deltas(run_parser(parser(NO_PROMPT), [Chunk(text=part) for part in split_at(text, cuts)]))
    assert [pair for pair in pairs if pair[0] != "break"] == ([("text", text)] if text else [])


def test_finish_ends_every_call_and_a_second_finish_emits_nothing(parser: type[Parser]) -> None:
    instance = parser(NO_PROMPT)
    deltas = run_parser(instance, [Chunk(calls=(CallPiece(index=0, name="f", arguments='{"a'),)), Chunk(text="<thi")])
    started = {delta.key for delta in deltas if isinstance(delta, CallStarted)}
    assert {delta.key for delta in deltas if isinstance(delta, CallDone)} == started
    assert not instance.finish()


@pytest.mark.parametrize("text", HOSTILE_OUTPUTS, ids=lambda text: text[:9])
@pytest.mark.parametrize("size", [11, 200_000])
def test_hostile_output_is_parsed_in_linear_time(parser: type[Parser], text: str, size: int) -> None:
    instance = parser(NO_PROMPT)
    chunks = [Chunk(text=text[at : at + size]) for at in range(0, len(text), size)]
    with cpu_timer() as spent:
        run_parser(instance, chunks)
    assert spent.seconds < 0.5  # a quadratic parser would take minutes
