"""A text is a sentence of a Lark grammar or it is not, in bounded time."""

import pytest

from antiphon.protocol.schemas.grammars import SECONDS, knows_lark, ungrammatical, unreadable
from tests.support.cpu import cpu_time

pytestmark = pytest.mark.skipif(not knows_lark(), reason="llguidance is not installed")
SUM = 'start: NUMBER ("+" NUMBER)*\nNUMBER: /[0-9]+/'


@pytest.mark.shows("D.14")
@pytest.mark.parametrize("text", ["1", "1+22+3", "0" * 500])
def test_a_sentence_is_one(text: str) -> None:
    assert ungrammatical(SUM, text) == ""


@pytest.mark.shows("D.14")
@pytest.mark.parametrize(("text", "word"), [("1+", "ends"), ("1+x", "'x'"), ("", "ends"), ("é", "é")])
def test_another_text_is_none_and_it_is_said_where(text: str, word: str) -> None:
    assert word in ungrammatical(SUM, text)


def test_what_is_no_grammar_is_named() -> None:
    assert "nowhere" in unreadable("start: nowhere")
    assert unreadable(SUM) == ""


def test_a_grammar_made_to_take_forever_does_not() -> None:
    with cpu_time() as spent:
        assert "too long" in ungrammatical('start: sum\nsum: /[0-9]+/ ("+" sum)?', "1+" * 8000 + "1")
    assert spent.seconds < 3 * SECONDS
