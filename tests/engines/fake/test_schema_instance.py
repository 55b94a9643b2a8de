"""The smallest valid instance of a JSON schema, checked with jsonschema_rs: a table of cases, rejected schemas, and
schemas drawn by hypothesis.
"""

import json
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.engines.fake.schema_instance import smallest_instance
from antiphon.errors import InvalidValue
from antiphon.protocol.schemas.grammars import has_lark
from tests.support.cpu import cpu_timer

Schema = dict[str, Any]


def strict_object(**properties: Any) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def make_case(schema: Any, instance: Any) -> tuple[Any, str]:
    return schema, json.dumps(instance, ensure_ascii=False, separators=(",", ":"))


DRAFT7 = "http://json-schema.org/draft-07/schema#"
TREE = {
    "$defs": {"tree": strict_object(kids={"type": "array", "items": {"$ref": "#/$defs/tree"}})},
    "$ref": "#/$defs/tree",
}
LIST = strict_object(value={"type": "integer"}, next={"anyOf": [{"$ref": "#"}, {"type": "null"}]})
SUM = {
    "$defs": {
        "term": {
            "oneOf": [
                strict_object(op={"const": "+"}, left={"$ref": "#/$defs/term"}, right={"$ref": "#/$defs/term"}),
                strict_object(op={"const": "n"}, value={"type": "number"}),
            ]
        }
    },
    "$ref": "#/$defs/term",
}
NESTED = {"$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}, "maxItems": 1}}, "$ref": "#/$defs/a"}

TABLE = [
    make_case({}, {}),
    make_case(True, {}),
    make_case({"type": "object"}, {}),
    make_case({"type": "array"}, []),
    make_case({"type": "string"}, ""),
    make_case({"type": "integer"}, 0),
    make_case({"type": "number"}, 0),
    make_case({"type": "boolean"}, False),
    make_case({"type": "null"}, None),
    make_case({"type": ["string", "null"]}, ""),
    make_case({"type": ["null", "string"]}, None),
    make_case({"const": [1, {"a": None}]}, [1, {"a": None}]),
    make_case({"enum": ["red", "r"]}, "red"),
    make_case({"enum": [1, 2, 3], "minimum": 2}, 2),
    make_case({"type": "string", "enum": [1, "a"]}, "a"),
    # strings
    make_case({"type": "string", "minLength": 3, "maxLength": 5}, "xxx"),
    make_case({"allOf": [{"pattern": "^a"}, {"pattern": "b$"}, {"enum": ["a", "b", "ab"]}]}, "ab"),
    make_case({"minLength": 1}, "x"),
    make_case({"type": "string", "format": "date-time"}, "1970-01-01T00:00:00Z"),
    make_case({"type": "string", "format": "date"}, "1970-01-01"),
    make_case({"type": "string", "format": "time"}, "00:00:00Z"),
    make_case({"type": "string", "format": "duration"}, "P0D"),
    make_case({"type": "string", "format": "uuid"}, "00000000-0000-0000-0000-000000000000"),
    make_case({"type": "string", "format": "email"}, "a@a.aa"),
    make_case({"type": "string", "format": "email", "minLength": 10}, "xxxxa@a.aa"),
    make_case({"type": "string", "format": "uri"}, "http://a.a"),
    make_case({"type": "string", "format": "hostname"}, "a.a"),
    make_case({"type": "string", "format": "ipv4"}, "0.0.0.0"),
    make_case({"type": "string", "format": "ipv6"}, "::"),
    make_case({"type": "string", "format": "binary"}, ""),
    # numbers
    make_case({"type": "integer", "minimum": 3}, 3),
    make_case({"type": "integer", "exclusiveMinimum": 3}, 4),
    make_case({"type": "integer", "maximum": -7}, -7),
    make_case({"type": "integer", "exclusiveMaximum": -7}, -8),
    make_case({"type": "integer", "minimum": 7, "multipleOf": 5}, 10),
    make_case({"type": "number", "minimum": 0.3, "multipleOf": 0.25}, 0.5),
    make_case({"type": "number", "multipleOf": 0.1, "minimum": 0.7}, 0.7),
    make_case({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}, 0.5),
    make_case({"allOf": [{"multipleOf": 4}, {"multipleOf": 6}, {"type": "integer", "minimum": 1}]}, 12),
    make_case({"allOf": [{"type": "number"}, {"type": "integer"}]}, 0),
    make_case({"type": "integer", "minimum": 2.5}, 3),
    make_case(
        {
            "$schema": "http://json-schema.org/draft-04/schema#",
            "type": "number",
            "minimum": 0,
            "exclusiveMinimum": True,
        },
        1,
    ),
    # objects
    make_case(strict_object(a={"type": "string"}, b={"type": "integer", "minimum": 1}), {"a": "", "b": 1}),
    make_case({"type": "object", "properties": {"a": {"type": "string"}}}, {}),
    make_case({"type": "object", "required": ["a"]}, {"a": {}}),
    make_case({"type": "object", "required": ["a"], "additionalProperties": {"type": "null"}}, {"a": None}),
    make_case({"type": "object", "minProperties": 1, "properties": {"a": {"const": 1}}}, {"a": 1}),
    make_case({"type": "object", "properties": {"~/ %é": {"const": 1}}, "required": ["~/ %é"]}, {"~/ %é": 1}),
    # arrays
    make_case({"type": "array", "items": {"type": "integer"}, "minItems": 2}, [0, 0]),
    make_case({"type": "array", "items": {"type": "integer"}, "minItems": 4, "uniqueItems": True}, [0, 1, -1, 2]),
    make_case({"type": "array", "items": {"type": "string"}, "minItems": 3, "uniqueItems": True}, ["", "x", "xx"]),
    make_case({"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 2, "uniqueItems": True}, ["a", "b"]),
    make_case({"prefixItems": [{"type": "string"}, {"const": 1}], "items": False, "minItems": 2}, ["", 1]),
    make_case({"prefixItems": [{"const": 1}], "items": {"const": 2}, "minItems": 3}, [1, 2, 2]),
    make_case({"$schema": DRAFT7, "items": [{"const": 1}], "additionalItems": {"const": 2}, "minItems": 2}, [1, 2]),
    # alternatives
    make_case({"anyOf": [{"type": "string", "minLength": 3}, {"type": "null"}]}, "xxx"),
    make_case({"anyOf": [False, {"type": "null"}]}, None),
    make_case({"oneOf": [{"type": "integer"}, {"minimum": -5}]}, -6),
    make_case(
        {"allOf": [strict_object(a={"minimum": 2}), {"properties": {"a": {"type": "integer", "multipleOf": 3}}}]},
        {"a": 3},
    ),
    make_case({"anyOf": [{"required": ["a"]}, {"required": ["b"]}], "type": "object"}, {"a": {}}),
    # references
    make_case({"$ref": "#/$defs/a", "$defs": {"a": {"type": "string", "minLength": 1}}}, "x"),
    make_case({"$ref": "#/$defs/a%20b", "$defs": {"a b": {"const": 1}}}, 1),
    make_case({"$ref": "#/$defs/a", "minimum": 4, "$defs": {"a": {"type": "integer"}}}, 4),
    make_case({"$ref": "#"}, {}),
    make_case(TREE, {"kids": []}),
    make_case(LIST, {"value": 0, "next": None}),
    make_case(SUM, {"op": "n", "value": 0}),
    make_case(NESTED, []),
]


@pytest.mark.parametrize(("schema", "instance"), TABLE)
def test_the_smallest_instance_is_found_and_valid(schema: Any, instance: str) -> None:
    found = smallest_instance(schema)
    assert jsonschema_rs.validator_for(schema, validate_formats=True).is_valid(json.loads(found))
    assert found == instance


@pytest.mark.parametrize(
    "schema",
    [
        False,
        {"type": "integer", "minimum": 10, "maximum": 5},
        {"type": "string", "const": 1},
        {"type": "array", "minItems": 2, "maxItems": 1},
        {"type": "array", "items": {"type": "boolean"}, "minItems": 3, "uniqueItems": True},
        {"type": "object", "required": ["a"], "properties": {"a": False}},
        {"type": "object", "required": ["a"], "maxProperties": 0},
        {"allOf": [{"type": "string"}, {"type": "integer"}]},
        {"not": {}},
        {"$defs": {"a": strict_object(a={"$ref": "#/$defs/a"})}, "$ref": "#/$defs/a"},
        {"type": "array", "minItems": 10**9},
        {"type": "string", "minLength": 10**9},
        {"type": "array", "minItems": 9000, "items": {"type": "array", "minItems": 9000}},
    ],
)
def test_an_unsatisfiable_schema_is_rejected_quickly(schema: Any) -> None:
    with cpu_timer() as spent, pytest.raises(InvalidValue, match="no valid instance"):
        smallest_instance(schema)
    assert spent.seconds < 2


@pytest.mark.parametrize(
    "schema", [{"type": "nope"}, {"$ref": "#/nowhere"}, {"pattern": "("}, {"$ref": "http://127.0.0.1:9/schema"}]
)
def test_an_invalid_schema_is_rejected_and_no_reference_is_fetched(schema: Schema) -> None:
    with pytest.raises(InvalidValue, match="cannot read this JSON schema"):
        smallest_instance(schema)


def test_doubling_references_do_not_explode() -> None:
    doubling = {f"d{level}": {"allOf": [{"$ref": f"#/$defs/d{level + 1}"}] * 2} for level in range(10)}
    schema = {"$ref": "#/$defs/d0", "$defs": {**doubling, "d10": {"type": "integer"}}}
    with cpu_timer() as spent:
        assert smallest_instance(schema) == "0"
    assert spent.seconds < 2


def test_a_large_strict_schema_is_filled_in() -> None:
    schema = strict_object(
        **{f"p{number}": strict_object(a={"enum": ["x"]}, b={"type": ["integer", "null"]}) for number in range(300)}
    )
    assert json.loads(smallest_instance(schema))["p299"] == {"a": "x", "b": 0}


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({"type": "string", "not": {"type": "string"}}, "keyword at '/not'"),
        ({"type": "array", "contains": {"const": 7}}, "keyword at '/contains'"),
        (
            strict_object(a={"required": ["b"], "dependentRequired": {"b": ["c"]}}),
            "at '/properties/a/dependentRequired'",
        ),
        ({"type": "string", "minLength": 3, "maxLength": 2}, 'it cannot satisfy {"type": "string", "minLength": 3'),
        ({"$ref": "#here", "$defs": {"a": {"$anchor": "here"}}}, "the $ref '#here'"),
    ],
)
def test_an_error_names_the_keyword_that_is_not_satisfied(schema: Schema, problem: str) -> None:
    with pytest.raises(InvalidValue) as raised:
        smallest_instance(schema, "text.format.schema")
    assert problem in raised.value.message
    assert raised.value.param == "text.format.schema"


@pytest.mark.skipif(not has_lark(), reason="llguidance is not installed")
@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "string", "pattern": "^[A-Z]{2}[0-9]+$"}, "AA0"),
        ({"pattern": "^[A-Z]{2}[0-9]+$", "minLength": 6}, "AA0000"),
    ],
)
def test_a_pattern_is_matched(schema: Schema, text: str) -> None:
    assert smallest_instance(schema) == f'"{text}"'


