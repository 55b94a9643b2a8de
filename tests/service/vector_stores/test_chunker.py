"""Chunks: their tokens are bounded exactly, they overlap, and together they are the whole text."""

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.service.vector_stores.chunker import CountTokens, find_cut, split_text, split_windows

pytestmark = pytest.mark.anyio
PROSE = "".join(
    [
        f"Sentence number {number} has a few words. It ends here!{' ' if number % 7 else chr(10) * 2}"
        for number in range(400)
    ]
)


def count_words(text: str) -> int:
    return len(re.findall(r"\w+|[^\w\s]", text))


def counting(calls: list[str]) -> CountTokens:
    async def count(text: str) -> int:
        calls.append(text)
        return count_words(text)

    return count


async def split(text: str, max_tokens: int, overlap: int, calls: list[str] | None = None) -> list[str]:
    return [chunk async for chunk in split_text(text, max_tokens, overlap, counting([] if calls is None else calls))]


@pytest.mark.parametrize(("max_tokens", "overlap"), [(100, 50), (100, 0), (800, 400), (4096, 1000)])
async def test_no_chunk_has_more_tokens_than_allowed_and_most_are_almost_full(max_tokens: int, overlap: int) -> None:
    chunks = await split(PROSE, max_tokens, overlap)
    sizes = [count_words(chunk) for chunk in chunks]
    assert max(sizes) <= max_tokens
    assert all(size >= max_tokens * 0.7 for size in sizes[:-1])


async def test_chunks_are_parts_of_the_text_in_order_and_leave_nothing_out() -> None:
    covered = 0
    for chunk in await split(PROSE, 100, 50):
        start = PROSE.index(chunk, max(0, covered - len(chunk)))
        assert start <= covered
        covered = start + len(chunk)
    assert covered == len(PROSE)


async def test_adjacent_chunks_overlap_by_about_the_requested_tokens() -> None:
    for one, other in pairwise(await split(PROSE, 100, 50)):
        shared = max(length for length in range(1, len(one) + 1) if other.startswith(one[-length:]))
        assert 25 <= count_words(one[-shared:]) <= 55


async def test_without_overlap_the_chunks_are_the_text() -> None:
    assert "".join(await split(PROSE, 100, 0)) == PROSE


async def test_chunks_end_at_paragraphs_before_sentences_and_at_sentences_before_words() -> None:
    paragraphs = "Short words here. " * 10 + "The end.\n\n" + "More words. " * 40
    assert (await split(paragraphs, 50, 0))[0].endswith("The end.\n\n")
    assert all(chunk.rstrip().endswith((".", "!")) for chunk in await split(PROSE, 100, 50))
    words = "word " * 300
    assert {*" ".join(await split(words, 100, 50)).split()} == {"word"}


async def test_a_word_that_is_longer_than_a_chunk_is_cut() -> None:
    chunks = [chunk async for chunk in split_text("x" * 1000, 100, 50, _count_characters)]
    assert [len(chunk) > 90 for chunk in chunks[:-1]] == [True] * (len(chunks) - 1)
    assert 1000 <= sum(map(len, chunks)) <= 2000


async def test_a_text_of_white_space_has_no_chunks() -> None:
    assert await split("", 100, 50) == await split(" \n" * 500, 100, 50) == []


async def test_tokens_are_counted_about_twice_for_each_chunk() -> None:
    calls: list[str] = []
    chunks = await split(PROSE, 100, 50, calls)
    assert len(calls) <= 2.2 * len(chunks)


async def test_windows_are_the_text_in_parts_of_similar_length() -> None:
    windows = await split_windows(PROSE[:6000], 300, counting([]))
    sizes = [count_words(window) for window in windows]
    assert "".join(windows) == PROSE[:6000]
    assert max(sizes) <= 300
    assert min(sizes) > 0.6 * max(sizes)
    assert await split_windows("short", 300, counting([])) == ["short"]


def test_a_cut_without_any_end_is_at_the_limit() -> None:
    assert find_cut("x" * 50, 0, 40) == 40
    assert find_cut("これは文です。" * 10, 0, 40) == 35  # the last full stop before it


@given(st.text(alphabet="ab .\n日。💥", max_size=600), st.integers(1, 40), st.integers(0, 20))
async def test_any_text_is_split_within_the_bound(text: str, max_tokens: int, overlap: int) -> None:
    chunks = [chunk async for chunk in split_text(text, max_tokens, min(overlap, max_tokens // 2), _count_characters)]
    assert all(len(chunk) <= max_tokens for chunk in chunks)
    assert "".join("".join(chunks).split()) or not text.strip()
    assert {*text.split()} == set() or {*"".join(chunks)} >= {*"".join(text.split())}


async def _count_characters(text: str) -> int:
    return len(text)
