"""Schemas are vetted before anything compiles them: bombs are refused at once, real ones are not."""

import json
from collections.abc import Iterable
from typing import Any

import pytest

from antiphon.errors import InvalidValue
from antiphon.limits import Limits
from antiphon.protocol.decoding.codec import decode_create
from antiphon.protocol.schemas.vetting import Vetting
from tests.protocol.decoding.recorded_requests import creates
from tests.support.cpu import cpu_time

LIMITS = Limits()
STRING = {"type": "string"}


def nested(depth: int) -> Any:
    schema: Any = {}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


def doubling(count: int) -> Any:
    """2**count copies of one string when its references are followed."""
    both = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}, {"$ref": f"#/$defs/d{n + 1}"}]} for n in range(count)}
    return {"$ref": "#/$defs/d0", "$defs": both | {f"d{count}": STRING}}


def wide(count: int) -> Any:
    return {
        "type": "object",
        "properties": {f"p{n}": {"type": "object", "properties": {"a": STRING}} for n in range(count)},
    }


DATETIME = (
    r"^(?:(?:\d\d[2468][048]|\d\d[13579][26]|\d\d0[48]|[02468][048]00|[13579][26]00)-02-29|\d{4}-(?:(?:0[13578]|1[02])"
    r"-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|(?:02)-(?:0[1-9]|1\d|2[0-8])))T[\d:.]+Z$"
)

