"""Parameters in the schema of a tool: the types that a value may have, and the order of the parameters.

Formats that write every value as text need the types to distinguish a number from a string of digits.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from antiphon.core.prompt import Json

ANY: Final[frozenset[str]] = frozenset()  # the type is unknown
TEXT: Final = frozenset({"string"})
_MAX_DEPTH: Final = 8
_MAX_ALTERNATIVES: Final = 64
_TYPE_ALIASES: Final = {
    "str": "string",
    "text": "string",
    "int": "integer",
    "float": "number",
    "bool": "boolean",
    "list": "array",
    "dict": "object",
}


class ToolParameters:
    """The parameters of one tool; empty for a tool that is not offered."""

    def __init__(self, tool: Json | None) -> None:
        function = (tool or {}).get("function", tool)
        schema = function.get("parameters") if isinstance(function, dict) else None
        self._root = schema if isinstance(schema, dict) else {}
        properties = self._root.get("properties")
        self._properties = properties if isinstance(properties, dict) else {}
        self._types: dict[str, frozenset[str]] = {}

    @property
    def names(self) -> Sequence[str]:
        return tuple(self._properties)

    def get_types(self, name: str) -> frozenset[str]:
        """Return the types that a value may have; ANY if the schema does not restrict them."""
        if name not in self._properties:
            return ANY
        if name not in self._types:
            self._types[name] = _collect_types(self._properties[name], self._root, 0)
        return self._types[name]


UNKNOWN: Final = ToolParameters(None)


class ToolSchemas:
    """The parameters of all offered tools."""

    def __init__(self, tools: Mapping[str, Json]) -> None:
        self._tools = tools
        self._parameters: dict[str, ToolParameters] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._tools

    def get_parameters(self, name: str) -> ToolParameters:
        if name not in self._tools:
            return UNKNOWN
        if name not in self._parameters:
            self._parameters[name] = ToolParameters(self._tools[name])
        return self._parameters[name]


def _collect_types(schema: Any, root: Json, depth: int) -> frozenset[str]:
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return ANY
    if isinstance(reference := schema.get("$ref"), str):
        return _collect_types(_resolve_reference(reference, root), root, depth + 1)
    if (declared := schema.get("type")) is not None:
        return (
            _single_type(declared)
            if isinstance(declared, str)
            else _type_set(declared if isinstance(declared, list) else [declared])
        )
    for key in ("anyOf", "oneOf", "allOf"):
        if isinstance(alternatives := schema.get(key), list) and alternatives:
            return _combine_types(
                [_collect_types(alternative, root, depth + 1) for alternative in alternatives[:_MAX_ALTERNATIVES]],
                key == "allOf",
            )
    if isinstance(values := schema.get("enum"), list) and values:
        return frozenset(map(json_type, values))
    if "const" in schema:
        return frozenset({json_type(schema["const"])})
    if "properties" in schema:
        return frozenset({"object"})
    return frozenset({"array"}) if "items" in schema else ANY


def _combine_types(alternatives: list[frozenset[str]], all_hold: bool) -> frozenset[str]:
    """Combine the types of alternatives. An unrestricted alternative makes the result ANY, unless all of them must
    hold.
    """
    if all_hold:
        alternatives = [alternative for alternative in alternatives if alternative is not ANY]
    return ANY if not alternatives or ANY in alternatives else frozenset().union(*alternatives)


@lru_cache(maxsize=64)
def _single_type(name: str) -> frozenset[str]:
    return frozenset({_TYPE_ALIASES.get(name, name)})


def _type_set(names: list[Any]) -> frozenset[str]:
    return frozenset(_TYPE_ALIASES.get(name, name) for name in names if isinstance(name, str))


def _resolve_reference(reference: str, root: Json) -> Any:
    if not reference.startswith("#/"):
        return None
    found: Any = root
    for step in reference[2:].split("/"):
        if not isinstance(found, dict):
            return None
        found = found.get(step.replace("~1", "/").replace("~0", "~"))
    return found


def json_type(value: object) -> str:
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
