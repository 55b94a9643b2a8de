"""What the schema of a tool says about its parameters: which types a value may have, and in which order they come.

Formats that write everything as text need it to tell a number from a string of digits.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from antiphon.core.prompt import Json

ANY: Final[frozenset[str]] = frozenset()  # nothing is known
TEXT: Final = frozenset({"string"})
_DEEPEST: Final = 8
_WIDEST: Final = 64
_OTHER_NAMES: Final = {
    "str": "string",
    "text": "string",
    "int": "integer",
    "float": "number",
    "bool": "boolean",
    "list": "array",
    "dict": "object",
}


class Parameters:
    """Of one tool; of a tool that is not offered nothing is known."""

    def __init__(self, tool: Json | None) -> None:
        inner = (tool or {}).get("function", tool)
        schema = inner.get("parameters") if isinstance(inner, dict) else None
        self._root = schema if isinstance(schema, dict) else {}
        properties = self._root.get("properties")
        self._properties = properties if isinstance(properties, dict) else {}
        self._found: dict[str, frozenset[str]] = {}

    @property
    def names(self) -> Sequence[str]:
        return tuple(self._properties)

    def types(self, name: str) -> frozenset[str]:
        """Those that a value may have; ANY if that is not said."""
        if name not in self._properties:
            return ANY
        if name not in self._found:
            self._found[name] = _types(self._properties[name], self._root, 0)
        return self._found[name]


UNKNOWN: Final = Parameters(None)


class Offered:
    """The parameters of each tool that is offered."""

    def __init__(self, tools: Mapping[str, Json]) -> None:
        self._tools = tools
        self._found: dict[str, Parameters] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._tools

    def parameters(self, name: str) -> Parameters:
        if name not in self._tools:
            return UNKNOWN
        if name not in self._found:
            self._found[name] = Parameters(self._tools[name])
        return self._found[name]


def _types(schema: Any, root: Json, depth: int) -> frozenset[str]:
    if not isinstance(schema, dict) or depth > _DEEPEST:
        return ANY
    if isinstance(reference := schema.get("$ref"), str):
        return _types(_referred(reference, root), root, depth + 1)
    if (said := schema.get("type")) is not None:
        return _one(said) if isinstance(said, str) else _named(said if isinstance(said, list) else [said])
    for key in ("anyOf", "oneOf", "allOf"):
        if isinstance(ways := schema.get(key), list) and ways:
            return _united([_types(way, root, depth + 1) for way in ways[:_WIDEST]], key == "allOf")
    if isinstance(values := schema.get("enum"), list) and values:
        return frozenset(map(type_of, values))
    if "const" in schema:
        return frozenset({type_of(schema["const"])})
    if "properties" in schema:
        return frozenset({"object"})
    return frozenset({"array"}) if "items" in schema else ANY


def _united(ways: list[frozenset[str]], all_hold: bool) -> frozenset[str]:
    """One way of which nothing is known leaves all open, unless all must hold."""
    if all_hold:
        ways = [way for way in ways if way is not ANY]
    return ANY if not ways or ANY in ways else frozenset().union(*ways)


@lru_cache(maxsize=64)
def _one(name: str) -> frozenset[str]:
    return frozenset({_OTHER_NAMES.get(name, name)})


def _named(said: list[Any]) -> frozenset[str]:
    return frozenset(_OTHER_NAMES.get(name, name) for name in said if isinstance(name, str))


def _referred(reference: str, root: Json) -> Any:
    if not reference.startswith("#/"):
        return None
    found: Any = root
    for step in reference[2:].split("/"):
        if not isinstance(found, dict):
            return None
        found = found.get(step.replace("~1", "/").replace("~0", "~"))
    return found


def type_of(value: object) -> str:
    match value:
        case bool():
            return "boolean"
        case None:
            return "null"
        case str():
            return "string"
        case int() | float():
            return "number"
        case list():
            return "array"
    return "object"
