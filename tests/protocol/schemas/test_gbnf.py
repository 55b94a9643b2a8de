"""GBNF grammars are vetted before compilation: valid ones pass, invalid and adversarial ones are rejected quickly."""

import contextlib

import pytest

from antiphon.errors import InvalidValue
from antiphon.limits import Limits
from antiphon.protocol.schemas.gbnf import vet_gbnf
from tests.support.cpu import cpu_timer

VALID = [
    'root ::= "a"',
    'root ::= "yes" | "no"\n',
    '# a comment\nroot ::= greeting " " name{1,3} # another\ngreeting ::= "hi" | "\\"hey\\""\nname ::= [A-Z] | .',
    'root ::= [^\\]\\n]* ("a" | [0-9]{2,}) item?\nitem ::= "x" root',
    'root ::= list\nlist ::= "(" (item ("," item)*)? ")"\nitem ::= [a-z]+ | list',
    'root ::= ""\nunused-rule ::= root',
    'root ::=\n  "a" |\n  "b"',
]
INVALID = [
    "",
    "   ",
    '"a"',
    'other ::= "a"',
    "root ::= missing",
    'root ::= "a',
    "root ::= [a",
    'root ::= ("a"',
    'root ::= "a")',
    'root ::= "a" ::= "b"',
    'root ::= "a"\nroot ::= "b"',
    "root ::= *",
    'root ::= "a"{1001}',
    'root ::= "a"{99999999}',
    'root ::= ((("a"{100}){100}){100})',
    "root ::= root",
    'root ::= root "a" | "a"',
    'root ::= a "x"\na ::= b\nb ::= "y"? root',
    'root ::= ("a"? root)',
    'root ::= empty root\nempty ::= "" | "x"*',
    "root ::= " + "(" * 40 + '"a"' + ")" * 40,
    "root ::= " + '"a" ' * 6000,
    'root ::= "' + "a" * 300_000 + '"',
    "root ::= $",
    'root ::= "a"\n::= "b"',
]


@pytest.mark.parametrize("grammar", VALID)
def test_a_valid_grammar_passes(grammar: str) -> None:
    vet_gbnf(grammar, "guided_grammar", Limits())


@pytest.mark.parametrize("grammar", INVALID, ids=lambda grammar: repr(grammar[:30]))
def test_an_invalid_grammar_is_rejected_with_its_parameter_name(grammar: str) -> None:
    with pytest.raises(InvalidValue) as raised:
        vet_gbnf(grammar, "guided_grammar", Limits())
    assert raised.value.param == "guided_grammar"
    assert len(raised.value.message) < 300


@pytest.mark.parametrize(
    "grammar",
    [
        "\n".join([*(f"r{n} ::= r{n + 1}" for n in range(1200)), 'r1200 ::= ""', "root ::= r0"]),
        "\n".join(
            [*(f"r{n} ::= r{n - 1} | r{n + 1}" for n in range(1, 900)), 'r0 ::= ""', 'r900 ::= ""', "root ::= r1"]
        ),
        "root ::= " + "(" * 30 + '"a"*' * 1000 + ")" * 30,
        "root ::= [" + "\\" * 200_000,
        'root ::= "' + "\\" * 200_001,
        "root ::= " + "a" * 200_000,
        " " * 250_000,
        "root ::= " + "{" * 100_000,
    ],
    ids=["chain", "ladder", "stars", "set", "text", "name", "blanks", "braces"],
)
def test_adversarial_grammars_are_vetted_quickly(grammar: str) -> None:
    with cpu_timer() as spent, contextlib.suppress(InvalidValue):
        vet_gbnf(grammar, "guided_grammar", Limits())
    assert spent.seconds < 0.25
