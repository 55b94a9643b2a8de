"""Tokens to text while they are generated, with a handmade vocabulary."""

from collections.abc import Sequence

import pytest

from antiphon.engines.openvino.token_text import SAMPLE, TokenTable

WORDS = {0: b"<|end|>", 1: b"Hello", 2: b" w", 3: "ö".encode()[:1], 4: "ö".encode()[1:], 5: b"rld", 6: SAMPLE.encode()}
VOCABULARY = {text: token for token, text in WORDS.items()}


def make_table(joins: bool) -> TokenTable:
    """`joins`: the bytes of tokens join to the text; otherwise they are decoded together."""

    def decode(tokens: Sequence[int]) -> str:
        return b"".join(WORDS[token] for token in tokens).decode("utf-8", "replace")

    return TokenTable(VOCABULARY, 7, {0}, lambda text: [6] if joins else [1], decode)


@pytest.mark.shows("C.29")
@pytest.mark.parametrize("joins", [True, False])
def test_a_character_is_held_back_until_it_is_complete(joins: bool) -> None:
    decoder = make_table(joins).make_decoder(())
    assert [decoder.feed([token]) for token in (1, 2, 3, 4, 5)] == ["Hello", " w", "", "ö", "rld"]
    assert decoder.finish() == ""


@pytest.mark.parametrize("joins", [True, False])
def test_an_incomplete_character_at_the_end_is_replaced(joins: bool) -> None:
    decoder = make_table(joins).make_decoder(())
    assert decoder.feed([1, 3]) + decoder.finish() == "Hello\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize("joins", [True, False])
def test_control_tokens_are_hidden_unless_they_are_requested(joins: bool) -> None:
    assert make_table(joins).make_decoder(()).feed([1, 0]) == "Hello"
    assert make_table(joins).make_decoder([0]).feed([1, 0]) == "Hello<|end|>"


@pytest.mark.parametrize("joins", [True, False])
def test_a_long_answer_is_decoded_completely(joins: bool) -> None:
    decoder = make_table(joins).make_decoder(())
    assert "".join([decoder.feed([1]) for _ in range(500)]) == "Hello" * 500


def test_tokens_outside_of_the_vocabulary_have_no_text() -> None:
    assert make_table(joins=True).make_decoder(()).feed([99, 1]) == "Hello"
