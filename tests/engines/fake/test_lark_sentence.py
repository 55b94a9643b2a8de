"""Input of custom tools with a Lark grammar: a shortest sentence of the grammar in the description."""

from typing import Any

import pytest

from antiphon.engines.fake.lark_sentence import find_grammar_input
from antiphon.protocol.schemas.grammars import has_lark


def make_parameters(description: str) -> dict[str, Any]:
    return {"type": "object", "properties": {"input": {"type": "string", "description": description}}}


@pytest.mark.skipif(not has_lark(), reason="llguidance is not installed")
@pytest.mark.parametrize(
    ("grammar", "sentence"),
    [
        ('start: "get" " " NAME\nNAME: /[a-z]+/', "get a"),
        ('start: NUMBER ("+" NUMBER)+\nNUMBER: /[0-9]+/', "0+0"),
        ('start: "*** Begin" "\\n" line+ "*** End"\nline: "+" /[^\\n]*/ "\\n"', "*** Begin\n+\n*** End"),
    ],
)
def test_the_input_is_a_shortest_sentence_of_the_grammar(grammar: str, sentence: str) -> None:
    parameters = make_parameters(f"A command. It must match this Lark grammar:\n{grammar}")
    assert find_grammar_input(parameters) == sentence


@pytest.mark.parametrize("parameters", [{}, {"properties": {"input": True}}, make_parameters("Any text.")])
def test_without_a_grammar_there_is_no_sentence(parameters: dict[str, Any]) -> None:
    assert find_grammar_input(parameters) is None
