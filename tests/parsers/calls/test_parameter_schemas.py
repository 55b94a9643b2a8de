"""The types that a schema allows for a parameter."""

import pytest

from antiphon.core.prompt import Json
from antiphon.parsers.calls.parameter_schemas import ANY, UNKNOWN, Offered, Parameters
from tests.parsers.calls.parsed_calls import tool


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
    offered = tool("f", a=schema)
    offered["f"]["function"]["parameters"]["$defs"] = {"color": {"type": "string"}, "loop": {"$ref": "#/$defs/loop"}}
    assert Parameters(offered["f"]).types("a") == types


def test_a_schema_may_stand_without_the_function_around_it() -> None:
    assert Parameters(tool("f", a={"type": "string"})["f"]["function"]).types("a") == {"string"}


@pytest.mark.parametrize(
    "bad", [{}, {"function": None}, {"function": {"parameters": 3}}, {"parameters": {"properties": 1}}]
)
def test_of_what_is_no_schema_nothing_is_known(bad: Json) -> None:
    assert Parameters(bad).types("a") is ANY
    assert Parameters(bad).names == ()


def test_of_a_tool_that_is_not_offered_nothing_is_known() -> None:
    offered = Offered(tool("f", a={"type": "string"}, b={}))
    assert "f" in offered
    assert "g" not in offered
    assert offered.parameters("f").names == ("a", "b")
    assert offered.parameters("g") is UNKNOWN
