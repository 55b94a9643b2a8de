"""Calls in Python syntax: literals have the values of Python, other text stays text, and cuts change nothing.

Covers `parsers/calls/python_literals.py`.
"""

import ast
import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from antiphon.core.deltas import CallDelta
from antiphon.parsers.calls.delimited_calls import MAX_BUFFERED, MAX_VALUES
from antiphon.parsers.calls.registry import FORMATS, load_format
from tests.parsers.calls.parsed_calls import STRING, make_tool, parse_arguments, parse_calls
from tests.parsers.cuts import CUTS, split_at

TOOLS = make_tool("f", a=STRING, b={"type": "integer"}) | make_tool("g")
FAMILIES = ["pythonic", "llama4_pythonic", "olmo3", "lfm2"]
LITERALS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def wrap_calls(family: str, calls: str) -> str:
    return "".join(FORMATS[family].openings[:1]) + calls + "".join(FORMATS[family].closings[:1])


@given(value=LITERALS, cuts=CUTS)
@pytest.mark.shows("D.9")
def test_a_literal_has_the_value_of_python(value: object, cuts: list[int]) -> None:
    text = f"[f(a={value!r}, b=1)]"
    ((name, json_text),) = parse_calls("pythonic", split_at(text, cuts), TOOLS)
    assert name == "f"
    assert json.loads(json_text) == {"a": value, "b": 1}


@pytest.mark.parametrize(
    "literal",
    [
        r"'it\'s'",
        r'"\"x\" \\ \n \t \x41 \u00e9 \U0001F600 \a\v\0"',
        "'say \"x\"'",
        "'''three 'quotes'\n'''",
        '""',
        "''",
        r"r'\d+\n'",
        "b'a'[:0] or 'a'"[:4],
        "u'a'",
        "'one' \"two\"  'three'",
        "('a', 1)",
        "[(1, 2), [3], ()]",
        "{'a': {2: None, True: 2.5}}",
        "{'a', 'b'}",
        "{1, 2}",
        "{}",
        "[]",
        "[1, 2.5, -3, 1e5, 1_000, 0x1F, .5, 1.]",
        "+5",
        "-0.0",
        "[ 'a' , 'b' , ]",
    ],
)
def test_every_spelling_of_a_literal_is_parsed(literal: str) -> None:
    text = f"[f(a={literal})]"
    value = ast.literal_eval(literal)
    if isinstance(value, bytes):
        value = value.decode()
    if isinstance(value, set):
        value = sorted(value)
    expected = json.loads(json.dumps(value))
    for size in (1, 2, 3, len(text)):
        parts = [text[at : at + size] for at in range(0, len(text), size)]
        ((_, json_text),) = parse_calls("pythonic", parts, TOOLS)
        assert json.loads(json_text) == {"a": expected}


@pytest.mark.parametrize(
    ("literal", "value"),
    [
        ("true", True),
        ("null", None),
        ("hello", "hello"),
        ("007", 7),
        (r"'\d \q \x4'", r"\d \q \x4"),
        ("'a\nb'", "a\nb"),
    ],
)
def test_invalid_literals_with_one_meaning_are_repaired(literal: str, value: object) -> None:
    assert parse_arguments("pythonic", f"[f(a={literal})]", TOOLS) == {"a": value}


def test_a_quote_that_does_not_end_a_string_is_part_of_it() -> None:
    text = "[f(a='sed -n '1,2p' x.py', b=1)]"
    for parts in ([text], text):
        ((_, json_text),) = parse_calls("pythonic", parts, TOOLS)
        assert json.loads(json_text) == {"a": "sed -n '1,2p' x.py", "b": 1}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.shows("D.15")
def test_parallel_calls_are_parsed(family: str) -> None:
    emitted = parse_calls(family, [wrap_calls(family, "[f(a='x'), g( )]") + " Done."], TOOLS)
    assert emitted == [("f", '{"a":"x"}'), ("g", "{}"), ("", " Done.")]


