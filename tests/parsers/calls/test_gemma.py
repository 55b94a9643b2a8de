"""Gemma's calls: quotes that are markers, unquoted values, types from the schema, and every cut."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.parsers.calls.base import LiteralFrame
from antiphon.parsers.calls.registry import FORMATS
from tests.parsers.calls.parsed_calls import STRING, make_tool, parse_arguments, parse_calls
from tests.parsers.cuts import CUTS, split_at

TOOLS = make_tool("f", a=STRING, n={"type": "integer"}, o={"type": "object"}, u={})
FAMILIES = ["functiongemma", "gemma4"]


def write_call(family: str, call: str) -> str:
    """Return a call in the family's format; `~` stands for the family's quote."""
    frame = FORMATS[family]
    assert isinstance(frame, LiteralFrame)
    return frame.openings[0] + call.replace("~", frame.quote) + frame.closings[0]


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
def test_the_arguments_of_a_call_are_parsed(family: str, body: str, value: object) -> None:
    text = write_call(family, f"call:f{{{body}}}")
    assert parse_arguments(family, text, TOOLS) == value
    ((_, json_text),) = parse_calls(family, text, TOOLS)
    assert json.loads(json_text) == value


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.shows("D.15")
def test_parallel_calls_preserve_the_text_around_them(family: str) -> None:
    text = "Well. " + write_call(family, "call:f{a:~x~}") + write_call(family, "call:g{}") + "Done."
    assert parse_calls(family, [text], TOOLS) == [("", "Well. "), ("f", '{"a":"x"}'), ("g", "{}"), ("", "Done.")]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_truncated_call_has_the_arguments_so_far(family: str) -> None:
    text = write_call(family, "call:f{a:~hello~,o:{k:[1,~two~]}}")
    for length in range(text.index("hello") + 3, len(text)):
        ((_, json_text),) = parse_calls(family, [text[:length]], TOOLS)
        assert json.loads(json_text)["a"].startswith("hel"), text[:length]


@pytest.mark.parametrize("family", FAMILIES)
def test_markers_without_a_call_are_text(family: str) -> None:
    for call in ("", "f{}", "call: me", "call:f", "call:f x{", "call"):
        text = write_call(family, call)
        assert parse_calls(family, [text], TOOLS) == [("", text)]
        assert parse_calls(family, text, TOOLS) == [("", text)]


@pytest.mark.parametrize("family", FAMILIES)
@given(body=st.text("an:,~{}[] x1<|", max_size=30), cuts=CUTS)
@pytest.mark.shows("D.18")
def test_a_cut_changes_nothing(family: str, body: str, cuts: list[int]) -> None:
    text = write_call(family, "call:f{a:" + body)
    expected = parse_calls(family, [text], TOOLS)
    assert parse_calls(family, split_at(text, cuts), TOOLS) == expected
    assert parse_calls(family, text, TOOLS) == expected
