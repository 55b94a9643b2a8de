"""Contract suite of parsers: runs against every parser."""

from importlib import import_module
from pkgutil import iter_modules

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon import parsers
from antiphon.core.deltas import CallDone, CallStarted
from antiphon.core.prompt import CallPiece, Chunk
from antiphon.parsers.base import Parser
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


def list_parsers() -> list[type[Parser]]:
    """Return the public classes of all modules of the folder whose names end with Parser."""
    modules = [import_module(f"antiphon.parsers.{one.name}") for one in iter_modules(parsers.__path__)]
    found = {name: one for module in modules for name, one in vars(module).items() if isinstance(one, type)}
    return [one for name, one in found.items() if name.endswith("Parser") and name[0] != "_" and one is not Parser]


pytestmark = pytest.mark.parametrize("parser", list_parsers())


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
