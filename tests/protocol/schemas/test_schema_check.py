"""Text is checked against a JSON Schema: valid text is unchanged, unambiguous faults are repaired, others are
reported.

Covers `protocol/schemas/json_schema_drafts.py`.
"""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.protocol.schemas.schema_check import MAX_FAULT_CHARS, check_text, find_violation
from tests.support.cpu import cpu_timer

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
def test_valid_text_is_returned_unchanged() -> None:
    text = '{ "count":1,\n"name": "3" }'
    assert check_text(SCHEMA, text).text == text
    assert not check_text(SCHEMA, text).repaired


@pytest.mark.shows("D.11")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"count":"3"}', {"count": 3}),
        ('{"count":1,"share":"0.5"}', {"count": 1, "share": 0.5}),
        ('{"count":1,"share":"null"}', {"count": 1, "share": None}),
        ('{"count":1,"deep":{"on":"true"}}', {"count": 1, "deep": {"on": True}}),
        ('{"count":1,"tags":"[\\"a\\"]"}', {"count": 1, "tags": ["a"]}),
        ('"{\\"count\\":1}"', {"count": 1}),
    ],
)
def test_values_written_as_strings_are_converted_to_their_schema_types(text: str, expected: Any) -> None:
    result = check_text(SCHEMA, text)
    assert (json.loads(result.text), result.fault, result.repaired) == (expected, "", True)


@pytest.mark.shows("D.11")
@pytest.mark.parametrize(
    ("text", "fragment"),
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
def test_text_without_an_unambiguous_repair_is_unchanged_and_reported(text: str, fragment: str) -> None:
    result = check_text(SCHEMA, text)
    assert (result.text, result.repaired) == (text, False)
    assert fragment in result.fault


def test_fault_descriptions_are_limited_in_length() -> None:
    assert len(find_violation({"type": "integer"}, "x" * 10_000)) <= MAX_FAULT_CHARS


def test_a_backtracking_pattern_is_aborted() -> None:
    with cpu_timer() as spent:
        assert find_violation({"pattern": r"^(a|a|aa)+(?=b)$"}, "a" * 200)
    assert spent.seconds < 1


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3)))
def test_the_result_is_valid_or_has_a_fault(value: Any) -> None:
    schema = {"type": ["integer", "boolean", "array"], "items": {"type": ["integer", "null"]}}
    result = check_text(schema, json.dumps(value))
    assert bool(result.fault) == bool(find_violation(schema, json.loads(result.text)))
