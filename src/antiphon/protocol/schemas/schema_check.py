"""Is a text an instance of a schema, and if it is not, is there one way to make it one? Schemas are compiled once.

Mended is only what was written as text and is meant as something else: "3" where there must be a number, "true" where
there must be a boolean, an object or a list that was encoded twice. Nothing is added and nothing is left out.
"""

from functools import lru_cache
from importlib import import_module
from itertools import islice
from typing import Any, Final

import msgspec
from msgspec import Struct

Json = dict[str, Any]

REMEMBERED: Final = 512  # compiled schemas
MOST_MENDS: Final = 32  # in one value
LONGEST_FAULT: Final = 400  # characters of what is said to be wrong


class Fitted(Struct, frozen=True):
    text: str
    fault: str = ""  # what is wrong with it; nothing if it fits
    mended: bool = False


def fitted(schema: Json, text: str) -> Fitted:
    """JSON that fits, as it was said or as it must have been meant."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError) as error:
        return Fitted(text, f"it is not valid JSON ({error})")
    validator = _compiled(msgspec.json.encode(schema))
    if validator.is_valid(value):
        return Fitted(text)
    fault = _fault(validator, value)
    meant = _meant(validator, value)
    return (
        Fitted(msgspec.json.encode(meant).decode(), mended=True) if validator.is_valid(meant) else Fitted(text, fault)
    )


def misfit(schema: Json, value: Any) -> str:
    """What is wrong with it; nothing if it fits."""
    validator = _compiled(msgspec.json.encode(schema))
    return "" if validator.is_valid(value) else _fault(validator, value)


@lru_cache(maxsize=REMEMBERED)
def _compiled(schema: bytes) -> Any:
    return import_module("antiphon.protocol.schemas.json_schema_drafts").validator(msgspec.json.decode(schema))


def _fault(validator: Any, value: Any) -> str:
    error = next(validator.iter_errors(value))
    place = "/".join([str(step) for step in error.instance_path])
    return f"{error.message} (at '/{place}')"[:LONGEST_FAULT]


def _meant(validator: Any, value: Any) -> Any:
    for error in list(islice(validator.iter_errors(value), MOST_MENDS)):
        value = _put(value, list(error.instance_path), _types(error))
    return value


def _types(error: Any) -> frozenset[str]:
    """Of which types the value would have to be one; of an alternative, those of all its branches."""
    if error.kind.name == "type":
        return frozenset(error.kind.types)
    if error.kind.name not in ("anyOf", "oneOf"):
        return frozenset()
    inner = [one for branch in error.kind.context for one in branch]
    return frozenset([kind for one in inner if one.kind.name == "type" for kind in one.kind.types])


def _put(root: Any, path: list[Any], types: frozenset[str]) -> Any:
    """The same value, with what is there as it must have been meant."""
    holder = {"": root}
    at, key = holder, ""
    for step in path:
        at, key = at[key], step
    if isinstance(said := at[key], str) and types:
        at[key] = _read(said, types)
    return holder[""]


def _read(said: str, types: frozenset[str]) -> Any:
    try:
        value = msgspec.json.decode(said)
    except (msgspec.MsgspecError, RecursionError):
        return said
    return value if not types.isdisjoint(_kinds(value)) else said


def _kinds(value: Any) -> tuple[str, ...]:
    match value:
        case None:
            return ("null",)
        case bool():
            return ("boolean",)
        case int():
            return "integer", "number"
        case float():
            return ("number",)
        case list():
            return ("array",)
        case dict():
            return ("object",)
        case _:
            return ()
