"""Calls between tags: types from the schema, unclosed tags, text that is not a call, and every cut."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.deltas import CallDelta
from antiphon.parsers.calls.base import TagFrame, TextPiece
from antiphon.parsers.calls.delimited_calls import MAX_BUFFERED, MAX_CALLS, MAX_VALUES
from antiphon.parsers.calls.registry import FORMATS, load_format
from tests.parsers.calls.parsed_calls import STRING, make_tool, parse_arguments, parse_calls
from tests.parsers.cuts import CUTS, split_at

TOOLS = make_tool("f", a=STRING, n={"type": "integer"}, o={"type": "object"}, s={"type": ["string", "null"]}, u={})
FAMILIES = [
    "qwen3_coder",
    "glm45",
    "hy_v3",
    "minimax_m2",
    "minicpm5",
    "step3",
    "deepseek_v32",
]


def write_call(family: str, name: str, *values: tuple[str, str]) -> str:
    """Return a call in the family's format."""
    frame = FORMATS[family]
    assert isinstance(frame, TagFrame)
    tags = frame.tags
    after = tags.name_ends[0] if tags.name_ends and tags.name_ends[0] != tags.key else ""
    head = tags.call + name + (after if tags.name_ends else tags.key_end)
    body = "".join(f"{tags.key}{key}{tags.key_end}{tags.value}{value}{tags.value_end}" for key, value in values)
    return "".join(frame.openings[:1]) + head + body + tags.call_end + "".join(frame.closings[:1])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.shows("D.9")
def test_a_value_has_the_type_of_its_schema(family: str) -> None:
    values = [("a", "12"), ("n", "12"), ("o", "{'k': True}"), ("s", "null"), ("u", "[1]"), ("x", "hm")]
    assert parse_arguments(family, write_call(family, "f", *values), TOOLS) == {
        "a": "12",
        "n": 12,
        "o": {"k": True},
        "s": None,
        "u": [1],
        "x": "hm",
    }


@pytest.mark.parametrize("family", FAMILIES)
def test_a_value_that_does_not_parse_is_a_string(family: str) -> None:
    assert parse_arguments(family, write_call(family, "f", ("n", "many"), ("o", "{")), TOOLS) == {"n": "many", "o": "{"}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.shows("D.15")
def test_parallel_calls_preserve_the_text_around_them(family: str) -> None:
    text = "Well. " + write_call(family, "f", ("a", "x")) + write_call(family, "f") + " Done."
    assert parse_calls(family, [text], TOOLS) == [("", "Well. "), ("f", '{"a":"x"}'), ("f", "{}"), ("", " Done.")]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_truncated_call_has_the_arguments_so_far(family: str) -> None:
    text = write_call(family, "f", ("a", "hello"), ("n", "12"))
    for length in range(text.index("hello") + 3, len(text)):
        output = dict(parse_calls(family, [text[:length]], TOOLS))
        assert json.loads(output["f"])["a"].startswith("hel"), text[:length]


@pytest.mark.parametrize("family", FAMILIES)
def test_markers_without_a_call_are_text(family: str) -> None:
    frame = FORMATS[family]
    assert isinstance(frame, TagFrame)
    for marker in (*frame.openings, *frame.closings, frame.tags.call, frame.tags.key):
        for text in (marker, f"a {marker} b", f"{marker}\n{marker}", f"`{marker}` is a mark {marker[:-1]}"):
            assert parse_calls(family, [text], TOOLS) == [("", text)]
            assert parse_calls(family, text, TOOLS) == [("", text)]


@pytest.mark.parametrize("family", FAMILIES)
@given(
    values=st.lists(st.tuples(st.sampled_from("anosux"), st.text("ab<>/\n \"'\\{[1", max_size=8)), max_size=4),
    around=st.text("a<>\n ", max_size=4),
    cuts=CUTS,
    length=st.integers(0, 400),
)
@pytest.mark.shows("D.18")
def test_a_cut_changes_nothing(
    family: str, values: list[tuple[str, str]], around: str, cuts: list[int], length: int
) -> None:
    text = (around + write_call(family, "f", *values) + around + write_call(family, "f", *values))[:length]
    expected = parse_calls(family, [text], TOOLS)
    assert parse_calls(family, split_at(text, cuts), TOOLS) == expected
    assert parse_calls(family, text, TOOLS) == expected
    for name, output in expected:
        assert not name or isinstance(json.loads(output), dict)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_long_string_is_emitted_as_it_arrives(family: str) -> None:
    text = write_call(family, "f", ("a", "one two three"))
    reader = load_format(family)(TOOLS)
    reader.feed(text[: text.index("one")])
    reader.feed("one")
    output = [piece for char in "-" * MAX_BUFFERED for piece in reader.feed(char)]
    assert "".join([piece.text for piece in output if isinstance(piece, CallDelta)]) == '{"a":"one' + "-" * MAX_BUFFERED
    assert [piece.text for piece in reader.feed(' "two"') if isinstance(piece, CallDelta)] == [' \\"two\\"']


