"""The words of texts and queries."""

import time

import pytest

from antiphon.stores.search_words import index_words, query_words


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
        ("Grüße 日本語 1.5", ["grusse", "日本", "本語", "1", "5"]),
        ("猫 ガラス", ["猫", "ガラ", "ラス"]),
    ],
)
def test_words_are_letters_and_digits_without_stop_words(query: str, words: list[str]) -> None:
    assert query_words(query) == words


def test_words_of_a_huge_query_are_bounded() -> None:
    started = time.process_time()
    assert len(query_words(" ".join(f"w{number}" for number in range(1_000_000)))) == 64
    assert all(len(term) <= 256 for term in query_words("x" * 10_000_000))
    assert time.process_time() - started < 5


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Grüße, ΣΊΣΥΦΟΣ, Ёлка", "grusse σισυφοσ елка"),
        ("東京都", "東 京 都 東京 京都"),
        ("Python入門3版", "python 入 門 入門 3 版"),
        ("ガラス", "ガ ラ ス ガラ ラス"),
        ("서울에서", "서 울 에 서 서울 울에 에서"),
        ("हिन्दी किताब", "हनद कतब"),
        ("ไทย", "ไ ท ย ไท ทย"),
        ("می\u200cشود كِتاب", "میشود كتاب"),
        ("exam\u00adple ﬁle ＡＢＣ", "example file abc"),
        ("a_b-c.d", "a b c d"),
        ("x" * 300, f"{'x' * 256} {'x' * 44}"),
    ],
)
def test_words_of_any_script_are_indexed_in_one_spelling(text: str, words: str) -> None:
    assert index_words(text) == words


@pytest.mark.parametrize("text", ["日本語の全文検索", "Größe 1.5", "서울에서", "ภาษาไทย", "हिन्दी"])
def test_a_text_is_indexed_by_all_words_that_a_query_for_it_has(text: str) -> None:
    assert {*query_words(text)} <= {*index_words(text).split()}
