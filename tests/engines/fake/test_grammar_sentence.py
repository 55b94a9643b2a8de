"""Short sentences of Lark grammars, for the input of custom tools, and of regular expressions.

Covers `engines/fake/schema_instance.py`.
"""

import re
from typing import Any

import pytest

from antiphon.engines.fake.schema_instance import find_grammar_input, find_pattern_match
from antiphon.errors import InvalidValue
from antiphon.protocol.schemas.grammars import has_lark

needs_lark = pytest.mark.skipif(not has_lark(), reason="llguidance is not installed")


def make_parameters(description: str) -> dict[str, Any]:
    return {"type": "object", "properties": {"input": {"type": "string", "description": description}}}


@needs_lark
@pytest.mark.parametrize(
    ("grammar", "sentence"),
    [
        ('start: "get" " " NAME\nNAME: /[a-z]+/', "get a"),
        ('start: NUMBER ("+" NUMBER)+\nNUMBER: /[0-9]+/', "0+0"),
        ('start: "*** Begin" "\\n" line+ "*** End"\nline: "+" /[^\\n]*/ "\\n"', "*** Begin\n+\n*** End"),
    ],
)
def test_the_input_is_a_short_sentence_of_the_grammar(grammar: str, sentence: str) -> None:
    parameters = make_parameters(f"A command. It must match this Lark grammar:\n{grammar}")
    assert find_grammar_input(parameters) == sentence


@pytest.mark.parametrize("parameters", [{}, {"properties": {"input": True}}, make_parameters("Any text.")])
def test_without_a_grammar_there_is_no_sentence(parameters: dict[str, Any]) -> None:
    assert find_grammar_input(parameters) is None


@needs_lark
@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("[a-c]{3}|zzz+", "zzz"),
        ("^(?:SELECT \\w+;)$", "SELECT a;"),
        ("[0-9]{3}-[0-9]{2}", "000-00"),
        ("^\\+?[1-9]\\d{1,14}$", "10"),
        ("a/b\\/\\\\/é", "a/b/\\/é"),
        ("^[\\w.-]+@[\\w-]+\\.\\w{2,}$", "a@a.aa"),
        ("x\ny?", "x\n"),
    ],
)
def test_a_short_match_of_a_regular_expression_is_found(pattern: str, text: str) -> None:
    assert find_pattern_match(pattern) == text
    assert re.fullmatch(pattern, text)


@needs_lark
@pytest.mark.parametrize("pattern", ["(", "(?=a)b", "(a)\\1"])
def test_a_regular_expression_without_a_match_is_rejected_by_name(pattern: str) -> None:
    with pytest.raises(InvalidValue, match="regular expression") as raised:
        find_pattern_match(pattern)
    assert repr(pattern) in raised.value.message