def test_an_unclosed_parameter_ends_at_the_next_one_or_at_the_end_of_the_call() -> None:
    text = "<tool_call><function=f><parameter=a>x<parameter=n>1</function></tool_call>"
    assert parse_arguments("qwen3_coder", text, TOOLS) == {"a": "x", "n": 1}


def test_an_unclosed_call_ends_at_the_next_call() -> None:
    text = "<tool_call><function=f><parameter=a>x</parameter><function=f><parameter=n>1</parameter></tool_call>"
    assert parse_calls("qwen3_coder", [text], TOOLS) == [("f", '{"a":"x"}'), ("f", '{"n":1}')]


def test_one_line_break_on_each_side_of_a_value_is_dropped() -> None:
    text = "<tool_call><function=f><parameter=a>\n\n x\n\n</parameter></function></tool_call>"
    assert parse_arguments("qwen3_coder", text, TOOLS) == {"a": "\n x\n"}


def test_json_in_place_of_parameters_becomes_the_arguments() -> None:
    text = '<tool_call><function=f>\n{"a": "x"}\n</function></tool_call>'
    assert parse_calls("qwen3_coder", [text], TOOLS) == [("f", '{"a": "x"}')]


def test_text_after_an_unclosed_call_is_not_lost() -> None:
    text = "<tool_call><function=f><parameter=a>x</parameter> and so on"
    assert parse_calls("qwen3_coder", [text], TOOLS) == [("f", '{"a":"x"}'), ("", " and so on")]


def test_a_truncated_marker_after_a_call_is_dropped() -> None:
    text = write_call("qwen3_coder", "f")
    assert parse_calls("qwen3_coder", [text[:-3]], TOOLS) == [("f", "{}")]


def test_a_tag_without_its_marker_calls_only_offered_tools() -> None:
    text = "<function=g><parameter=a>x</parameter></function>"
    assert parse_calls("qwen3_coder", [text], TOOLS) == [("", text)]
    assert parse_calls("qwen3_coder", [text.replace("=g", "=f")], TOOLS) == [("f", '{"a":"x"}')]


def test_a_name_without_a_following_tag_is_text() -> None:
    text = "Write <tool_call>f and then its arguments."
    assert parse_calls("glm45", [text], TOOLS) == [("", text)]


def test_the_first_of_duplicate_parameters_counts() -> None:
    assert parse_arguments("glm45", write_call("glm45", "f", ("a", "x"), ("a", "y"), ("n", "1")), TOOLS) == {
        "a": "x",
        "n": 1,
    }


def test_the_string_attribute_sets_the_type() -> None:
    text, _, _ = write_call("deepseek_v32", "f").partition("</｜DSML｜invoke>")
    for attribute, value in (("true", "12"), ("false", 12)):
        call = f'{text}<｜DSML｜parameter name="u" string="{attribute}">12</｜DSML｜parameter>'
        assert parse_arguments("deepseek_v32", call, TOOLS) == {"u": value}


def test_calls_and_parameters_are_limited_and_incomplete_arguments_stay_unclosed() -> None:
    many = write_call("glm45", "f") * (2 * MAX_CALLS)
    output = parse_calls("glm45", [many], TOOLS)
    assert [name for name, _ in output] == ["f"] * MAX_CALLS + [""]
    wide = write_call("glm45", "f", *[(f"k{number}", "1") for number in range(2 * MAX_VALUES)])
    (_, json_text), *_ = parse_calls("glm45", [wide], TOOLS)
    assert not json_text.endswith("}")
    assert len(json.loads(json_text + "}")) == MAX_VALUES - 1


def test_plain_text_is_emitted_immediately() -> None:
    reader = load_format("qwen3_coder")(TOOLS)
    assert reader.feed("Hello") == (TextPiece("Hello", 5),)
    assert reader.feed(" you") == (TextPiece(" you", 9),)
