"""Keywords of a schema are edited at every depth, but not in instances; references are JSON pointers."""

import pytest
from msgspec import UNSET, UnsetType

from antiphon.protocol.schemas.schema_edits import edit_keywords, find_reference


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
