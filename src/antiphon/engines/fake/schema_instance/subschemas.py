"""Sub-schemas of a JSON schema, and the combined constraints of a conjunction of them (all must hold).

The results are hints for the search; jsonschema_rs decides whether a value is valid.
"""

from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import unquote

import jsonschema_rs

from antiphon.core.prompt import Json

_TYPE_KEYWORDS = {
    "object": ("properties", "required", "additionalProperties", "minProperties", "patternProperties"),
    "array": ("items", "prefixItems", "minItems", "contains", "uniqueItems"),
    "string": ("minLength", "maxLength", "pattern", "format"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "boolean": (),
    "null": (),
}
_DEPENDENT = ("dependentRequired", "dependencies")

VALIDATOR_OPTIONS: dict[str, Any] = {
    "validate_formats": True,
    "offline": True,
    "pattern_options": jsonschema_rs.FancyRegexOptions(backtrack_limit=10_000),
}


class SchemaPart(NamedTuple):
    """A sub-schema and its position."""

    pointer: str  # JSON pointer of the schema, in the form that jsonschema_rs uses
    schema: Any  # an object or a boolean

    def child(self, *keys: str | int) -> "SchemaPart":
        pointer, schema = self
        for key in keys:
            pointer += "/" + str(key).replace("~", "~0").replace("/", "~1")
            schema = schema[key]
        return SchemaPart(pointer, schema)


ANY_VALUE = SchemaPart("", True)
SchemaParts = tuple[SchemaPart, ...]


def resolve_ref(root: SchemaPart, reference: str) -> SchemaPart:
    """Return the part that a `$ref` points to; `ANY_VALUE` if it is no JSON pointer into this schema."""
    part = root
    try:
        for key in unquote(reference.partition("#")[2]).split("/")[1:]:
            name = key.replace("~1", "/").replace("~0", "~")
            part = part.child(int(name) if isinstance(part.schema, list) else name)
    except (KeyError, IndexError, TypeError, ValueError):
        return ANY_VALUE  # an anchor or a nested $id; the validation of candidates covers it
    return part


def list_alternatives(part: SchemaPart) -> list[list[SchemaParts]]:
    """Return, for each keyword with alternatives, the parts that each alternative adds."""
    schema = part.schema
    found: list[list[SchemaParts]] = [
        [(part.child(key, index),) for index in range(len(schema[key]))] for key in ("anyOf", "oneOf") if key in schema
    ]
    if "if" in schema:
        if_true = tuple(part.child(key) for key in ("if", "then") if key in schema)
        if_false = tuple(part.child(key) for key in ("else",) if key in schema)
        found.append([if_true, if_false])
    for key in ("dependentSchemas", "dependencies"):
        for name, dependent in schema.get(key, {}).items():
            if not isinstance(dependent, list):
                found.append([(), (part.child(key, name),)])
    return found


def candidate_types(schemas: list[Json]) -> list[str]:
    """Return the types that all schemas allow, in the order of the first `type`; without any, ordered by the keywords
    used.
    """
    allowed: list[str] | None = None
    for schema in schemas:
        if "type" in schema:
            declared = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
            allowed = declared if allowed is None else _intersect_types(allowed, declared)
    if allowed is not None:
        return allowed
    hinted = [
        kind for kind, hints in _TYPE_KEYWORDS.items() if any(hint in schema for schema in schemas for hint in hints)
    ]
    return hinted + [kind for kind in _TYPE_KEYWORDS if kind not in hinted]


def _intersect_types(first: list[str], second: list[str]) -> list[str]:
    common = [kind for kind in first if kind in second or (kind == "integer" and "number" in second)]
    if "number" in first and "integer" in second and "integer" not in common:
        common.append("integer")
    return common


def required_properties(schemas: list[Json]) -> list[str]:
    """Return the required properties, including those that `dependentRequired` adds."""
    names = list(dict.fromkeys(name for schema in schemas for name in schema.get("required", ())))
    dependent = [pair for schema in schemas for key in _DEPENDENT for pair in schema.get(key, {}).items()]
    for name in names:  # the list grows during the iteration
        for trigger, needed in dependent:
            if trigger == name and isinstance(needed, list):
                names += [more for more in needed if more not in names]
    return names


def max_keyword(schemas: list[Json], key: str) -> int:
    """Return the largest value of a numeric keyword, such as minItems; 0 without any."""
    return max((int(schema[key]) for schema in schemas if key in schema), default=0)


def property_parts(parts: SchemaParts, name: str) -> SchemaParts:
    """Return the parts that apply to the property of this name."""
    found: list[SchemaPart] = []
    for part in parts:
        declared = [part.child("properties", name)] if name in part.schema.get("properties", ()) else []
        for pattern in part.schema.get("patternProperties", ()):
            if _matches(pattern, name):
                declared.append(part.child("patternProperties", pattern))
        if not declared and "additionalProperties" in part.schema:
            declared.append(part.child("additionalProperties"))
        found += declared
    return tuple(found)


@lru_cache(maxsize=1024)
def _matches(pattern: str, name: str) -> bool:
    return jsonschema_rs.validator_for({"pattern": pattern}, **VALIDATOR_OPTIONS).is_valid(name)


def item_parts(parts: SchemaParts, index: int) -> SchemaParts:
    """Return the parts that apply to the item at this index; before draft 2020-12 a list in `items` had the role of
    prefixItems.
    """
    found: list[SchemaPart] = []
    for part in parts:
        schema = part.schema
        prefix = "prefixItems" if "prefixItems" in schema else "items"
        if isinstance(schema.get(prefix), list):
            remainder = "items" if prefix == "prefixItems" else "additionalItems"
            if index < len(schema[prefix]):
                found.append(part.child(prefix, index))
            elif remainder in schema:
                found.append(part.child(remainder))
        elif "items" in schema:
            found.append(part.child("items"))
    return tuple(found)
