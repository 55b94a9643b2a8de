"""Schemas as TypeScript: as openai_harmony renders them where it can, and more precise where it renders `any`."""

from functools import cache
from typing import Any

import pytest
from openai_harmony import (  # type: ignore[import-untyped]
    DeveloperContent,
    Message,
    Role,
    ToolDescription,
    load_harmony_encoding,
)

from antiphon.core.prompt import Json
from antiphon.render.harmony.typescript import render_namespace

ITEM = {
    "type": "object",
    "properties": {"x": {"type": "integer", "default": 3}, "y": {"type": "boolean"}},
    "required": ["x"],
}
SUPPORTED: dict[str, Json] = {
    "strings": {"a": {"type": "string"}, "b": {"type": "string", "description": "About b."}},
    "a title and examples": {"a": {"type": "string", "title": "A", "description": "About.", "examples": ["x", "y"]}},
    "defaults": {
        "a": {"type": "string", "default": "d"},
        "b": {"type": "number", "default": 1.5},
        "c": {"type": "boolean", "default": False},
    },
    "enums": {"a": {"type": "string", "enum": ["x", "y"], "default": "x"}},
    "several types": {"a": {"type": ["string", "null"]}, "b": {"type": ["integer", "string"], "default": -1}},
    "nullable": {"a": {"type": "string", "nullable": True}},
    "arrays": {
        "a": {"type": "array"},
        "b": {"type": "array", "items": {"type": "string"}},
        "c": {"type": "array", "items": ITEM},
    },
    "objects": {"a": ITEM, "b": {**ITEM, "description": "Inner."}},
    "one of several": {
        "a": {
            "oneOf": [{"type": "string", "default": "s"}, {"type": "number", "description": "A number."}],
            "description": "About.",
            "default": 20,
        },
        "b": {"oneOf": [{"type": "string", "description": "same"}, {"type": "boolean"}], "description": "same"},
    },
    "unknown types": {"a": {}, "b": {"type": "strange"}},
}


@cache
def _load_library() -> Any:
    return load_harmony_encoding("HarmonyGptOss")


def _render_with_library(function: Json) -> str:
    tool = ToolDescription.new(function["name"], function["description"], function["parameters"])
    message = Message.from_role_and_content(Role.DEVELOPER, DeveloperContent.new().with_function_tools([tool]))
    text: str = _load_library().decode(_load_library().render(message))
    return text.partition("# Tools\n\n")[2].removesuffix("<|end|>")


@pytest.mark.parametrize("kind", SUPPORTED)
@pytest.mark.parametrize("required", [[], ["a", "b"]])
def test_supported_schemas_are_rendered_as_by_the_library(kind: str, required: list[str]) -> None:
    schema = {"type": "object", "properties": SUPPORTED[kind], "required": required}
    function = {"name": "f", "description": "Does it.\nWell.", "parameters": schema}
    assert render_namespace("functions", "", [{"type": "function", "function": function}]) == _render_with_library(
        function
    )


def _render_types(properties: Json, **schema: Any) -> str:
    function = {"name": "f", "parameters": {"type": "object", "properties": properties, **schema}}
    return render_namespace("functions", "", [{"type": "function", "function": function}])


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "string | null"),
        ({"anyOf": [{"type": "string"}, {"type": "string"}]}, "string"),
        ({"const": "x"}, '"x"'),
        ({"enum": [1, None, "a"]}, '1 | null | "a"'),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, "Record<string, number>"),
        ({"type": "object"}, "object"),
        ({"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "number"}]}}, "(string | number)[]"),
        ({"allOf": [{"$ref": "#/$defs/Name"}]}, "string"),
        ({"$ref": "#/$defs/Name"}, "string"),
        ({"$ref": "#/$defs/Missing"}, "any"),
        ({"$ref": "#/$defs/Loop"}, "any"),
        ({"$ref": 3}, "any"),
        (True, "any"),
    ],
)
def test_schemas_beyond_the_library_are_rendered_precisely(schema: Any, expected: str) -> None:
    defs = {"Name": {"type": "string"}, "Loop": {"$ref": "#/$defs/Loop"}}
    assert f"\na?: {expected},\n" in _render_types({"a": schema}, **{"$defs": defs})


@pytest.mark.parametrize(
    ("schema", "rendered"),
    [
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "a?: any,"),
        ({"$ref": "#/$defs/Name"}, "a?: any,"),
        ({"const": "x"}, "a?: any,"),
        ({"type": "array", "items": {"type": ["string", "null"]}}, "a?: string | null[],"),
        ({"type": "string", "description": "one\n}) => any;"}, "// one\n}) => any;\na?: string,"),
    ],
)
def test_the_library_still_loses_what_is_rendered_here(schema: Json, rendered: str) -> None:
    """The library could render all schemas if it did not."""
    parameters = {"type": "object", "properties": {"a": schema}, "$defs": {"Name": {"type": "string"}}}
    assert f"\n{rendered}\n" in _render_with_library({"name": "f", "description": "", "parameters": parameters})


def test_a_recursive_schema_terminates() -> None:
    tree = {"type": "object", "properties": {"left": {"$ref": "#/$defs/Tree"}, "name": {"type": "string"}}}
    text = _render_types({"root": {"$ref": "#/$defs/Tree"}}, **{"$defs": {"Tree": tree}})
    assert text.count("left?:") == 1
    assert "left?: any," in text


def test_invalid_typescript_names_are_quoted() -> None:
    assert '\n"a b"?: string,\n' in _render_types({"a b": {"type": "string"}})
    assert '\n"a\\n}"?: string,\n' in _render_types({"a\n}": {"type": "string"}})


def test_multiline_descriptions_stay_comments() -> None:
    text = _render_types({"a": {"type": "string", "description": "one\n}) => any;\ntype evil = () => any;"}})
    assert "\n// }) => any;\n// type evil = () => any;\na?: string," in text
