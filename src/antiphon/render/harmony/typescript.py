"""JSON schemas → TypeScript, the notation in which gpt-oss models were trained to read tool declarations.

Constructs from the training format are written exactly in that format, as `openai_harmony` writes them. Constructs
outside of it are written as plain TypeScript, where that library loses information: it writes `any` for anyOf, $ref,
allOf and const, so every optional field of a Pydantic model, `{}` for maps, `string | null[]` for an array of optional
strings, names without quotes, and the second line of a description outside of its comment. Schemas are validated
before, so their size and the size of the output are bounded.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

from antiphon.core.prompt import Json
from antiphon.protocol.schemas.schema_edits import find_reference

ANY: Final = "any"
NULL: Final = "null"
MAX_DEPTH: Final = 32

_SIMPLE: Final = {"string": "string", "number": "number", "integer": "number", "boolean": "boolean", "null": NULL}
_UNIONS: Final = ("anyOf", "oneOf")


def render_namespace(name: str, description: str, tools: Iterable[Json]) -> str:
    """Render one namespace of tools, passed as chat function schemas, as a section of the prompt."""
    functions = [tool["function"] for tool in tools]
    description_lines = _comment_lines(description) if functions else description.splitlines()
    lines = [f"## {name}", "", *description_lines]
    if functions:
        lines += [f"namespace {name} {{", ""]
        for function in functions:
            lines += [*_comment_lines(function.get("description") or ""), _render_function(function), ""]
        lines.append(f"}} // namespace {name}")
    return "\n".join(lines)


def _render_function(function: Json) -> str:
    schema = function.get("parameters") or {}
    if not _resolve_schema(schema, schema).get("properties"):
        return f"type {function['name']} = () => any;"
    return f"type {function['name']} = (_: {_TypeRenderer(schema).render_type(schema, '', ())}) => any;"


class _TypeRenderer:
    """Renders schemas as types. `root` resolves references; `references` led to the current schema."""

    def __init__(self, root: Json) -> None:
        self._root = root

    def render_type(self, raw_schema: Any, indent: str, references: tuple[str, ...]) -> str:
        reference = raw_schema.get("$ref") if isinstance(raw_schema, dict) else None
        if reference in references or len(references) > MAX_DEPTH:
            return ANY
        schema = _resolve_schema(raw_schema, self._root)
        references = (*references, reference) if isinstance(reference, str) else references
        for keyword in _UNIONS:
            if isinstance(variants := schema.get(keyword), list) and variants:
                return self._render_union(schema, variants, indent, references)
        if "enum" in schema or "const" in schema:
            return _render_literals(schema)
        kinds = schema.get("type")
        if isinstance(kinds, list):
            return " | ".join([self._render_kind(str(kind), schema, indent, references) for kind in kinds]) or ANY
        return self._render_kind(kinds if isinstance(kinds, str) else _guess_type(schema), schema, indent, references)

    def _render_kind(self, kind: str, schema: Json, indent: str, references: tuple[str, ...]) -> str:
        match kind:
            case "object":
                return self._render_object(schema, indent, references)
            case "array" if isinstance(schema.get("items"), dict):
                inner = self.render_type(schema["items"], indent, references)
                return f"({inner})[]" if " | " in inner and not inner.startswith("{") else f"{inner}[]"
            case "array":
                return "Array<any>"
            case _:
                return _SIMPLE.get(kind, ANY)

    def _render_union(self, schema: Json, variants: Sequence[Any], indent: str, references: tuple[str, ...]) -> str:
        """Render on one line if all variants are simple, the common case: `string | null`."""
        types = [self.render_type(variant, f"{indent}   ", references) for variant in variants]
        simple = all("\n" not in text for text in types)
        if simple and not any(_trailing_notes(variant) for variant in variants):
            return " | ".join(dict.fromkeys(types))
        return "".join(
            [
                f"\n{indent} | {text}{_trailing_comment(_trailing_notes(source))}"
                for text, source in zip(types, variants, strict=True)
            ]
        )

    def _render_object(self, schema: Json, indent: str, references: tuple[str, ...]) -> str:
        properties = schema.get("properties")
        comments = [f"{indent}{line}" for line in _comment_lines(schema.get("description"))]
        if not isinstance(properties, dict) or not properties:
            return self._render_map(schema.get("additionalProperties"), indent, references)
        required = schema.get("required")
        required_names = required if isinstance(required, list) else []
        lines = [
            line
            for key, property_schema in properties.items()
            for line in self._render_property(key, property_schema, key in required_names, indent, references)
        ]
        return "\n".join([*comments, "{", *lines, f"{indent}}}"])

    def _render_map(self, values: Any, indent: str, references: tuple[str, ...]) -> str:
        value_type = self.render_type(values, indent, references) if isinstance(values, dict) and values else ANY
        return f"Record<string, {value_type}>" if value_type != ANY else "object"

    def _render_property(
        self, key: str, raw_schema: Any, required: bool, indent: str, references: tuple[str, ...]
    ) -> list[str]:
        schema = raw_schema if isinstance(raw_schema, dict) else {}
        optional_marker = "" if required else "?"
        name = key if key.isidentifier() and key.isascii() else _to_json(key)
        variants = schema.get("oneOf")
        if isinstance(variants, list) and variants:
            return self._render_alternatives(f"{indent}{name}{optional_marker}:", schema, variants, indent, references)
        type_ = self.render_type(raw_schema, f"{indent}    ", references)
        if schema.get("nullable") is True and NULL not in type_:
            type_ += " | null"
        return [
            *_leading_comments(schema, indent),
            f"{indent}{name}{optional_marker}: {type_},{_trailing_comment(_default_note(schema))}",
        ]

    def _render_alternatives(
        self, head: str, schema: Json, variants: list[Any], indent: str, references: tuple[str, ...]
    ) -> list[str]:
        """Render a property of several types, each on its own line with its own description."""
        description = schema.get("description")
        first = variants[0].get("description") if isinstance(variants[0], dict) else None
        above = _leading_comments({**schema, "description": None} if description == first else schema, indent)
        lines = [*above, *[f"{indent}// {note}" for note in _default_note(schema)], head]
        for number, variant in enumerate(variants):
            omit_description = number == 0 and description and description != first
            notes = (
                _default_note(variant)
                if omit_description or not isinstance(variant, dict)
                else _trailing_notes(variant, excluded=description)
            )
            lines.append(
                f"{indent} | {self.render_type(variant, f'{indent}   ', references)}{_trailing_comment(notes)}"
            )
        return [*lines, f"{indent},"]


def _resolve_schema(raw_schema: Any, root: Json) -> Json:
    """Resolve `$ref` and an `allOf` with one element; keywords beside them are merged in."""
    schema: Json = raw_schema if isinstance(raw_schema, dict) else {}
    for _ in range(MAX_DEPTH):
        reference = schema.get("$ref")
        if isinstance(reference, str):
            found = find_reference(reference, root)
            siblings = {key: value for key, value in schema.items() if key != "$ref"}
            schema = {**found, **siblings} if isinstance(found, dict) else siblings
            continue
        parts = schema.get("allOf")
        if not (isinstance(parts, list) and len(parts) == 1 and isinstance(parts[0], dict)):
            break
        schema = {**parts[0], **{key: value for key, value in schema.items() if key != "allOf"}}
    return schema


def _guess_type(schema: Json) -> str:
    return "object" if "properties" in schema else "array" if "items" in schema else ANY


def _render_literals(schema: Json) -> str:
    values = schema["enum"] if isinstance(schema.get("enum"), list) else [schema.get("const")]
    if schema.get("type") == "string":
        values = [value for value in values if isinstance(value, str)]
        return " | ".join([f'"{value}"' for value in values]) or "string"
    return " | ".join([_to_json(value) for value in values]) or ANY


def _leading_comments(schema: Json, indent: str) -> list[str]:
    """Return the comments before a property: title, description and examples."""
    lines = [*_comment_lines(schema.get("title")), "//"] if isinstance(schema.get("title"), str) else []
    lines += _comment_lines(schema.get("description"))
    examples = schema.get("examples")
    if isinstance(examples, list) and examples:
        lines += ["// Examples:", *[f'// - "{example}"' for example in examples if isinstance(example, str)]]
    return [f"{indent}{line}" for line in lines]


def _trailing_notes(schema: Any, excluded: Any = None) -> list[str]:
    """Return the notes after a variant: description, unless it equals `excluded`, and default value."""
    if not isinstance(schema, dict):
        return []
    description = schema.get("description")
    notes = [" ".join(description.split())] if isinstance(description, str) and description != excluded else []
    return [*notes, *_default_note(schema)]


def _default_note(schema: Any) -> list[str]:
    if not isinstance(schema, dict) or "default" not in schema:
        return []
    value = schema["default"]
    unquoted = isinstance(value, str) and bool(schema.get("enum"))
    return [f"default: {value if unquoted else _to_json(value)}"]


def _trailing_comment(notes: Sequence[str]) -> str:
    return f" // {' '.join(notes)}" if notes else ""


def _comment_lines(text: Any) -> list[str]:
    return [f"// {line}" for line in text.splitlines()] if isinstance(text, str) else []


def _to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