FIT: dict[str, Any] = {
    "empty": {},
    "plain": {"type": "object", "properties": {"a": STRING}, "required": ["a"], "additionalProperties": False},
    "a tree": {
        "type": "object",
        "properties": {"value": STRING, "children": {"type": "array", "items": {"$ref": "#"}}},
    },
    "a linked list": {
        "$ref": "#/$defs/node",
        "$defs": {"node": {"properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}}},
    },
    "two that need each other": {
        "$defs": {
            "a": {"type": "object", "properties": {"b": {"$ref": "#/$defs/b"}}},
            "b": {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}},
        },
        "$ref": "#/$defs/a",
    },
    "a reference with escapes": {"$defs": {"a/b c": STRING}, "$ref": "#/$defs/a~1b%20c"},
    "shared definitions": doubling(8),
    "draft 7": {"$schema": "http://json-schema.org/draft-07/schema#", "items": [STRING], "definitions": {"a": {}}},
    "draft 4": {"type": "number", "minimum": 0, "exclusiveMinimum": True},
    "an unknown dialect": {"$schema": "https://example.com/none", "type": "object"},
    "an e-mail pattern of zod": {"pattern": r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([a-z]+)$"},
    "a time pattern of zod": {"type": "string", "pattern": DATETIME},
    "a long text": {"type": "string", "pattern": "^.{0,255}$"},
    "patterns as names": {"type": "object", "patternProperties": {"^x-": {}}},
    "an enum": {"enum": [*range(1000)]},
    "big numbers": {"minimum": -(10**30), "maximum": 1e300, "default": 10**400},
    "unknown keywords": {"x-note": {"anything": [1]}, "format": "whatever", "examples": [{"$ref": "not a reference"}]},
    "32 levels": nested(31),
}  # fmt: skip

UNFIT: dict[str, tuple[Any, str]] = {
    "a property that is no schema": ({"properties": {"foo": "bar"}}, "not of type"),
    "an unknown type": ({"type": "nope"}, "nope"),
    "required that is no list": ({"type": "object", "required": True}, "array"),
    "a broken pattern": ({"pattern": "("}, "regular expression"),
    "a broken pattern as a name": ({"patternProperties": {"(": {}}}, "regular expression"),
    "a pattern that explodes": ({"pattern": "(a{1,1000}){1,1000}"}, "too big"),
    "a pattern that explodes within": ({"items": {"not": {"pattern": "((a{1,60}){1,60}){1,60}"}}}, "too big"),
    "a long pattern": ({"pattern": "a" * 513}, "512 characters"),
    "many big patterns": ({"anyOf": [{"pattern": rf"\p{{L}}{{{n}}}"} for n in range(5, 60)]}, "pattern"),
    "33 levels": (nested(40), "deeper"),
    "many nodes": (wide(2600), "more than 5000"),
    "a bomb of references": (doubling(20), "references are followed"),
    "a longer bomb": (doubling(600), "references are followed"),
    "a large enum": ({"enum": [*range(1001)]}, "enum"),
    "many bytes": ({"description": "x" * 300_000}, "bytes"),
    "a remote reference": ({"$ref": "https://example.com/schema.json"}, "$ref"),
    "a file": ({"$ref": "file:///etc/passwd"}, "$ref"),
    "a reference to nowhere": ({"$ref": "#/$defs/none"}, "nowhere"),
    "a reference that is no string": ({"$ref": 1}, "$ref"),
    "itself": ({"$ref": "#"}, "leads back"),
    "itself by another": ({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}, "leads back"),
    "itself by allOf": ({"allOf": [{"anyOf": [{"$ref": "#"}]}]}, "leads back"),
    "itself, hidden": (
        {
            "$defs": {
                "a": {"properties": {"c": {"$ref": "#/$defs/c"}}, "anyOf": [{"$ref": "#/$defs/c"}, {}]},
                "c": {"allOf": [{"$ref": "#/$defs/a"}]},
            },
            "$ref": "#/$defs/a",
        },
        "leads back",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FIT)
def test_a_schema_that_is_fit_is_taken(name: str) -> None:
    Vetting(LIMITS).vet(FIT[name], "text.format.schema")


@pytest.mark.shows("H6.6", "H6.9")
@pytest.mark.parametrize("name", UNFIT)
def test_a_schema_that_is_unfit_is_refused_at_once_with_its_place(name: str) -> None:
    schema, reason = json.loads(json.dumps(UNFIT[name]))
    refused = pytest.raises(InvalidValue, match=r"Invalid schema for 'tools\[0\].parameters'")
    with cpu_time() as spent, refused as caught:
        Vetting(LIMITS).vet(schema, "tools[0].parameters")
    assert spent.seconds < 0.150  # 0.02 on a quiet machine
    assert caught.value.param == "tools[0].parameters"
    assert reason in caught.value.message


def test_the_schema_of_every_recorded_tool_is_fit() -> None:
    for _name, body in creates():
        for tool in body.get("tools", []):
            if tool["type"] == "function":
                Vetting(LIMITS).vet(tool["parameters"], "tools")


def vet_all(schemas: Iterable[Any]) -> None:
    vetting = Vetting(LIMITS)
    for number, schema in enumerate(schemas):
        vetting.vet(json.loads(json.dumps(schema)), f"tools[{number}].parameters")


def test_many_schemas_together_are_bounded_too() -> None:
    with pytest.raises(InvalidValue, match="together"):
        vet_all(wide(500) | {"title": str(number)} for number in range(512))


def test_patterns_of_many_schemas_together_are_bounded_whether_they_were_seen_before_or_not() -> None:
    for _again in range(2):
        with pytest.raises(InvalidValue, match="together"):
            vet_all({"pattern": f"^{number}$"} for number in range(100))


def test_a_schema_that_was_fit_under_wider_limits_is_measured_again() -> None:
    Vetting(LIMITS).vet(wide(50), "text.format.schema")
    with pytest.raises(InvalidValue):
        Vetting(Limits(schema_nodes=10)).vet(wide(50), "text.format.schema")


FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "nope"}}
GRAMMAR = {"type": "grammar", "syntax": "regex", "definition": "("}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "nope"}}}}, "text.format.schema"),
        ({"tools": [FUNCTION]}, "tools[0].parameters"),
        ({"tools": [{"type": "namespace", "name": "n", "tools": [FUNCTION]}]}, "tools[0].tools[0].parameters"),
        ({"input": [{"type": "additional_tools", "tools": [FUNCTION]}]}, "input[0].tools[0].parameters"),
        ({"tools": [{"type": "custom", "name": "c", "format": GRAMMAR}]}, "tools[0].format.definition"),
    ],
)
@pytest.mark.shows("H6.6")
def test_schemas_are_vetted_wherever_they_stand_in_a_request(body: Any, param: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        decode_create(json.dumps(body).encode(), LIMITS)
    assert caught.value.param == param
