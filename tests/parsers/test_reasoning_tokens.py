"""Reasoning tokens are counted if raw output comes with token ids."""

from antiphon.core.prompt import Chunk, TokenCounts
from antiphon.core.usage import set_reasoning_tokens
from antiphon.parsers.base import ParserOptions
from antiphon.parsers.raw import RawParser
from tests.parsers.joined_deltas import NO_PROMPT

FRAGMENTS = ["<think>", "Let", " us", " see", ".", "</think>", "Good", " day", "."]


def count_reasoning_tokens(*chunks: Chunk) -> int:
    parser = RawParser(NO_PROMPT, ParserOptions(reasoning="think"))
    for chunk in chunks:
        parser.feed(chunk)
    parser.finish()
    return parser.reasoning_tokens


def test_tokens_of_separate_chunks_are_counted_exactly() -> None:
    assert count_reasoning_tokens(*[Chunk(text=fragment, tokens=(7,)) for fragment in FRAGMENTS]) == 4


def test_tokens_of_one_chunk_are_counted_by_the_length_of_the_text() -> None:
    chunk = Chunk(text="".join(FRAGMENTS), tokens=(7,) * len(FRAGMENTS))
    assert count_reasoning_tokens(chunk) == round(9 * len("Let us see.") / len("".join(FRAGMENTS)))


def test_without_token_ids_the_count_is_zero() -> None:
    assert count_reasoning_tokens(*[Chunk(text=fragment) for fragment in FRAGMENTS]) == 0


def test_the_parser_count_replaces_that_of_the_engine_up_to_all_output_tokens() -> None:
    counts = TokenCounts(input_tokens=3, output_tokens=9, reasoning_tokens=1)
    assert set_reasoning_tokens(counts, 4).reasoning_tokens == 4
    assert set_reasoning_tokens(counts, 40).reasoning_tokens == 9
    assert set_reasoning_tokens(counts, 0) is counts
