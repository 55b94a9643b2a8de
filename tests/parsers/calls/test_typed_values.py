"""Values that were written as text are converted to the types of their schema, at every cut."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.parsers.calls.typed_values import ANY, TEXT, TypedValue, as_json_object, convert_value, to_json
from tests.parsers.cuts import CUTS, split_at

TYPES = st.sampled_from(
    [
        ANY,
        TEXT,
        *map(frozenset, ({"integer"}, {"string", "null"}, {"object", "array"}, {"boolean"}, {"string", "number"})),
    ]
)


@pytest.mark.parametrize(
    ("text", "types", "value"),
    [
        ("5", {"integer"}, 5),
        (" 5\n", {"integer"}, 5),
        ("5", {"string"}, "5"),
        ("5", {"string", "integer"}, 5),
        ("5.5", {"string", "integer"}, "5.5"),
        ("true", {"string", "integer"}, "true"),
        ("True", {"boolean"}, True),
        ("FALSE", {"boolean"}, False),
        ("yes", {"boolean"}, "yes"),
        ("None", {"integer", "null"}, None),
        ("null", {"string", "null"}, None),
        ("nullable", {"string", "null"}, "nullable"),
        ("", {"integer"}, ""),
        ("", {"integer", "null"}, None),
        ("NaN", {"number"}, "NaN"),
        ("('a', 'b')", {"array"}, ["a", "b"]),
        ("{'a': None}", {"object"}, {"a": None}),
        ("{'a': None} or so", {"object"}, "{'a': None} or so"),
        ('{"a": 1}', set(), {"a": 1}),
        ("{'a': 1}", set(), "{'a': 1}"),
        ('"a"', set(), "a"),
        ("a, b", set(), "a, b"),
        ("12 apples", set(), "12 apples"),
    ],
)
def test_a_value_is_converted_to_its_allowed_types(text: str, types: set[str], value: object) -> None:
    assert json.loads(convert_value(text, frozenset(types) or ANY)) == value


@given(
    text=st.text("ab1{}[]\"'\\ \nTrueNone,:-.", max_size=24), types=TYPES, cuts=CUTS, tail=st.sampled_from(["", "\n"])
)
def test_a_cut_changes_nothing(text: str, types: frozenset[str], cuts: list[int], tail: str) -> None:
    value = TypedValue(types, tail, tail)
    output = "".join(value.feed(part) for part in split_at(text, cuts)) + value.finish()
    assert json.loads(output) == json.loads(convert_value(text, types, tail, tail))


@given(text=st.text("ab1{}[]\"'\\ \nTrueNone,:-.", max_size=24), types=TYPES)
def test_a_truncated_value_is_valid_json(text: str, types: frozenset[str]) -> None:
    value = TypedValue(types, "\n", "\n")
    json.loads(value.feed(text) + value.finish(cut=True))


def test_a_truncated_list_is_closed() -> None:
    assert json.loads(to_json('["a", "b', frozenset({"array"}), cut=True)) == ["a", "b"]


def test_a_string_or_null_is_streamed_once_it_must_be_a_string() -> None:
    value = TypedValue(frozenset({"string", "null"}))
    assert value.feed("nu") == ""
    assert value.feed("mber o") == '"number o'
    assert value.feed("ne") == "ne"


def test_only_a_json_object_is_accepted_as_an_object() -> None:
    assert as_json_object(' {"a": 1} ') == '{"a": 1}'
    for text in ("[1]", '{"a": 1} x', ""):
        assert not as_json_object(text)
