"""Edits of JSON schemas for grammar engines, the references within a schema, and the types of values."""

from collections.abc import Callable
from types import NoneType
from typing import Any, Final
from urllib.parse import unquote

from msgspec import UNSET, UnsetType

MAX_NUMBER: Final = 2**53 - 1  # the largest integer that all JSON implementations agree on (RFC 7493, section 2.2)
MIN_FRACTION: Final = 1e-9  # llguidance rejects more digits after the point in `multipleOf`
MAX_TEXT: Final = 65_536  # characters: more than most contexts hold, so that no file in a tool call is cut

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


def bound_values(schema: Any) -> Any:
    """Return the schema with bounds where strings and numbers have none, for a grammar: small models otherwise write
    digits until no tokens are left. Values that are limited in another form stay as they are.
    """
    if isinstance(schema, list):
        return [bound_values(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    bounded = {key: part if key in _INSTANCE_KEYWORDS else bound_values(part) for key, part in schema.items()}
    return {**bounded, **_find_missing_bounds(schema)}


def _find_missing_bounds(schema: dict[str, Any]) -> dict[str, float]:
    named = schema.get("type")
    kinds = {named} if isinstance(named, str) else {*named} if isinstance(named, list) else set()
    bounds: dict[str, float] = {}
    if not kinds or schema.keys() & {"enum", "const", "$ref"}:
        return bounds
    if "string" in kinds and not schema.keys() & {"maxLength", "pattern", "format"}:
        bounds["maxLength"] = max([MAX_TEXT, *_read_numbers(schema, "minLength")])
    if kinds & {"integer", "number"}:
        lowest = _read_numbers(schema, "minimum", "exclusiveMinimum")
        highest = _read_numbers(schema, "maximum", "exclusiveMaximum")
        if not highest and max(lowest, default=0) < MAX_NUMBER:
            bounds["maximum"] = MAX_NUMBER
        if not lowest and min(highest, default=0) > -MAX_NUMBER:
            bounds["minimum"] = -MAX_NUMBER
    if "number" in kinds and "multipleOf" not in schema:
        bounds["multipleOf"] = MIN_FRACTION
    return bounds


def _read_numbers(schema: dict[str, Any], *keywords: str) -> list[float]:
    return [value for keyword in keywords if isinstance(value := schema.get(keyword), int | float)]


def find_reference(reference: str, root: Any) -> Any:
    """Return what a `$ref` (a JSON pointer, RFC 6901 section 6) points to in the root schema; None for nothing."""
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
