"""The words of a query."""

import time

import pytest

from antiphon.service.vector_stores.search import extract_words


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("How do otters sleep?", ["otters", "sleep"]),
        ("to be or not to be", []),
        ("which of them must not be between these", []),
        ("the of and", []),
        ("", []),
        ('" OR * NEAR(x y) text:*', ["near", "x", "y", "text"]),
        ("snake_case e-mail O'Hara", ["snake", "case", "e", "mail", "o", "hara"]),
        ("Fox fox FOX", ["fox"]),
        ("Grüße 日本語 1.5", ["grüße", "日本語", "1", "5"]),
    ],
)
def test_words_are_letters_and_digits_without_stop_words(query: str, words: list[str]) -> None:
    assert extract_words(query) == words


def test_words_of_a_huge_query_are_bounded() -> None:
    started = time.process_time()
    assert len(extract_words(" ".join(f"w{number}" for number in range(1_000_000)))) == 64
    assert all(len(term) <= 256 for term in extract_words("x" * 10_000_000))
    assert time.process_time() - started < 5
