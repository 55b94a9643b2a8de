"""Gaps that were inserted into the control strings of a prompt are removed from the answer.

This holds at every chunk boundary, and the restored text is not parsed as a marker.

Covers `core/multi_match.py`.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.deltas import CallDelta, CallStarted, ReasoningDelta, Text
from antiphon.core.multi_match import GAP, GAP_PREDECESSORS, remove_gaps
from antiphon.core.prompt import CallPiece, Chunk
from antiphon.parsers.base import ParserOptions
from antiphon.parsers.unescape import UnescapingChatParser, UnescapingRawParser
from antiphon.render.control_token_escape import CONTROL_STRINGS, escape_text
from tests.parsers.joined_deltas import NO_PROMPT

TEXTS = st.lists(st.sampled_from([*sorted(CONTROL_STRINGS)[:40], "<", "[", "a", "\n"])).map("".join)


def test_every_control_string_starts_with_a_gap_predecessor() -> None:
    assert {text[0] for text in CONTROL_STRINGS} == GAP_PREDECESSORS


@given(text=TEXTS, size=st.integers(1, 9))
def test_gaps_are_removed_from_text(text: str, size: int) -> None:
    parser, escaped = UnescapingChatParser(NO_PROMPT), escape_text(text)
    deltas = [
        delta for at in range(0, len(escaped), size) for delta in parser.feed(Chunk(text=escaped[at : at + size]))
    ]
    assert "".join(delta.text for delta in deltas if isinstance(delta, Text)) == text


@pytest.mark.parametrize("text", [f"a{GAP}b", GAP, f"{GAP}<", f"a{GAP}{GAP}"])
def test_other_zero_width_spaces_are_preserved(text: str) -> None:
    assert remove_gaps(text) == text


def test_gaps_are_removed_from_reasoning_and_arguments() -> None:
    parser = UnescapingChatParser(NO_PROMPT)
    deltas = [
        *parser.feed(Chunk(reasoning=f"a <{GAP}s>")),
        *parser.feed(Chunk(calls=(CallPiece(index=0, name="f", arguments='{"a": "<'),))),
        *parser.feed(Chunk(calls=(CallPiece(index=0, arguments=f'{GAP}/s>"}}'),))),
        *parser.finish(),
    ]
    assert ReasoningDelta("a <s>") in deltas
    assert "".join(delta.text for delta in deltas if isinstance(delta, CallDelta)) == '{"a": "</s>"}'


def test_restored_text_is_not_parsed_as_a_call() -> None:
    parser = UnescapingRawParser(NO_PROMPT, ParserOptions(calls="hermes", tools={"f": {}}))
    text = f'I read <{GAP}tool_call>{{"name": "f", "arguments": {{}}}}<{GAP}/tool_call>.'
    deltas = [*parser.feed(Chunk(text=text)), *parser.finish()]
    assert not any(isinstance(delta, CallStarted) for delta in deltas)
    assert "".join(delta.text for delta in deltas if isinstance(delta, Text)) == text.replace(GAP, "")
