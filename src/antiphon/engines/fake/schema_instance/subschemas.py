"""Sub-schemas of a JSON schema, and what a conjunction of them (all must hold) says together.

What is said here are hints for a search; whether a value is valid is for jsonschema_rs to say.
"""

from typing import Any, NamedTuple

from antiphon.core.prompt import Json

_HINTS = {
    "object": ("properties", "required", "additionalProperties", "minProperties", "patternProperties"),
    "array": ("items", "prefixItems", "minItems", "contains", "uniqueItems"),
    "string": ("minLength", "maxLength", "pattern", "format"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "boolean": (),
    "null": (),
}
_DEPENDENT = ("dependentRequired", "dependencies")


class Part(NamedTuple):
    pointer: str  # where the schema is, as jsonschema_rs names it
    schema: Any  # an object or a boolean

    def at(self, *keys: str | int) -> "Part":
        pointer, schema = self
        for key in keys:
            pointer += "/" + str(key).replace("~", "~0").replace("/", "~1")
            schema = schema[key]
        return Part(pointer, schema)


ANYTHING = Part("", True)
Parts = tuple[Part, ...]


def choices(part: Part) -> list[list[Parts]]:
    """For each keyword with alternatives, the parts that each alternative adds."""
    schema = part.schema
    found: list[list[Parts]] = [
        [(part.at(key, index),) for index in range(len(schema[key]))] for key in ("anyOf", "oneOf") if key in schema
    ]
    if "if" in schema:
        holds = tuple(part.at(key) for key in ("if", "then") if key in schema)
        fails = tuple(part.at(key) for key in ("else",) if key in schema)
        found.append([holds, fails])
    for key in ("dependentSchemas", "dependencies"):
        for name, dependent in schema.get(key, {}).items():
            if not isinstance(dependent, list):
                found.append([(), (part.at(key, name),)])
    return found


def types(schemas: list[Json]) -> list[str]:
    """The types that all allow, in the order of the first who says; else what the keywords are about."""
    allowed: list[str] | None = None
    for schema in schemas:
        if "type" in schema:
            said = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
            allowed = said if allowed is None else _common(allowed, said)
    if allowed is not None:
        return allowed
    hinted = [kind for kind, hints in _HINTS.items() if any(hint in schema for schema in schemas for hint in hints)]
    return hinted + [kind for kind in _HINTS if kind not in hinted]


def _common(first: list[str], second: list[str]) -> list[str]:
    common = [kind for kind in first if kind in second or (kind == "integer" and "number" in second)]
    if "number" in first and "integer" in second and "integer" not in common:
        common.append("integer")
    return common


def required(schemas: list[Json]) -> list[str]:
    """What is required, and what the presence of that requires."""
    names = list(dict.fromkeys(name for schema in schemas for name in schema.get("required", ())))
    dependent = [pair for schema in schemas for key in _DEPENDENT for pair in schema.get(key, {}).items()]
    for name in names:  # it grows while we walk it
        for trigger, needed in dependent:
            if trigger == name and isinstance(needed, list):
                names += [more for more in needed if more not in names]
    return names


def most(schemas: list[Json], key: str) -> int:
    return max((int(schema[key]) for schema in schemas if key in schema), default=0)


def item(parts: Parts, index: int) -> Parts:
    """The schemas of the item at this place; in older drafts a list in `items` is what prefixItems is now."""
    found: list[Part] = []
    for part in parts:
        schema = part.schema
        prefix = "prefixItems" if "prefixItems" in schema else "items"
        if isinstance(schema.get(prefix), list):
            rest = "items" if prefix == "prefixItems" else "additionalItems"
            if index < len(schema[prefix]):
                found.append(part.at(prefix, index))
            elif rest in schema:
                found.append(part.at(rest))
        elif "items" in schema:
            found.append(part.at("items"))
    return tuple(found)
