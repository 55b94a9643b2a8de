"""Checks whether a text is an instance of a JSON schema, and repairs it if there is one way to do so.

Only values that were written as text are repaired: "3" where a number is required, "true" where a boolean is required,
an object or a list that was encoded twice. Nothing is added and nothing is removed. Schemas are compiled once.
"""

from functools import lru_cache
from importlib import import_module
from itertools import islice
from typing import Any, Final

import msgspec
from msgspec import Struct

from antiphon.protocol.schemas.schema_edits import json_type

Json = dict[str, Any]

MAX_CACHED_SCHEMAS: Final = 512  # compiled schemas in the cache
MAX_REPAIRS: Final = 32  # repairs of one value
MAX_FAULT_CHARS: Final = 400  # characters of a reported error


class SchemaCheckResult(Struct, frozen=True):
    text: str
    fault: str = ""  # why the text is invalid; empty if it is valid
    repaired: bool = False


def check_text(schema: Json, text: str) -> SchemaCheckResult:
    try:
        value = msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError) as error:
        return SchemaCheckResult(text, f"it is not valid JSON ({error})")
    validator = _load_validator(msgspec.json.encode(schema))
    if validator.is_valid(value):
        return SchemaCheckResult(text)
    fault = _describe_fault(validator, value)
    repaired = _repair(validator, value)
    return (
        SchemaCheckResult(msgspec.json.encode(repaired).decode(), repaired=True)
        if validator.is_valid(repaired)
        else SchemaCheckResult(text, fault)
    )


def find_violation(schema: Json, value: Any) -> str:
    """Return why the value is invalid; empty if it is valid."""
    validator = _load_validator(msgspec.json.encode(schema))
    return "" if validator.is_valid(value) else _describe_fault(validator, value)


@lru_cache(maxsize=MAX_CACHED_SCHEMAS)
def _load_validator(schema: bytes) -> Any:
    return import_module("antiphon.protocol.schemas.json_schema_drafts").validator(msgspec.json.decode(schema))


def _describe_fault(validator: Any, value: Any) -> str:
    error = next(validator.iter_errors(value))
    pointer = "/".join([str(step) for step in error.instance_path])
    return f"{error.message} (at '/{pointer}')"[:MAX_FAULT_CHARS]


def _repair(validator: Any, value: Any) -> Any:
    for error in list(islice(validator.iter_errors(value), MAX_REPAIRS)):
        value = _repair_at(value, list(error.instance_path), _find_expected_types(error))
    return value


def _find_expected_types(error: Any) -> frozenset[str]:
    """Return the types that the value may have; for anyOf and oneOf those of all branches."""
    if error.kind.name == "type":
        return frozenset(error.kind.types)
    if error.kind.name not in ("anyOf", "oneOf"):
        return frozenset()
    nested = [cause for branch in error.kind.context for cause in branch]
    return frozenset([type_name for cause in nested if cause.kind.name == "type" for type_name in cause.kind.types])


def _repair_at(root: Any, path: list[Any], types: frozenset[str]) -> Any:
    """Repair the value at `path` in place, and return the root."""
    holder = {"": root}
    parent, key = holder, ""
    for step in path:
        parent, key = parent[key], step
    if isinstance(text := parent[key], str) and types:
        parent[key] = _decode_as(text, types)
    return holder[""]


def _decode_as(text: str, types: frozenset[str]) -> Any:
    try:
        value = msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError):
        return text
    kinds = {json_type(value), "integer" if type(value) is int else ""} - {"string"}
    return text if types.isdisjoint(kinds) else value
