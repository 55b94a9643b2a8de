"""A text fits its schema, or is mended where there is one way to, or it is said what is wrong with it."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.protocol.schemas.schema_check import LONGEST_FAULT, fitted, misfit
from tests.support.cpu import cpu_time

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "count": {"type": "integer"},
        "share": {"anyOf": [{"type": "number"}, {"type": "null"}]},
        "deep": {"$ref": "#/$defs/deep"},
        "name": {"type": "string"},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["count"],
    "additionalProperties": False,
    "$defs": {"deep": {"type": "object", "properties": {"on": {"type": "boolean"}}, "additionalProperties": False}},
}


@pytest.mark.shows("D.11")
def test_what_fits_is_left_as_it_was_said() -> None:
    said = '{ "count":1,\n"name": "3" }'
    assert fitted(SCHEMA, said).text == said
    assert not fitted(SCHEMA, said).mended


@pytest.mark.shows("D.11")
@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ('{"count":"3"}', {"count": 3}),
        ('{"count":1,"share":"0.5"}', {"count": 1, "share": 0.5}),
        ('{"count":1,"share":"null"}', {"count": 1, "share": None}),
        ('{"count":1,"deep":{"on":"true"}}', {"count": 1, "deep": {"on": True}}),
        ('{"count":1,"tags":"[\\"a\\"]"}', {"count": 1, "tags": ["a"]}),
        ('"{\\"count\\":1}"', {"count": 1}),
    ],
)
def test_what_was_written_as_text_is_read_as_what_it_must_be(said: str, meant: Any) -> None:
    fit = fitted(SCHEMA, said)
    assert (json.loads(fit.text), fit.fault, fit.mended) == (meant, "", True)


@pytest.mark.shows("D.11")
@pytest.mark.parametrize(
    ("said", "word"),
    [
        ('{"count":"three"}', "integer"),
        ('{"count":1,"more":2}', "more"),
        ("{}", "count"),
        ('{"count":', "JSON"),
        ('{"count":NaN}', "JSON"),
        ('{"count":1} and so on', "JSON"),
        ("[" * 5000, "JSON"),
    ],
)
def test_what_cannot_be_mended_in_one_way_is_left_and_named(said: str, word: str) -> None:
    fit = fitted(SCHEMA, said)
    assert (fit.text, fit.mended) == (said, False)
    assert word in fit.fault


def test_what_is_said_to_be_wrong_is_short() -> None:
    assert len(misfit({"type": "integer"}, "x" * 10_000)) <= LONGEST_FAULT


def test_a_pattern_that_goes_back_and_forth_is_given_up() -> None:
    with cpu_time() as spent:
        assert misfit({"pattern": r"^(a|a|aa)+(?=b)$"}, "a" * 200)
    assert spent.seconds < 1


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3)))
def test_what_comes_back_is_an_instance_or_has_a_fault(value: Any) -> None:
    schema = {"type": ["integer", "boolean", "array"], "items": {"type": ["integer", "null"]}}
    fit = fitted(schema, json.dumps(value))
    assert bool(fit.fault) == bool(misfit(schema, json.loads(fit.text)))
