"""Calls as Python writes them: every literal is what Python makes of it; what is no call is text; any cut."""

import ast
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.deltas import CallDelta
from antiphon.parsers.calls.delimited_calls import GATHERED
from antiphon.parsers.calls.literal_style import MOST_VALUES
from antiphon.parsers.calls.pythonic import Lfm2Calls, Llama4PythonicCalls, Olmo3Calls, PythonicCalls
from tests.parsers.calls.parsed_calls import STRING, arguments, read, tool
from tests.parsers.cuts import CUTS, pieces

TOOLS = tool("f", a=STRING, b={"type": "integer"}) | tool("g")
FAMILIES = [PythonicCalls, Llama4PythonicCalls, Olmo3Calls, Lfm2Calls]
LITERALS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def wrapped(family: type[PythonicCalls], calls: str) -> str:
    return "".join(family.frame.openings[:1]) + calls + "".join(family.frame.closings[:1])


@given(value=LITERALS, cuts=CUTS)
@pytest.mark.shows("D.9")
def test_a_literal_is_what_python_makes_of_it(value: object, cuts: list[int]) -> None:
    text = f"[f(a={value!r}, b=1)]"
    ((name, said),) = read(PythonicCalls, pieces(text, cuts), TOOLS)
    assert name == "f"
    assert json.loads(said) == {"a": value, "b": 1}


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
def test_the_ways_to_write_a_literal(literal: str) -> None:
    text = f"[f(a={literal})]"
    value = ast.literal_eval(literal)
    if isinstance(value, bytes):
        value = value.decode()
    if isinstance(value, set):
        value = sorted(value)
    expected = json.loads(json.dumps(value))
    for size in (1, 2, 3, len(text)):
        parts = [text[at : at + size] for at in range(0, len(text), size)]
        ((_, said),) = read(PythonicCalls, parts, TOOLS)
        assert json.loads(said) == {"a": expected}


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
def test_what_python_would_not_take_is_mended_where_there_is_one_way(literal: str, value: object) -> None:
    assert arguments(PythonicCalls, f"[f(a={literal})]", TOOLS) == {"a": value}


def test_a_quote_that_ends_nothing_is_part_of_the_string() -> None:
    text = "[f(a='sed -n '1,2p' x.py', b=1)]"
    for parts in ([text], text):
        ((_, said),) = read(PythonicCalls, parts, TOOLS)
        assert json.loads(said) == {"a": "sed -n '1,2p' x.py", "b": 1}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.shows("D.15")
def test_parallel_calls(family: type[PythonicCalls]) -> None:
    told = read(family, [wrapped(family, "[f(a='x'), g( )]") + " Done."], TOOLS)
    assert told == [("f", '{"a":"x"}'), ("g", "{}"), ("", " Done.")]


def test_calls_may_stand_in_lines() -> None:
    text = 'Well.<function_calls>\nf(a="x")\ng()\n</function_calls>'
    assert read(Olmo3Calls, [text], TOOLS) == [("", "Well."), ("f", '{"a":"x"}'), ("g", "{}")]


@pytest.mark.parametrize("family", FAMILIES)
def test_arguments_without_a_name_have_those_of_the_schema_in_its_order(family: type[PythonicCalls]) -> None:
    assert read(family, [wrapped(family, "[f('x', 2)]")], TOOLS) == [("f", '{"a":"x","b":2}')]
    assert read(family, [wrapped(family, "[f(2, a='x')]")], TOOLS)[0] == ("f", '{"a":2')
    assert read(family, [wrapped(family, "[f(True)]")], TOOLS) == [("f", '{"a":true}')]


@pytest.mark.parametrize("text", ["<|tool_call_start|>[h('x')]<|tool_call_end|>", "<|tool_call_start|>h(1)"])
def test_arguments_without_a_name_of_a_tool_that_is_not_offered_make_no_call(text: str) -> None:
    assert read(Lfm2Calls, [text], TOOLS) == [("", text)]


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
def test_what_is_no_call_is_text(text: str) -> None:
    assert read(PythonicCalls, [text], TOOLS) == [("", text)]
    assert read(PythonicCalls, text, TOOLS) == [("", text)]


def test_what_is_computed_stays_open_so_that_nobody_takes_half_of_it_for_all() -> None:
    for call in ("f(a='/tmp/' + x)", "f(a=1 + 2)", "f(a=f(1))", "f(a=1, a=2)"):
        (name, said), *_ = read(PythonicCalls, [f"[{call}]"], TOOLS)
        assert name == "f"
        with pytest.raises(json.JSONDecodeError):
            json.loads(said)


@pytest.mark.parametrize("family", FAMILIES)
@given(body=st.text("fg(a=1,b)'\"[]{}: \\\nx", max_size=30), cuts=CUTS)
@pytest.mark.shows("D.18")
def test_a_cut_changes_nothing(family: type[PythonicCalls], body: str, cuts: list[int]) -> None:
    text = wrapped(family, "[f(a=" + body)
    whole = read(family, [text], TOOLS)
    assert read(family, pieces(text, cuts), TOOLS) == whole
    assert read(family, text, TOOLS) == whole


@given(value=LITERALS, length=st.integers(0, 200))
def test_a_call_that_ends_early_is_closed(value: object, length: int) -> None:
    text = f"[f(a={value!r}, b=1)"[: max(5, length)]
    for name, said in read(PythonicCalls, [text], TOOLS):
        assert not name or isinstance(json.loads(said), dict)


def test_a_long_string_is_passed_on_while_it_arrives() -> None:
    reader = PythonicCalls(TOOLS)
    reader.feed("[f(a='")
    reader.feed("one")
    told = [piece for char in "-" * GATHERED for piece in reader.feed(char)]
    assert "".join([piece.text for piece in told if isinstance(piece, CallDelta)]) == '{"a":"one' + "-" * GATHERED
    assert reader.feed(' "two"') == (CallDelta(0, ' \\"two\\"'),)


def test_values_are_bounded_and_numbers_are_not_counted() -> None:
    numbers = list(range(4 * MOST_VALUES))
    assert arguments(PythonicCalls, f"[f(a={numbers})]", TOOLS) == {"a": numbers}
    (_, said), *_ = read(PythonicCalls, [f"[f(a={['x'] * 2 * MOST_VALUES})]"], TOOLS)
    assert said.count("x") < MOST_VALUES
