"""The types that a schema allows for a parameter."""

import pytest

from antiphon.core.prompt import Json
from antiphon.parsers.calls.typed_values import ANY, ToolParameters
from tests.parsers.calls.parsed_calls import make_tool


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"type": "string"}, {"string"}),
        ({"type": ["integer", "null"]}, {"integer", "null"}),
        ({"type": "int"}, {"integer"}),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, {"integer", "null"}),
        ({"oneOf": [{"type": "integer"}, {"type": "array"}]}, {"integer", "array"}),
        ({"anyOf": [{"type": "integer"}, {}]}, set()),
        ({"allOf": [{"type": "integer"}, {"minimum": 3}]}, {"integer"}),
        ({"enum": ["a", 1, None, True]}, {"string", "number", "null", "boolean"}),
        ({"const": [1]}, {"array"}),
        ({"properties": {}}, {"object"}),
        ({"items": {}}, {"array"}),
        ({"$ref": "#/$defs/color"}, {"string"}),
        ({"$ref": "#/$defs/loop"}, set()),
        ({"$ref": "https://example.com"}, set()),
        ({"description": "anything"}, set()),
        ("no schema", set()),
    ],
)
def test_a_parameter_has_the_types_of_its_schema(schema: Json, types: set[str]) -> None:
    offered = make_tool("f", a=schema)
    offered["f"]["function"]["parameters"]["$defs"] = {"color": {"type": "string"}, "loop": {"$ref": "#/$defs/loop"}}
    assert ToolParameters(offered["f"]).get_types("a") == types


def test_a_schema_may_lack_the_function_around_it() -> None:
    assert ToolParameters(make_tool("f", a={"type": "string"})["f"]["function"]).get_types("a") == {"string"}


@pytest.mark.parametrize(
    "bad", [{}, {"function": None}, {"function": {"parameters": 3}}, {"parameters": {"properties": 1}}]
)
def test_an_invalid_schema_allows_any_type(bad: Json) -> None:
    assert ToolParameters(bad).get_types("a") is ANY
    assert ToolParameters(bad).names == ()


def test_an_unoffered_tool_has_unknown_parameters() -> None:
    offered = make_tool("f", a={"type": "string"}, b={})
    assert ToolParameters(offered["f"]).names == ("a", "b")
    assert ToolParameters(offered.get("g")).names == ()
