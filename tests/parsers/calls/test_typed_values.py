"""Values that were written as text: their types, and that it does not matter how they arrive."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.parsers.calls.parameter_schemas import ANY, TEXT
from antiphon.parsers.calls.typed_values import Value, as_json, json_object, whole
from tests.parsers.cuts import CUTS, pieces

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
def test_a_value_is_what_its_types_make_of_it(text: str, types: set[str], value: object) -> None:
    assert json.loads(whole(text, frozenset(types) or ANY)) == value


@given(
    text=st.text("ab1{}[]\"'\\ \nTrueNone,:-.", max_size=24), types=TYPES, cuts=CUTS, tail=st.sampled_from(["", "\n"])
)
def test_a_cut_changes_nothing(text: str, types: frozenset[str], cuts: list[int], tail: str) -> None:
    value = Value(types, tail, tail)
    said = "".join(value.feed(part) for part in pieces(text, cuts)) + value.finish()
    assert json.loads(said) == json.loads(whole(text, types, tail, tail))


@given(text=st.text("ab1{}[]\"'\\ \nTrueNone,:-.", max_size=24), types=TYPES)
def test_what_ends_early_is_json_all_the_same(text: str, types: frozenset[str]) -> None:
    value = Value(types, "\n", "\n")
    json.loads(value.feed(text) + value.finish(cut=True))


def test_a_list_that_ends_early_is_closed() -> None:
    assert json.loads(as_json('["a", "b', frozenset({"array"}), cut=True)) == ["a", "b"]


def test_a_string_with_other_types_streams_once_it_can_be_nothing_else() -> None:
    value = Value(frozenset({"string", "null"}))
    assert value.feed("nu") == ""
    assert value.feed("mber o") == '"number o'
    assert value.feed("ne") == "ne"


def test_only_an_object_is_one() -> None:
    assert json_object(' {"a": 1} ') == '{"a": 1}'
    for text in ("[1]", '{"a": 1} x', ""):
        assert not json_object(text)
