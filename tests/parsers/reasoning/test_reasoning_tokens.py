"""Tokens of thoughts are counted where raw output comes with the numbers of its tokens."""

from antiphon.core.prompt import Chunk, Counts
from antiphon.core.usage import counted
from antiphon.parsers.base import Reading
from antiphon.parsers.raw import RawParser
from tests.parsers.joined_deltas import NO_PROMPT

SAID = ["<think>", "Let", " us", " see", ".", "</think>", "Good", " day", "."]


def reasoning_tokens(*chunks: Chunk) -> int:
    parser = RawParser(NO_PROMPT, Reading(thoughts="think"))
    for chunk in chunks:
        parser.feed(chunk)
    parser.finish()
    return parser.reasoning_tokens


def test_one_by_one() -> None:
    assert reasoning_tokens(*[Chunk(text=word, tokens=(7,)) for word in SAID]) == 4


def test_all_at_once_they_are_counted_by_their_length() -> None:
    whole = Chunk(text="".join(SAID), tokens=(7,) * len(SAID))
    assert reasoning_tokens(whole) == round(9 * len("Let us see.") / len("".join(SAID)))


def test_without_numbers_nothing_is_known() -> None:
    assert reasoning_tokens(*[Chunk(text=word) for word in SAID]) == 0


def test_what_was_counted_here_comes_before_what_the_engine_says_and_is_never_more_than_all() -> None:
    told = Counts(input_tokens=3, output_tokens=9, reasoning_tokens=1)
    assert counted(told, 4).reasoning_tokens == 4
    assert counted(told, 40).reasoning_tokens == 9
    assert counted(told, 0) is told
