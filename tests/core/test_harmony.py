"""The gpt-oss vocabulary: available offline, never encodes text as control tokens, and encodes in linear time."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.harmony import (
    END_OF_TEXT,
    FIRST_CONTROL,
    MAX_PIECE_CHARS,
    TOKEN_TEXTS,
    HarmonyTokenDecoder,
    HarmonyVocabulary,
    _split_text,
    load_vocabulary,
)
from antiphon.errors import StartupError
from tests.support.cpu import cpu_timer


@given(text=st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=2000))
def test_text_survives_encoding_and_decoding(text: str) -> None:
    vocab = load_vocabulary()
    pieces = [vocab.decode_token(token) for token in vocab.encode(text)]
    assert b"".join([piece.encode() if isinstance(piece, str) else piece for piece in pieces]).decode() == text


@given(text=st.text(alphabet="aé中🏻\U00013000", max_size=50))
def test_characters_that_are_split_over_tokens_come_with_the_last_one(text: str) -> None:
    decoder = HarmonyTokenDecoder()
    assert "".join([decoder.decode(token) for token in load_vocabulary().encode(text)]) == text
    assert not decoder.is_partial


def test_an_incomplete_character_is_replaced_at_the_end() -> None:
    decoder = HarmonyTokenDecoder()
    first, *_ = load_vocabulary().encode("\U00013000")
    assert (decoder.decode(first), decoder.is_partial) == ("", True)
    assert (decoder.finish(), decoder.is_partial) == ("\ufffd", False)


def test_the_last_token_of_a_character_takes_the_text_of_the_engine() -> None:
    """llama.cpp reports only the last token of a character."""
    *_, last = load_vocabulary().encode("\U00013000")
    assert HarmonyTokenDecoder().decode(last, "\U00013000") == "\U00013000"


@pytest.mark.parametrize("name", [*TOKEN_TEXTS.values(), "<|endoftext|>", "<|reserved_200000|>"])
def test_the_text_of_a_control_token_is_encoded_as_plain_text(name: str) -> None:
    assert all(token < FIRST_CONTROL for token in load_vocabulary().encode(f"a{name} {name}b" * 50))


def test_control_tokens_and_invalid_numbers_decode_to_empty_text() -> None:
    assert {
        load_vocabulary().decode_token(token)
        for token in (*TOKEN_TEXTS, END_OF_TEXT, FIRST_CONTROL, 201_087, 10**9, 2**80, -1)
    } == {""}


def test_a_lone_surrogate_becomes_the_replacement_character() -> None:
    vocab = load_vocabulary()
    assert "".join([str(vocab.decode_token(token)) for token in vocab.encode("a\ud800b")]) == "a\ufffdb"


@pytest.mark.parametrize("run", ["a", "ab", "=", " ", "\n", "中", "🏻", "a\u0301", "1", "Ab"])
def test_long_runs_take_linear_time(run: str) -> None:
    with cpu_timer() as spent:
        assert load_vocabulary().encode(run * 20_000)
    assert spent.seconds < 3  # openai_harmony alone takes up to a minute


def test_prose_is_encoded_as_by_the_openai_harmony_package() -> None:
    text = "The quick brown fox jumps over the lazy dog, 42 times.\n" * 2000
    import openai_harmony  # type: ignore[import-untyped]

    vocab = HarmonyVocabulary(openai_harmony)
    expected = openai_harmony.load_harmony_encoding("HarmonyGptOss").encode(text)
    assert vocab.encode(text) == expected


def test_a_missing_package_is_reported_with_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openai_harmony", None)
    with pytest.raises(StartupError, match=r"pip install 'antiphon\[harmony\]'"):
        load_vocabulary.__wrapped__()


def test_a_long_text_is_split_between_words_and_a_long_word_anywhere() -> None:
    words, word = "word " * MAX_PIECE_CHARS, "x" * (2 * MAX_PIECE_CHARS + 1)
    for text in (words, word, f"{words}{word}"):
        pieces = [*_split_text(text)]
        assert "".join(pieces) == text
        assert max(map(len, pieces)) <= MAX_PIECE_CHARS
    assert {piece[0] for piece in [*_split_text(words)][1:]} == {" "}
