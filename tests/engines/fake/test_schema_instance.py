import json
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.engines.fake.schema_instance import smallest
from antiphon.engines.fake.schema_instance.pattern import matching
from antiphon.errors import InvalidValue
from tests.support.cpu import cpu_time

Schema = dict[str, Any]


def obj(**properties: Any) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def expected(schema: Any, instance: Any) -> tuple[Any, str]:
    return schema, json.dumps(instance, ensure_ascii=False, separators=(",", ":"))


DRAFT7 = "http://json-schema.org/draft-07/schema#"
TREE = {"$defs": {"tree": obj(kids={"type": "array", "items": {"$ref": "#/$defs/tree"}})}, "$ref": "#/$defs/tree"}
LIST = obj(value={"type": "integer"}, next={"anyOf": [{"$ref": "#"}, {"type": "null"}]})
SUM = {
    "$defs": {
        "term": {
            "oneOf": [
                obj(op={"const": "+"}, left={"$ref": "#/$defs/term"}, right={"$ref": "#/$defs/term"}),
                obj(op={"const": "n"}, value={"type": "number"}),
            ]
        }
    },
    "$ref": "#/$defs/term",
}
NESTED = {"$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}, "maxItems": 1}}, "$ref": "#/$defs/a"}
DEEP = {  # the first two steps of the recursion are required
    "$defs": {"a": {"anyOf": [obj(b={"$ref": "#/$defs/a"}), {"const": 1}]}},
    "properties": {"b": {"properties": {"b": {"type": "object"}}, "type": "object"}},
    "$ref": "#/$defs/a",
    "type": "object",
}

TABLE = [
    expected({}, {}),
    expected(True, {}),
    expected({"type": "object"}, {}),
    expected({"type": "array"}, []),
    expected({"type": "string"}, ""),
    expected({"type": "integer"}, 0),
    expected({"type": "number"}, 0),
    expected({"type": "boolean"}, False),
    expected({"type": "null"}, None),
    expected({"type": ["string", "null"]}, ""),
    expected({"type": ["null", "string"]}, None),
    expected({"const": [1, {"a": None}]}, [1, {"a": None}]),
    expected({"enum": ["red", "r"]}, "red"),
    expected({"enum": [1, 2, 3], "minimum": 2}, 2),
    expected({"type": "string", "enum": [1, "a"]}, "a"),
    # strings
    expected({"type": "string", "minLength": 3, "maxLength": 5}, "xxx"),
    expected({"type": "string", "pattern": "^[A-Z]{2}[0-9]+$"}, "AA0"),
    expected({"type": "string", "pattern": "^[A-Z]{2}[0-9]+$", "minLength": 6}, "AA0000"),
    expected({"type": "string", "pattern": "^(yes|no)$"}, "no"),
    expected({"type": "string", "pattern": "^\\+?[1-9]\\d{1,14}$"}, "10"),
    expected({"allOf": [{"pattern": "^a"}, {"pattern": "b$"}, {"enum": ["a", "b", "ab"]}]}, "ab"),
    expected({"minLength": 1}, "x"),
    expected({"type": "string", "format": "date-time"}, "1970-01-01T00:00:00Z"),
    expected({"type": "string", "format": "date"}, "1970-01-01"),
    expected({"type": "string", "format": "time"}, "00:00:00Z"),
    expected({"type": "string", "format": "duration"}, "P0D"),
    expected({"type": "string", "format": "uuid"}, "00000000-0000-0000-0000-000000000000"),
    expected({"type": "string", "format": "email"}, "a@a.aa"),
    expected({"type": "string", "format": "email", "minLength": 10}, "xxxxa@a.aa"),
    expected({"type": "string", "format": "uri"}, "http://a.a"),
    expected({"type": "string", "format": "uri", "minLength": 14}, "http://a.a/xxx"),
    expected({"type": "string", "format": "hostname"}, "a.a"),
    expected({"type": "string", "format": "ipv4"}, "0.0.0.0"),
    expected({"type": "string", "format": "ipv6"}, "::"),
    expected({"type": "string", "format": "binary"}, ""),
    expected({"type": "string", "not": {"const": ""}}, "x"),
    # numbers
    expected({"type": "integer", "minimum": 3}, 3),
    expected({"type": "integer", "exclusiveMinimum": 3}, 4),
    expected({"type": "integer", "maximum": -7}, -7),
    expected({"type": "integer", "exclusiveMaximum": -7}, -8),
    expected({"type": "integer", "minimum": 7, "multipleOf": 5}, 10),
    expected({"type": "number", "minimum": 0.3, "multipleOf": 0.25}, 0.5),
    expected({"type": "number", "multipleOf": 0.1, "minimum": 0.7}, 0.7),
    expected({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}, 0.5),
    expected({"allOf": [{"multipleOf": 4}, {"multipleOf": 6}, {"type": "integer", "minimum": 1}]}, 12),
    expected({"allOf": [{"type": "number"}, {"type": "integer"}]}, 0),
    expected({"type": "integer", "not": {"enum": [0, 1, -1]}}, 2),
    expected({"type": "integer", "minimum": 2.5}, 3),
    expected(
        {
            "$schema": "http://json-schema.org/draft-04/schema#",
            "type": "number",
            "minimum": 0,
            "exclusiveMinimum": True,
        },
        1,
    ),
    # objects
    expected(obj(a={"type": "string"}, b={"type": "integer", "minimum": 1}), {"a": "", "b": 1}),
    expected({"type": "object", "properties": {"a": {"type": "string"}}}, {}),
    expected({"type": "object", "required": ["a"]}, {"a": {}}),
    expected({"type": "object", "required": ["a"], "additionalProperties": {"type": "null"}}, {"a": None}),
    expected({"type": "object", "minProperties": 2, "properties": {"a": {"const": 1}}}, {"a": 1, "x": {}}),
    expected({"type": "object", "minProperties": 1, "propertyNames": {"pattern": "^k\\d$"}}, {"k0": {}}),
    expected(
        {
            "type": "object",
            "minProperties": 1,
            "patternProperties": {"^x-": {"const": 1}},
            "additionalProperties": False,
        },
        {"x-": 1},
    ),
    expected({"required": ["x-1"], "patternProperties": {"^x-": {"const": 1}}}, {"x-1": 1}),
    expected({"required": ["a"], "dependentRequired": {"a": ["b"], "b": ["c"]}}, {"a": {}, "b": {}, "c": {}}),
    expected({"required": ["a"], "dependentSchemas": {"a": obj(a={"const": 0}, z={"const": 5})}}, {"a": 0, "z": 5}),
    expected({"$schema": DRAFT7, "required": ["a"], "dependencies": {"a": ["b"]}}, {"a": {}, "b": {}}),
    expected({"type": "object", "properties": {"a": {"const": 1}}, "not": {"maxProperties": 0}}, {"a": 1}),
    expected({"type": "object", "properties": {"~/ %é": {"const": 1}}, "required": ["~/ %é"]}, {"~/ %é": 1}),
    # arrays
    expected({"type": "array", "items": {"type": "integer"}, "minItems": 2}, [0, 0]),
    expected({"type": "array", "items": {"type": "integer"}, "minItems": 4, "uniqueItems": True}, [0, 1, -1, 2]),
    expected({"type": "array", "items": {"type": "string"}, "minItems": 3, "uniqueItems": True}, ["", "x", "xx"]),
    expected({"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 2, "uniqueItems": True}, ["a", "b"]),
    expected({"prefixItems": [{"type": "string"}, {"const": 1}], "items": False, "minItems": 2}, ["", 1]),
    expected({"prefixItems": [{"const": 1}], "items": {"const": 2}, "minItems": 3}, [1, 2, 2]),
    expected({"$schema": DRAFT7, "items": [{"const": 1}], "additionalItems": {"const": 2}, "minItems": 2}, [1, 2]),
    expected({"type": "array", "contains": {"const": 7}}, [7]),
    expected({"type": "array", "contains": {"const": 7}, "minContains": 2, "items": {"minimum": 7}}, [7, 7]),
    expected({"prefixItems": [{"type": "string"}], "contains": {"const": 7}, "minItems": 1}, ["", 7]),
    # alternatives
    expected({"anyOf": [{"type": "string", "minLength": 3}, {"type": "null"}]}, "xxx"),
    expected({"anyOf": [False, {"type": "null"}]}, None),
    expected({"oneOf": [{"type": "integer"}, {"minimum": -5}]}, -6),
    expected({"allOf": [obj(a={"minimum": 2}), {"properties": {"a": {"type": "integer", "multipleOf": 3}}}]}, {"a": 3}),
    expected({"anyOf": [{"required": ["a"]}, {"required": ["b"]}], "type": "object"}, {"a": {}}),
    expected({"not": {"type": "object"}}, []),
    expected(
        {
            "properties": {"kind": {"enum": ["b", "a"]}},
            "required": ["kind"],
            "if": {"properties": {"kind": {"const": "b"}}},
            "then": {"required": ["x"], "properties": {"x": {"const": 1}}},
            "else": {"required": ["y"]},
        },
        {"kind": "b", "x": 1},
    ),
    expected({"if": {"type": "object"}, "then": False, "else": {"type": "string"}}, ""),
    # references
    expected({"$ref": "#/$defs/a", "$defs": {"a": {"type": "string", "minLength": 1}}}, "x"),
    expected({"$ref": "#/$defs/a%20b", "$defs": {"a b": {"const": 1}}}, 1),
    expected({"$ref": "#/$defs/a", "minimum": 4, "$defs": {"a": {"type": "integer"}}}, 4),
    expected({"$ref": "#here", "$defs": {"a": {"$anchor": "here", "type": "integer"}}}, 0),
    expected({"$ref": "#"}, {}),
    expected(TREE, {"kids": []}),
    expected(LIST, {"value": 0, "next": None}),
    expected(SUM, {"op": "n", "value": 0}),
    expected(NESTED, []),
    expected(DEEP, {"b": {"b": {"b": 1}}}),
]


@pytest.mark.parametrize(("schema", "instance"), TABLE)
def test_the_smallest_instance_is_found_and_valid(schema: Any, instance: str) -> None:
    found = smallest(schema)
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
        {"$defs": {"a": obj(a={"$ref": "#/$defs/a"})}, "$ref": "#/$defs/a"},
        {"type": "array", "minItems": 10**9},
        {"type": "string", "minLength": 10**9},
        {"type": "array", "minItems": 9000, "items": {"type": "array", "minItems": 9000}},
        {"type": "string", "pattern": "^(a)\\1{3}$", "not": {"pattern": "a"}},
    ],
)
def test_where_none_is_found_it_says_so_soon(schema: Any) -> None:
    with cpu_time() as spent, pytest.raises(InvalidValue, match="no valid instance"):
        smallest(schema)
    assert spent.seconds < 2


@pytest.mark.parametrize(
    "schema", [{"type": "nope"}, {"$ref": "#/nowhere"}, {"pattern": "("}, {"$ref": "http://127.0.0.1:9/schema"}]
)
def test_a_schema_that_is_none_is_an_error_and_nothing_is_fetched(schema: Schema) -> None:
    with pytest.raises(InvalidValue, match="cannot read this JSON schema"):
        smallest(schema)


def test_doubling_references_do_not_explode() -> None:
    doubling = {f"d{level}": {"allOf": [{"$ref": f"#/$defs/d{level + 1}"}] * 2} for level in range(10)}
    schema = {"$ref": "#/$defs/d0", "$defs": {**doubling, "d10": {"type": "integer"}}}
    with cpu_time() as spent:
        assert smallest(schema) == "0"
    assert spent.seconds < 2


def test_a_large_strict_schema_is_filled_in() -> None:
    schema = obj(**{f"p{number}": obj(a={"enum": ["x"]}, b={"type": ["integer", "null"]}) for number in range(300)})
    assert json.loads(smallest(schema))["p299"] == {"a": "x", "b": 0}


@pytest.mark.parametrize(
    "pattern",
    [
        "^abc$", "^[a-z]+$", "^\\d{3}-\\d{4}$", "^(foo|ba)r?$", "[^a-z]", "^(?<y>\\d{4})-(?:0[1-9]|1[0-2])$",
        "^\\p{Lu}\\w*$", "^[\\w.-]+@[\\w-]+\\.\\w{2,}$", "^\\u0041\\x42$", "^#[0-9A-Fa-f]{6}$",
        "^[^\\s/]{2,}/[\\]\\-x]$", "^$", "^.*$", "(a|b)*", "^[-+]?\\d+(\\.\\d+)?$", "^(([a-c]x){2,}y)+$",
        "^\\S+\\s\\D\\W$", "^\\t\\/$", "\\bx\\b", "^(?!a)[ab]$",
    ],
)  # fmt: skip
def test_patterns_are_matched(pattern: str) -> None:
    assert jsonschema_rs.is_valid({"pattern": pattern}, json.loads(smallest({"type": "string", "pattern": pattern})))


@pytest.mark.parametrize(
    "pattern", ["(", "[", "a{2,1}{", "\\1", "*", "(?", "\\p{Zzzz", "\\u12", "((a{9999}){9999}){9}", "(" * 60]
)
def test_a_pattern_beyond_reading_gives_nothing_and_raises_nothing(pattern: str) -> None:
    assert all(isinstance(text, str) and len(text) <= 100_000 for text in matching(pattern, 3))


# Schemas that have an instance, by construction: each is drawn around one.


def around(value: Any) -> st.SearchStrategy[Schema]:
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
            items: st.SearchStrategy[Any] = st.tuples(*map(around, value)).map(lambda each: {"anyOf": [*each, True]})
            return st.fixed_dictionaries(
                {"type": st.just("array"), "minItems": st.integers(0, len(value))}, optional={"items": items}
            )
        case dict():
            return st.tuples(*map(around, value.values())).map(lambda each: obj(**dict(zip(value, each, strict=True))))
    raise TypeError(value)


def combined(schema: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    return st.one_of(
        schema,
        schema.map(lambda one: {"anyOf": [False, one]}),
        schema.map(lambda one: {"allOf": [one, {}]}),
        schema.map(lambda one: {"oneOf": [{"not": {}}, one]}),
        schema.map(lambda one: {"$defs": {"one": one}, "$ref": "#/$defs/one"}),
    )


values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-1000, 1000) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(values.flatmap(lambda value: combined(around(value))))
def test_any_schema_drawn_around_a_value_is_answered_validly(schema: Schema) -> None:
    found = json.loads(smallest(schema))
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
        "pattern": st.sampled_from(["^a+$", "b", "^[^c]{2}$"]),
        "minItems": st.integers(0, 3),
        "uniqueItems": st.booleans(),
        "required": st.lists(st.sampled_from("ab"), unique=True),
        "minProperties": st.integers(0, 2),
        "enum": st.lists(st.sampled_from([0, 1, "a", "bb", None]), min_size=1, unique=True),
    },
)


def nested(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
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
    ).flatmap(lambda outer: keywords.map(lambda words: {**outer, **words}))


@given(st.recursive(keywords, nested, max_leaves=5))
def test_whatever_is_answered_is_valid(schema: Schema) -> None:
    try:
        found = smallest(schema)
    except InvalidValue:
        return
    assert jsonschema_rs.validator_for(schema).is_valid(json.loads(found))
