"""Calls between tags: types by the schema, what was not closed, what is no call, and any cut."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.deltas import CallDelta
from antiphon.parsers.calls.base import Said
from antiphon.parsers.calls.delimited_calls import GATHERED, MOST_CALLS
from antiphon.parsers.calls.tagged import (
    DeepSeekV32Calls,
    GlmCalls,
    HunyuanV3Calls,
    MiniCpm5Calls,
    MinimaxM2Calls,
    QwenCoderCalls,
    Step3Calls,
    TaggedCalls,
)
from antiphon.parsers.calls.tagged_call import MOST_PARAMETERS
from tests.parsers.calls.parsed_calls import STRING, arguments, read, tool
from tests.parsers.cuts import CUTS, pieces

TOOLS = tool("f", a=STRING, n={"type": "integer"}, o={"type": "object"}, s={"type": ["string", "null"]}, u={})
FAMILIES = [
    QwenCoderCalls,
    GlmCalls,
    HunyuanV3Calls,
    MinimaxM2Calls,
    MiniCpm5Calls,
    Step3Calls,
    DeepSeekV32Calls,
]


def said(family: type[TaggedCalls], name: str, *values: tuple[str, str]) -> str:
    """A call as the family writes it."""
    tags, frame = family.tags, family.frame
    after = tags.name_ends[0] if tags.name_ends and tags.name_ends[0] != tags.key else ""
    head = tags.call + name + (after if tags.name_ends else tags.key_end)
    body = "".join(f"{tags.key}{key}{tags.key_end}{tags.value}{value}{tags.value_end}" for key, value in values)
    return "".join(frame.openings[:1]) + head + body + tags.call_ends[0] + "".join(frame.closings[:1])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.shows("D.9")
def test_a_value_has_the_type_that_the_schema_says(family: type[TaggedCalls]) -> None:
    values = [("a", "12"), ("n", "12"), ("o", "{'k': True}"), ("s", "null"), ("u", "[1]"), ("x", "hm")]
    assert arguments(family, said(family, "f", *values), TOOLS) == {
        "a": "12",
        "n": 12,
        "o": {"k": True},
        "s": None,
        "u": [1],
        "x": "hm",
    }


@pytest.mark.parametrize("family", FAMILIES)
def test_what_does_not_parse_is_a_string(family: type[TaggedCalls]) -> None:
    assert arguments(family, said(family, "f", ("n", "many"), ("o", "{")), TOOLS) == {"n": "many", "o": "{"}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.shows("D.15")
def test_parallel_calls_have_their_text_around_them(family: type[TaggedCalls]) -> None:
    text = "Well. " + said(family, "f", ("a", "x")) + said(family, "f") + " Done."
    assert read(family, [text], TOOLS) == [("", "Well. "), ("f", '{"a":"x"}'), ("f", "{}"), ("", " Done.")]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_call_that_ends_early_has_what_there_was_of_its_arguments(family: type[TaggedCalls]) -> None:
    text = said(family, "f", ("a", "hello"), ("n", "12"))
    for length in range(text.index("hello") + 3, len(text)):
        told = dict(read(family, [text[:length]], TOOLS))
        assert json.loads(told["f"])["a"].startswith("hel"), text[:length]


@pytest.mark.parametrize("family", FAMILIES)
def test_marks_without_a_call_are_text(family: type[TaggedCalls]) -> None:
    for mark in (*family.frame.openings, *family.frame.closings, family.tags.call, family.tags.key):
        for text in (mark, f"a {mark} b", f"{mark}\n{mark}", f"`{mark}` is a mark {mark[:-1]}"):
            assert read(family, [text], TOOLS) == [("", text)]
            assert read(family, text, TOOLS) == [("", text)]


@pytest.mark.parametrize("family", FAMILIES)
@given(
    values=st.lists(st.tuples(st.sampled_from("anosux"), st.text("ab<>/\n \"'\\{[1", max_size=8)), max_size=4),
    around=st.text("a<>\n ", max_size=4),
    cuts=CUTS,
    length=st.integers(0, 400),
)
@pytest.mark.shows("D.18")
def test_a_cut_changes_nothing(
    family: type[TaggedCalls], values: list[tuple[str, str]], around: str, cuts: list[int], length: int
) -> None:
    text = (around + said(family, "f", *values) + around + said(family, "f", *values))[:length]
    whole = read(family, [text], TOOLS)
    assert read(family, pieces(text, cuts), TOOLS) == whole
    assert read(family, text, TOOLS) == whole
    for name, told in whole:
        assert not name or isinstance(json.loads(told), dict)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_long_string_is_passed_on_while_it_arrives(family: type[TaggedCalls]) -> None:
    text = said(family, "f", ("a", "one two three"))
    reader = family(TOOLS)
    reader.feed(text[: text.index("one")])
    reader.feed("one")
    told = [piece for char in "-" * GATHERED for piece in reader.feed(char)]
    assert "".join([piece.text for piece in told if isinstance(piece, CallDelta)]) == '{"a":"one' + "-" * GATHERED
    assert [piece.text for piece in reader.feed(' "two"') if isinstance(piece, CallDelta)] == [' \\"two\\"']


def test_a_parameter_that_was_not_closed_ends_where_the_next_begins_or_the_call_ends() -> None:
    text = "<tool_call><function=f><parameter=a>x<parameter=n>1</function></tool_call>"
    assert arguments(QwenCoderCalls, text, TOOLS) == {"a": "x", "n": 1}


def test_a_call_that_was_not_closed_ends_where_the_next_begins() -> None:
    text = "<tool_call><function=f><parameter=a>x</parameter><function=f><parameter=n>1</parameter></tool_call>"
    assert read(QwenCoderCalls, [text], TOOLS) == [("f", '{"a":"x"}'), ("f", '{"n":1}')]


def test_a_line_break_on_each_side_of_a_value_is_the_formats() -> None:
    text = "<tool_call><function=f><parameter=a>\n\n x\n\n</parameter></function></tool_call>"
    assert arguments(QwenCoderCalls, text, TOOLS) == {"a": "\n x\n"}


def test_json_instead_of_parameters_is_the_arguments() -> None:
    text = '<tool_call><function=f>\n{"a": "x"}\n</function></tool_call>'
    assert read(QwenCoderCalls, [text], TOOLS) == [("f", '{"a": "x"}')]


def test_text_after_a_call_that_was_never_closed_is_not_lost() -> None:
    text = "<tool_call><function=f><parameter=a>x</parameter> and so on"
    assert read(QwenCoderCalls, [text], TOOLS) == [("f", '{"a":"x"}'), ("", " and so on")]


def test_a_mark_after_a_call_that_was_cut_is_no_text() -> None:
    text = said(QwenCoderCalls, "f")
    assert read(QwenCoderCalls, [text[:-3]], TOOLS) == [("f", "{}")]


def test_a_tag_without_the_mark_around_it_is_a_call_only_of_what_is_offered() -> None:
    text = "<function=g><parameter=a>x</parameter></function>"
    assert read(QwenCoderCalls, [text], TOOLS) == [("", text)]
    assert read(QwenCoderCalls, [text.replace("=g", "=f")], TOOLS) == [("f", '{"a":"x"}')]


def test_a_name_that_stands_alone_must_be_followed_by_a_tag() -> None:
    text = "Write <tool_call>f and then its arguments."
    assert read(GlmCalls, [text], TOOLS) == [("", text)]


def test_a_parameter_that_comes_twice_counts_once() -> None:
    assert arguments(GlmCalls, said(GlmCalls, "f", ("a", "x"), ("a", "y"), ("n", "1")), TOOLS) == {"a": "x", "n": 1}


def test_an_attribute_says_what_is_a_string() -> None:
    text, _, _ = said(DeepSeekV32Calls, "f").partition("</｜DSML｜invoke>")
    for attribute, value in (("true", "12"), ("false", 12)):
        call = f'{text}<｜DSML｜parameter name="u" string="{attribute}">12</｜DSML｜parameter>'
        assert arguments(DeepSeekV32Calls, call, TOOLS) == {"u": value}


def test_calls_and_parameters_are_bounded_and_arguments_that_lost_a_part_stay_open() -> None:
    many = said(GlmCalls, "f") * (2 * MOST_CALLS)
    told = read(GlmCalls, [many], TOOLS)
    assert [name for name, _ in told] == ["f"] * MOST_CALLS + [""]
    wide = said(GlmCalls, "f", *[(f"k{number}", "1") for number in range(2 * MOST_PARAMETERS)])
    (_, given_), *_ = read(GlmCalls, [wide], TOOLS)
    assert not given_.endswith("}")
    assert len(json.loads(given_ + "}")) == MOST_PARAMETERS - 1


def test_plain_text_passes_at_once() -> None:
    reader = QwenCoderCalls(TOOLS)
    assert reader.feed("Hello") == (Said("Hello", 5),)
    assert reader.feed(" you") == (Said(" you", 9),)
