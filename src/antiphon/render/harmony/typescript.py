"""JSON schemas → TypeScript, the language in which gpt-oss models have learned to be told of their tools.

What they have seen in training is written as they have seen it. What nobody wrote that way (anyOf, $ref, const, maps)
is written as TypeScript would, since `any` tells a model nothing. Schemas are vetted: they are bounded, and so is this.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

from antiphon.core.prompt import Json

ANY: Final = "any"
NULL: Final = "null"
DEEPEST: Final = 32

_SIMPLE: Final = {"string": "string", "number": "number", "integer": "number", "boolean": "boolean", "null": NULL}
_UNIONS: Final = ("anyOf", "oneOf")


def namespace(name: str, description: str, tools: Iterable[Json]) -> str:
    """A section of a prompt: tools of one namespace, given as chat function schemas."""
    functions = [tool["function"] for tool in tools]
    about = _comment(description) if functions else description.splitlines()
    lines = [f"## {name}", "", *about]
    if functions:
        lines += [f"namespace {name} {{", ""]
        for function in functions:
            lines += [*_comment(function.get("description") or ""), _function(function), ""]
        lines.append(f"}} // namespace {name}")
    return "\n".join(lines)


def _function(function: Json) -> str:
    schema = function.get("parameters") or {}
    if not _resolved(schema, schema, ()).get("properties"):
        return f"type {function['name']} = () => any;"
    return f"type {function['name']} = (_: {_Writer(schema).type(schema, '', ())}) => any;"


class _Writer:
    """`root`: the schema that references are looked up in. `within`: the references that led here."""

    def __init__(self, root: Json) -> None:
        self._root = root

    def type(self, given: Any, indent: str, within: tuple[str, ...]) -> str:
        reference = given.get("$ref") if isinstance(given, dict) else None
        if reference in within or len(within) > DEEPEST:
            return ANY
        schema = _resolved(given, self._root, within)
        within = (*within, reference) if isinstance(reference, str) else within
        for word in _UNIONS:
            if isinstance(variants := schema.get(word), list) and variants:
                return self._union(schema, variants, indent, within)
        if "enum" in schema or "const" in schema:
            return _literals(schema)
        kinds = schema.get("type")
        if isinstance(kinds, list):
            return " | ".join([self._kind(str(kind), schema, indent, within) for kind in kinds]) or ANY
        return self._kind(kinds if isinstance(kinds, str) else _guessed(schema), schema, indent, within)

    def _kind(self, kind: str, schema: Json, indent: str, within: tuple[str, ...]) -> str:
        match kind:
            case "object":
                return self._object(schema, indent, within)
            case "array" if isinstance(schema.get("items"), dict):
                inner = self.type(schema["items"], indent, within)
                return f"({inner})[]" if " | " in inner and not inner.startswith("{") else f"{inner}[]"
            case "array":
                return "Array<any>"
            case _:
                return _SIMPLE.get(kind, ANY)

    def _union(self, schema: Json, variants: Sequence[Any], indent: str, within: tuple[str, ...]) -> str:
        """In one line if all are simple, as they mostly are: `string | null`."""
        types = [self.type(variant, f"{indent}   ", within) for variant in variants]
        simple = all("\n" not in one for one in types)
        if simple and not any(_notes(variant) for variant in variants):
            return " | ".join(dict.fromkeys(types))
        return "".join([f"\n{indent} | {one}{_aside(_notes(each))}" for one, each in zip(types, variants, strict=True)])

    def _object(self, schema: Json, indent: str, within: tuple[str, ...]) -> str:
        properties = schema.get("properties")
        about = [f"{indent}{line}" for line in _comment(schema.get("description"))]
        if not isinstance(properties, dict) or not properties:
            return self._map(schema.get("additionalProperties"), indent, within)
        required = schema.get("required")
        named = required if isinstance(required, list) else []
        lines = [
            line for key, each in properties.items() for line in self._property(key, each, key in named, indent, within)
        ]
        return "\n".join([*about, "{", *lines, f"{indent}}}"])

    def _map(self, values: Any, indent: str, within: tuple[str, ...]) -> str:
        of = self.type(values, indent, within) if isinstance(values, dict) and values else ANY
        return f"Record<string, {of}>" if of != ANY else "object"

    def _property(self, key: str, given: Any, required: bool, indent: str, within: tuple[str, ...]) -> list[str]:
        schema = given if isinstance(given, dict) else {}
        mark = "" if required else "?"
        name = key if key.isidentifier() and key.isascii() else _json(key)
        variants = schema.get("oneOf")
        if isinstance(variants, list) and variants:
            return self._alternatives(f"{indent}{name}{mark}:", schema, variants, indent, within)
        type_ = self.type(given, f"{indent}    ", within)
        if schema.get("nullable") is True and NULL not in type_:
            type_ += " | null"
        return [*_above(schema, indent), f"{indent}{name}{mark}: {type_},{_aside(_default(schema))}"]

    def _alternatives(
        self, head: str, schema: Json, variants: list[Any], indent: str, within: tuple[str, ...]
    ) -> list[str]:
        """A property of several types, each with a line and words of its own."""
        described = schema.get("description")
        first = variants[0].get("description") if isinstance(variants[0], dict) else None
        above = _above({**schema, "description": None} if described == first else schema, indent)
        lines = [*above, *[f"{indent}// {note}" for note in _default(schema)], head]
        for number, variant in enumerate(variants):
            silent = number == 0 and described and described != first
            notes = _default(variant) if silent or not isinstance(variant, dict) else _notes(variant, besides=described)
            lines.append(f"{indent} | {self.type(variant, f'{indent}   ', within)}{_aside(notes)}")
        return [*lines, f"{indent},"]


def _resolved(given: Any, root: Json, within: tuple[str, ...]) -> Json:
    """Without references, and without an allOf of one: what stands beside them counts too."""
    schema: Json = given if isinstance(given, dict) else {}
    for _ in range(DEEPEST):
        reference = schema.get("$ref")
        if isinstance(reference, str):
            found = _found(reference, root)
            schema = {**found, **{key: value for key, value in schema.items() if key != "$ref"}}
            continue
        parts = schema.get("allOf")
        if not (isinstance(parts, list) and len(parts) == 1 and isinstance(parts[0], dict)):
            break
        schema = {**parts[0], **{key: value for key, value in schema.items() if key != "allOf"}}
    return schema


def _found(reference: str, root: Json) -> Json:
    place: Any = root
    for step in reference.removeprefix("#").split("/")[1:]:
        place = place.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(place, dict) else None
    return place if isinstance(place, dict) else {}


def _guessed(schema: Json) -> str:
    return "object" if "properties" in schema else "array" if "items" in schema else ANY


def _literals(schema: Json) -> str:
    values = schema["enum"] if isinstance(schema.get("enum"), list) else [schema.get("const")]
    if schema.get("type") == "string":
        values = [value for value in values if isinstance(value, str)]
        return " | ".join([f'"{value}"' for value in values]) or "string"
    return " | ".join([_json(value) for value in values]) or ANY


def _above(schema: Json, indent: str) -> list[str]:
    """Comments before a property: its title, its description, its examples."""
    lines = [*_comment(schema.get("title")), "//"] if isinstance(schema.get("title"), str) else []
    lines += _comment(schema.get("description"))
    examples = schema.get("examples")
    if isinstance(examples, list) and examples:
        lines += ["// Examples:", *[f'// - "{example}"' for example in examples if isinstance(example, str)]]
    return [f"{indent}{line}" for line in lines]


def _notes(schema: Any, besides: Any = None) -> list[str]:
    """Comments after a variant: what it is, and what it is when nothing is said."""
    if not isinstance(schema, dict):
        return []
    description = schema.get("description")
    told = [" ".join(description.split())] if isinstance(description, str) and description != besides else []
    return [*told, *_default(schema)]


def _default(schema: Any) -> list[str]:
    if not isinstance(schema, dict) or "default" not in schema:
        return []
    value = schema["default"]
    bare = isinstance(value, str) and bool(schema.get("enum"))
    return [f"default: {value if bare else _json(value)}"]


def _aside(notes: Sequence[str]) -> str:
    return f" // {' '.join(notes)}" if notes else ""


def _comment(text: Any) -> list[str]:
    return [f"// {line}" for line in text.splitlines()] if isinstance(text, str) else []


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
