"""Keywords of a schema are edited at every depth, but not in instances; unbounded values get bounds; references are
JSON pointers.
"""

import pytest
from msgspec import UNSET, UnsetType

from antiphon.core.prompt import Json
from antiphon.protocol.schemas.schema_edits import MAX_NUMBER, MAX_TEXT, bound_values, edit_keywords, find_reference


def drop_format(keyword: str, value: str) -> str | UnsetType:
    return UNSET if keyword == "format" else value


def test_keywords_are_edited_at_every_depth_but_not_in_instances() -> None:
    schema = {
        "anyOf": [{"type": "string", "format": "color"}, {"items": {"format": "color"}}],
        "enum": [{"format": "color"}],
        "default": None,
        "additionalProperties": False,
    }
    assert edit_keywords(schema, drop_format) == {**schema, "anyOf": [{"type": "string"}, {"items": {}}]}


@pytest.mark.parametrize(
    ("schema", "bounds"),
    [
        ({"type": "integer"}, {"minimum": -MAX_NUMBER, "maximum": MAX_NUMBER}),
        ({"type": "integer", "minimum": 1}, {"maximum": MAX_NUMBER}),
        ({"type": "integer", "exclusiveMaximum": 0}, {"minimum": -MAX_NUMBER}),
        ({"type": "integer", "minimum": 10**20}, {}),
        ({"type": "integer", "maximum": -(10**20)}, {}),
        ({"type": "number"}, {"minimum": -MAX_NUMBER, "maximum": MAX_NUMBER, "multipleOf": 1e-9}),
        ({"type": "number", "minimum": 0, "maximum": 1, "multipleOf": 0.01}, {}),
        ({"type": "string"}, {"maxLength": MAX_TEXT}),
        ({"type": "string", "minLength": 10**6}, {"maxLength": 10**6}),
        ({"type": "string", "maxLength": 10**6}, {}),
        ({"type": "string", "pattern": "a+"}, {}),
        ({"type": "string", "format": "date"}, {}),
        ({"type": ["string", "null"]}, {"maxLength": MAX_TEXT}),
        ({"type": "integer", "enum": [10**20]}, {}),
        ({"type": "boolean"}, {}),
        ({}, {}),
    ],
)
def test_values_without_bounds_get_some_at_every_depth(schema: Json, bounds: Json) -> None:
    assert bound_values(schema) == {**schema, **bounds}
    whole = {"properties": {"type": schema, "maximum": {"anyOf": [schema]}}, "const": {"type": "string"}}
    bounded = {"type": {**schema, **bounds}, "maximum": {"anyOf": [{**schema, **bounds}]}}
    assert bound_values(whole) == {**whole, "properties": bounded}


POINTED_SCHEMA = {"$defs": {"a/b": {"c~d": 1}}, "anyOf": [True, {"const": 2}]}


@pytest.mark.parametrize(
    ("reference", "found"),
    [
        ("#", POINTED_SCHEMA),
        ("#/$defs/a~1b", {"c~d": 1}),
        ("#/$defs/a~1b/c~0d", 1),
        ("#/$defs/a~1b/c~0d/e", None),
        ("#/none", None),
        ("#/anyOf/1", {"const": 2}),
        ("#/anyOf/2", None),
        ("#/anyOf/x", None),
        ("#/$defs/a%7E1b", {"c~d": 1}),
        ("#anchor", None),
        ("https://example.com/schema", None),
    ],
)
def test_a_reference_is_a_pointer_into_the_schema(reference: str, found: object) -> None:
    assert find_reference(reference, POINTED_SCHEMA) == found
