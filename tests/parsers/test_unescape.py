"""What was broken up in a prompt is whole again in the answer, wherever the answer is cut; and is no mark."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.deltas import CallDelta, CallStarted, Text, Thought
from antiphon.core.prompt import CallPiece, Chunk
from antiphon.core.zero_width import BEFORE, GAP, without_gaps
from antiphon.parsers.base import Reading
from antiphon.parsers.unescape import UnbrokenChat, UnbrokenRaw
from antiphon.render.control_strings import CONTROL_STRINGS
from antiphon.render.control_token_escape import broken
from tests.parsers.joined_deltas import NO_PROMPT

TEXTS = st.lists(st.sampled_from([*sorted(CONTROL_STRINGS)[:40], "<", "[", "a", "\n"])).map("".join)


def test_every_control_string_begins_with_what_gaps_are_put_after() -> None:
    assert {text[0] for text in CONTROL_STRINGS} == BEFORE


@given(text=TEXTS, size=st.integers(1, 9))
def test_what_was_broken_up_is_whole_again(text: str, size: int) -> None:
    parser, said = UnbrokenChat(NO_PROMPT), broken(text)
    deltas = [delta for at in range(0, len(said), size) for delta in parser.feed(Chunk(text=said[at : at + size]))]
    assert "".join(delta.text for delta in deltas if isinstance(delta, Text)) == text


@pytest.mark.parametrize("text", [f"a{GAP}b", GAP, f"{GAP}<", f"a{GAP}{GAP}"])
def test_other_spaces_without_width_stay(text: str) -> None:
    assert without_gaps(text) == text


def test_thoughts_and_arguments_are_mended_too() -> None:
    parser = UnbrokenChat(NO_PROMPT)
    deltas = [
        *parser.feed(Chunk(thought=f"a <{GAP}s>")),
        *parser.feed(Chunk(calls=(CallPiece(index=0, name="f", arguments='{"a": "<'),))),
        *parser.feed(Chunk(calls=(CallPiece(index=0, arguments=f'{GAP}/s>"}}'),))),
        *parser.finish(),
    ]
    assert Thought("a <s>") in deltas
    assert "".join(delta.text for delta in deltas if isinstance(delta, CallDelta)) == '{"a": "</s>"}'


def test_what_is_whole_again_is_no_call() -> None:
    parser = UnbrokenRaw(NO_PROMPT, Reading(calls="hermes", tools={"f": {}}))
    said = f'I read <{GAP}tool_call>{{"name": "f", "arguments": {{}}}}<{GAP}/tool_call>.'
    deltas = [*parser.feed(Chunk(text=said)), *parser.finish()]
    assert not any(isinstance(delta, CallStarted) for delta in deltas)
    assert "".join(delta.text for delta in deltas if isinstance(delta, Text)) == said.replace(GAP, "")