# Schemas that are satisfiable by construction: each is drawn so that it accepts a known value.


def schemas_accepting(value: Any) -> st.SearchStrategy[Schema]:
    match value:
        case bool() | None:
            return st.sampled_from([{"const": value}, {"type": "null" if value is None else "boolean"}, {}])
        case int():
            return st.fixed_dictionaries(
                {"type": st.sampled_from(["integer", "number", ["null", "integer"]])},
                optional={
                    "minimum": st.integers(value - 20, value),
                    "maximum": st.integers(value, value + 20),
                    "multipleOf": st.sampled_from([factor for factor in range(1, 8) if value % factor == 0]),
                },
            )
        case str():
            return st.fixed_dictionaries(
                {"type": st.just("string")},
                optional={"minLength": st.integers(0, len(value)), "maxLength": st.integers(len(value), 30)},
            )
        case list():
            items: st.SearchStrategy[Any] = st.tuples(*map(schemas_accepting, value)).map(
                lambda each: {"anyOf": [*each, True]}
            )
            return st.fixed_dictionaries(
                {"type": st.just("array"), "minItems": st.integers(0, len(value))}, optional={"items": items}
            )
        case dict():
            return st.tuples(*map(schemas_accepting, value.values())).map(
                lambda each: strict_object(**dict(zip(value, each, strict=True)))
            )
    raise TypeError(value)


