"""Gemma's calls: quotes that are marks, words without any, types by the schema, any cut."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.parsers.calls.gemma import FunctionGemmaCalls, Gemma4Calls, GemmaCalls
from tests.parsers.calls.parsed_calls import STRING, arguments, read, tool
from tests.parsers.cuts import CUTS, pieces

TOOLS = tool("f", a=STRING, n={"type": "integer"}, o={"type": "object"}, u={})
FAMILIES = [FunctionGemmaCalls, Gemma4Calls]


def said(family: type[GemmaCalls], call: str) -> str:
    """`~` stands for the family's quote."""
    body = call.replace("~", family.script.quotes[0])
    return family.frame.openings[0] + body + family.frame.closings[0]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("body", "value"),
    [
        ("", {}),
        ("a:~x, {y}: [z]~", {"a": "x, {y}: [z]"}),
        ("a:12,n:12,u:12", {"a": "12", "n": 12, "u": 12}),
        ("n:~12~,u:~12~", {"n": 12, "u": "12"}),
        ("a:10:30 in San Francisco,n:many", {"a": "10:30 in San Francisco", "n": "many"}),
        ('o:{k:[true,null,~a"b~,{}],~q q~:-1.5}', {"o": {"k": [True, None, 'a"b', {}], "q q": -1.5}}),
        (" ~a~ : ~x~ , n : 1 ", {"a": "x", "n": 1}),
    ],
)
@pytest.mark.shows("D.9")
def test_a_call_has_its_arguments(family: type[GemmaCalls], body: str, value: object) -> None:
    text = said(family, f"call:f{{{body}}}")
    assert arguments(family, text, TOOLS) == value
    ((_, told),) = read(family, text, TOOLS)
    assert json.loads(told) == value


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.shows("D.15")
def test_parallel_calls_have_their_text_around_them(family: type[GemmaCalls]) -> None:
    text = "Well. " + said(family, "call:f{a:~x~}") + said(family, "call:g{}") + "Done."
    assert read(family, [text], TOOLS) == [("", "Well. "), ("f", '{"a":"x"}'), ("g", "{}"), ("", "Done.")]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_call_that_ends_early_has_what_there_was_of_its_arguments(family: type[GemmaCalls]) -> None:
    text = said(family, "call:f{a:~hello~,o:{k:[1,~two~]}}")
    for length in range(text.index("hello") + 3, len(text)):
        ((_, told),) = read(family, [text[:length]], TOOLS)
        assert json.loads(told)["a"].startswith("hel"), text[:length]


@pytest.mark.parametrize("family", FAMILIES)
def test_marks_without_a_call_are_text(family: type[GemmaCalls]) -> None:
    for call in ("", "f{}", "call: me", "call:f", "call:f x{", "call"):
        text = said(family, call)
        assert read(family, [text], TOOLS) == [("", text)]
        assert read(family, text, TOOLS) == [("", text)]


@pytest.mark.parametrize("family", FAMILIES)
@given(body=st.text("an:,~{}[] x1<|", max_size=30), cuts=CUTS)
@pytest.mark.shows("D.18")
def test_a_cut_changes_nothing(family: type[GemmaCalls], body: str, cuts: list[int]) -> None:
    text = said(family, "call:f{a:" + body)
    whole = read(family, [text], TOOLS)
    assert read(family, pieces(text, cuts), TOOLS) == whole
    assert read(family, text, TOOLS) == whole
