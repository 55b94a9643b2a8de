"""Edits of JSON schemas for grammar engines, the references within a schema, and the types of values."""

from collections.abc import Callable
from types import NoneType
from typing import Any, Final
from urllib.parse import unquote

from msgspec import UNSET, UnsetType

_INSTANCE_KEYWORDS: Final = frozenset({"const", "enum", "default", "examples"})  # their values are not schemas


def edit_keywords(schema: Any, edit: Callable[[str, str], str | UnsetType]) -> Any:
    """Return the schema with `edit(keyword, value)` for each keyword with a string value; UNSET removes the keyword."""
    if isinstance(schema, list):
        return [edit_keywords(part, edit) for part in schema]
    if not isinstance(schema, dict):
        return schema
    edited: dict[str, Any] = {}
    for key, part in schema.items():
        if key in _INSTANCE_KEYWORDS:
            edited[key] = part
        elif (new := edit(key, part) if isinstance(part, str) else edit_keywords(part, edit)) is not UNSET:
            edited[key] = new
    return edited


def find_reference(reference: str, root: Any) -> Any:
    """Return what a `$ref` points to within the root schema (a JSON pointer in a URI fragment, RFC 6901 section 6);
    None if there is nothing.
    """
    anchor, *steps = unquote(reference.removeprefix("#")).split("/")
    found = None if anchor else root
    for step in steps:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list):
            found = dict(enumerate(found)).get(int(name) if name.isdecimal() else -1)
        else:
            found = found.get(name) if isinstance(found, dict) else None
    return found


_JSON_TYPES: Final = {bool: "boolean", NoneType: "null", str: "string", int: "number", float: "number", list: "array"}


def json_type(value: object) -> str:
    return _JSON_TYPES.get(type(value), "object")