def wrap_schemas(schema: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    return st.one_of(
        schema,
        schema.map(lambda one: {"anyOf": [False, one]}),
        schema.map(lambda one: {"allOf": [one, {}]}),
        schema.map(lambda one: {"oneOf": [False, one]}),
        schema.map(lambda one: {"$defs": {"one": one}, "$ref": "#/$defs/one"}),
    )


values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-1000, 1000) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(values.flatmap(lambda value: wrap_schemas(schemas_accepting(value))))
def test_the_instance_of_a_satisfiable_schema_is_valid(schema: Schema) -> None:
    found = json.loads(smallest_instance(schema))
    assert jsonschema_rs.validator_for(schema).is_valid(found)


keywords = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["object", "array", "string", "integer", "number", "boolean", "null"]),
        "minimum": st.integers(-5, 5),
        "maximum": st.integers(-5, 5),
        "multipleOf": st.sampled_from([0.5, 1, 3]),
        "minLength": st.integers(0, 4),
        "maxLength": st.integers(0, 4),
        "minItems": st.integers(0, 3),
        "uniqueItems": st.booleans(),
        "required": st.lists(st.sampled_from("ab"), unique=True),
        "minProperties": st.integers(0, 2),
        "enum": st.lists(st.sampled_from([0, 1, "a", "bb", None]), min_size=1, unique=True),
    },
)


def nest_schemas(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    several = st.lists(inner, min_size=1, max_size=2)
    return st.fixed_dictionaries(
        {},
        optional={
            "properties": st.dictionaries(st.sampled_from("ab"), inner),
            "items": inner,
            "contains": inner,
            "anyOf": several,
            "oneOf": several,
            "allOf": several,
            "not": inner,
            "if": inner,
            "then": inner,
            "additionalProperties": inner | st.booleans(),
        },
    ).flatmap(lambda outer: keywords.map(lambda chosen: {**outer, **chosen}))


@given(st.recursive(keywords, nest_schemas, max_leaves=5))
def test_every_returned_instance_is_valid(schema: Schema) -> None:
    try:
        found = smallest_instance(schema)
    except InvalidValue:
        return
    assert jsonschema_rs.validator_for(schema).is_valid(json.loads(found))