def test_calls_may_be_on_separate_lines() -> None:
    text = 'Well.<function_calls>\nf(a="x")\ng()\n</function_calls>'
    assert parse_calls("olmo3", [text], TOOLS) == [("", "Well."), ("f", '{"a":"x"}'), ("g", "{}")]


@pytest.mark.parametrize("family", FAMILIES)
def test_positional_arguments_get_the_names_of_the_schema_in_order(family: str) -> None:
    assert parse_calls(family, [wrap_calls(family, "[f('x', 2)]")], TOOLS) == [("f", '{"a":"x","b":2}')]
    assert parse_calls(family, [wrap_calls(family, "[f(2, a='x')]")], TOOLS)[0] == ("f", '{"a":2')
    assert parse_calls(family, [wrap_calls(family, "[f(True)]")], TOOLS) == [("f", '{"a":true}')]


@pytest.mark.parametrize("text", ["<|tool_call_start|>[h('x')]<|tool_call_end|>", "<|tool_call_start|>h(1)"])
def test_positional_arguments_of_an_unoffered_tool_are_text(text: str) -> None:
    assert parse_calls("lfm2", [text], TOOLS) == [("", text)]


@pytest.mark.parametrize(
    "text",
    [
        "[1] is a source.",
        "[h(a=1)]",
        "f(a=1)",
        "Say [f(a=1)].",
        "[f]",
        "[f(",
        "[]",
        "[f (a=1)]",
        "[",
        " [ f",
        "[f(a",
        "[f.a]",
    ],
)
def test_text_that_is_not_a_call_stays_text(text: str) -> None:
    assert parse_calls("pythonic", [text], TOOLS) == [("", text)]
    assert parse_calls("pythonic", text, TOOLS) == [("", text)]


def test_computed_arguments_stay_unclosed_so_that_they_are_not_taken_as_complete() -> None:
    for call in ("f(a='/tmp/' + x)", "f(a=1 + 2)", "f(a=f(1))", "f(a=1, a=2)"):
        (name, json_text), *_ = parse_calls("pythonic", [f"[{call}]"], TOOLS)
        assert name == "f"
        with pytest.raises(json.JSONDecodeError):
            json.loads(json_text)


@pytest.mark.parametrize("family", FAMILIES)
@given(body=st.text("fg(a=1,b)'\"[]{}: \\\nx", max_size=30), cuts=CUTS)
@example(body="1\n,", cuts=[])
@pytest.mark.shows("D.18")
def test_a_cut_changes_nothing(family: str, body: str, cuts: list[int]) -> None:
    text = wrap_calls(family, "[f(a=" + body)
    expected = parse_calls(family, [text], TOOLS)
    assert parse_calls(family, split_at(text, cuts), TOOLS) == expected
    assert parse_calls(family, text, TOOLS) == expected


@given(value=LITERALS, length=st.integers(0, 200))
def test_a_truncated_call_is_closed(value: object, length: int) -> None:
    text = f"[f(a={value!r}, b=1)"[: max(5, length)]
    for name, json_text in parse_calls("pythonic", [text], TOOLS):
        assert not name or isinstance(json.loads(json_text), dict)


def test_a_long_string_is_emitted_as_it_arrives() -> None:
    reader = load_format("pythonic")(TOOLS)
    reader.feed("[f(a='")
    reader.feed("one")
    emitted = [piece for char in "-" * MAX_BUFFERED for piece in reader.feed(char)]
    assert (
        "".join([piece.text for piece in emitted if isinstance(piece, CallDelta)]) == '{"a":"one' + "-" * MAX_BUFFERED
    )
    assert reader.feed(' "two"') == (CallDelta(0, ' \\"two\\"'),)


def test_the_number_of_values_is_limited_but_numbers_do_not_count() -> None:
    numbers = list(range(4 * MAX_VALUES))
    assert parse_arguments("pythonic", f"[f(a={numbers})]", TOOLS) == {"a": numbers}
    (_, json_text), *_ = parse_calls("pythonic", [f"[f(a={['x'] * 2 * MAX_VALUES})]"], TOOLS)
    assert json_text.count("x") < MAX_VALUES
