"""Texts are matched against Lark grammars in bounded time.

Covers `protocol/schemas/lark.py`.
"""

import pytest

from antiphon.protocol.schemas.grammars import MAX_SECONDS, find_grammar_error, find_mismatch, has_lark
from tests.support.cpu import cpu_timer

pytestmark = pytest.mark.skipif(not has_lark(), reason="llguidance is not installed")
SUM = 'start: NUMBER ("+" NUMBER)*\nNUMBER: /[0-9]+/'


@pytest.mark.shows("D.14")
@pytest.mark.parametrize("text", ["1", "1+22+3", "0" * 500])
def test_a_matching_text_has_no_mismatch(text: str) -> None:
    assert find_mismatch(SUM, text) == ""


@pytest.mark.shows("D.14")
@pytest.mark.parametrize(("text", "fragment"), [("1+", "ends"), ("1+x", "'x'"), ("", "ends"), ("é", "é")])
def test_a_mismatch_names_the_offending_text(text: str, fragment: str) -> None:
    assert fragment in find_mismatch(SUM, text)


def test_an_undefined_rule_is_named_in_the_error() -> None:
    assert "nowhere" in find_grammar_error("start: nowhere")
    assert find_grammar_error(SUM) == ""


def test_a_slow_grammar_is_stopped_by_the_time_limit() -> None:
    with cpu_timer() as spent:
        assert "too long" in find_mismatch('start: sum\nsum: /[0-9]+/ ("+" sum)?', "1+" * 8000 + "1")
    assert spent.seconds < 3 * MAX_SECONDS
