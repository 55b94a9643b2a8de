"""JSON Schemas are vetted before compilation: schema bombs are rejected quickly, real schemas pass."""

import json
from collections.abc import Iterable
from typing import Any

import pytest

from antiphon.errors import InvalidValue
from antiphon.limits import Limits
from antiphon.protocol.decoding.codec import decode_create
from antiphon.protocol.schemas.vetting import SchemaVetter
from tests.protocol.decoding.recorded_requests import iter_create_requests
from tests.support.cpu import cpu_timer

LIMITS = Limits()
STRING = {"type": "string"}


def make_nested(depth: int) -> Any:
    schema: Any = {}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


def make_doubling(count: int) -> Any:
    """Return a schema whose references expand to 2**count copies of one string."""
    both = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}, {"$ref": f"#/$defs/d{n + 1}"}]} for n in range(count)}
    return {"$ref": "#/$defs/d0", "$defs": both | {f"d{count}": STRING}}


def make_wide(count: int) -> Any:
    return {
        "type": "object",
        "properties": {f"p{n}": {"type": "object", "properties": {"a": STRING}} for n in range(count)},
    }


DATETIME = (
    r"^(?:(?:\d\d[2468][048]|\d\d[13579][26]|\d\d0[48]|[02468][048]00|[13579][26]00)-02-29|\d{4}-(?:(?:0[13578]|1[02])"
    r"-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|(?:02)-(?:0[1-9]|1\d|2[0-8])))T[\d:.]+Z$"
)

VALID: dict[str, Any] = {
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
    "mutually recursive definitions": {
        "$defs": {
            "a": {"type": "object", "properties": {"b": {"$ref": "#/$defs/b"}}},
            "b": {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}},
        },
        "$ref": "#/$defs/a",
    },
    "a reference with escapes": {"$defs": {"a/b c": STRING}, "$ref": "#/$defs/a~1b%20c"},
    "shared definitions": make_doubling(8),
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
    "32 levels": make_nested(31),
}  # fmt: skip

INVALID: dict[str, tuple[Any, str]] = {
    "a property that is no schema": ({"properties": {"foo": "bar"}}, "not of type"),
    "an unknown type": ({"type": "nope"}, "nope"),
    "required that is no list": ({"type": "object", "required": True}, "array"),
    "a broken pattern": ({"pattern": "("}, "regular expression"),
    "a broken pattern as a name": ({"patternProperties": {"(": {}}}, "regular expression"),
    "a pattern that explodes": ({"pattern": "(a{1,1000}){1,1000}"}, "too big"),
    "a pattern that explodes within": ({"items": {"not": {"pattern": "((a{1,60}){1,60}){1,60}"}}}, "too big"),
    "a long pattern": ({"pattern": "a" * 513}, "512 characters"),
    "many big patterns": ({"anyOf": [{"pattern": rf"\p{{L}}{{{n}}}"} for n in range(5, 60)]}, "pattern"),
    "33 levels": (make_nested(40), "deeper"),
    "many nodes": (make_wide(2600), "more than 5000"),
    "a bomb of references": (make_doubling(20), "references are followed"),
    "a longer bomb": (make_doubling(600), "references are followed"),
    "a large enum": ({"enum": [*range(1001)]}, "enum"),
    "many bytes": ({"description": "x" * 300_000}, "bytes"),
    "a remote reference": ({"$ref": "https://example.com/schema.json"}, "$ref"),
    "a file": ({"$ref": "file:///etc/passwd"}, "$ref"),
    "a reference to nowhere": ({"$ref": "#/$defs/none"}, "nowhere"),
    "a reference that is no string": ({"$ref": 1}, "$ref"),
    "a reference to itself": ({"$ref": "#"}, "leads back"),
    "a cycle of two references": ({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}, "leads back"),
    "a cycle through allOf": ({"allOf": [{"anyOf": [{"$ref": "#"}]}]}, "leads back"),
    "a hidden cycle": (
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


@pytest.mark.parametrize("name", VALID)
def test_a_valid_schema_passes(name: str) -> None:
    SchemaVetter(LIMITS).vet(VALID[name], "text.format.schema")


@pytest.mark.shows("H6.6", "H6.9")
@pytest.mark.parametrize("name", INVALID)
def test_an_invalid_schema_is_rejected_quickly_with_its_parameter_name(name: str) -> None:
    schema, reason = json.loads(json.dumps(INVALID[name]))
    refused = pytest.raises(InvalidValue, match=r"Invalid schema for 'tools\[0\].parameters'")
    with cpu_timer() as spent, refused as caught:
        SchemaVetter(LIMITS).vet(schema, "tools[0].parameters")
    assert spent.seconds < 0.150  # 0.02 on an idle machine
    assert caught.value.param == "tools[0].parameters"
    assert reason in caught.value.message


def test_the_schema_of_every_recorded_tool_passes() -> None:
    for _name, body in iter_create_requests():
        for tool in body.get("tools", []):
            if tool["type"] == "function":
                SchemaVetter(LIMITS).vet(tool["parameters"], "tools")


def vet_all(schemas: Iterable[Any]) -> None:
    vetting = SchemaVetter(LIMITS)
    for number, schema in enumerate(schemas):
        vetting.vet(json.loads(json.dumps(schema)), f"tools[{number}].parameters")


def test_the_total_size_of_all_schemas_is_limited() -> None:
    with pytest.raises(InvalidValue, match="together"):
        vet_all(make_wide(500) | {"title": str(number)} for number in range(512))


def test_the_total_size_of_all_patterns_is_limited_whether_cached_or_not() -> None:
    for _again in range(2):
        with pytest.raises(InvalidValue, match="together"):
            vet_all({"pattern": f"^{number}$"} for number in range(100))


def test_a_schema_is_checked_again_under_tighter_limits() -> None:
    SchemaVetter(LIMITS).vet(make_wide(50), "text.format.schema")
    with pytest.raises(InvalidValue):
        SchemaVetter(Limits(schema_nodes=10)).vet(make_wide(50), "text.format.schema")


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
def test_schemas_are_vetted_everywhere_in_a_request(body: Any, param: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        decode_create(json.dumps(body).encode(), LIMITS)
    assert caught.value.param == param
