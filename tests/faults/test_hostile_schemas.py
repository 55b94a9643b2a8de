"""Schemas that would kill or choke an engine are refused before it sees them, and the next request is served."""

import json
from typing import Any

import pytest

from tests.faults.wire import body, exchange, refused, request
from tests.live import Live

pytestmark = pytest.mark.anyio


def _deep(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


def _bomb(doublings: int) -> dict[str, Any]:
    names = [f"d{n}" for n in range(doublings)]
    followers = [*names[1:], "leaf"]
    defs: dict[str, Any] = {
        name: {"allOf": [{"$ref": f"#/$defs/{after}"}, {"$ref": f"#/$defs/{after}"}]}
        for name, after in zip(names, followers, strict=True)
    }
    return {"$ref": "#/$defs/d0", "$defs": {**defs, "leaf": {"type": "string"}}}


BAD: dict[str, Any] = {
    "property that is no schema": {"type": "object", "properties": {"foo": "bar"}},
    "unknown type": {"type": "nope"},
    "broken pattern": {"type": "string", "pattern": "("},
    "enum of a hundred thousand": {"enum": list(range(90_000))},
    "enum beyond the limit": {"enum": list(range(1_001))},
    "too deep": _deep(33),
    "reference to itself": {"$ref": "#"},
    "references in a circle": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    "reference to nothing": {"$ref": "#/$defs/nowhere"},
    "reference to the network": {"$ref": "http://127.0.0.1:1/schema.json"},
    "reference to a file": {"$ref": "file:///etc/passwd"},
    "a million by doubling": _bomb(20),
    "long pattern": {"type": "string", "pattern": "a" * 10_000},
    "required that is no list": {"type": "object", "required": "all"},
    "negative length": {"type": "string", "minLength": -1},
    "huge": {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(20_000)}},
}
HARD = {
    "nested repeats": {"type": "string", "pattern": "(a{1,1000}){1,1000}"},
    "backtracking": {"type": "string", "pattern": "^(.*a){25}$"},
    "classic": {"type": "string", "pattern": "(a+)+$"},
}
UNANSWERABLE = {
    "long string": {"type": "string", "minLength": 10**9},
    "long list": {"type": "array", "items": {"type": "integer"}, "minItems": 10**9},
    "many wide lists": {"type": "array", "minItems": 9999, "items": {"type": "array", "minItems": 9999}},
    "impossible": {"type": "integer", "minimum": 5, "maximum": 4},
    "false": {"not": {}},
    "recursive": {
        "$ref": "#/$defs/node",
        "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}, "required": ["next"]}},
    },
}
FINE = {
    "type": "object",
    "properties": {"tree": {"$ref": "#/$defs/node"}},
    "required": ["tree"],
    "additionalProperties": False,
    "$defs": {
        "node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}, "additionalProperties": False}
    },
}


def _as_format(schema: Any) -> bytes:
    return request(body(text={"format": {"type": "json_schema", "name": "n", "schema": schema, "strict": False}}))


def _as_tool(schema: Any) -> bytes:
    return request(body(tools=[{"type": "function", "name": "f", "parameters": schema, "strict": False}]))


@pytest.mark.parametrize("name", BAD)
@pytest.mark.shows("H6.6")
async def test_a_bad_format_is_refused_by_name(server: Live, name: str) -> None:
    await refused(server.port, _as_format(BAD[name]), 400, param="text.format.schema")
    assert (await exchange(server.port, _as_format(FINE))).status == 200


@pytest.mark.parametrize("name", BAD)
async def test_a_bad_tool_is_refused_by_name(server: Live, name: str) -> None:
    await refused(server.port, _as_tool(BAD[name]), 400, param="tools[0].parameters")
    assert (await exchange(server.port, _as_tool(FINE))).status == 200


@pytest.mark.parametrize("name", HARD)
async def test_a_hard_schema_is_answered_or_refused_in_time(server: Live, name: str) -> None:
    for sent in (_as_format(HARD[name]), _as_tool(HARD[name])):
        answer = await exchange(server.port, sent, seconds=3.0)
        assert answer.status in (200, 400), answer


@pytest.mark.parametrize("name", UNANSWERABLE)
async def test_a_schema_that_nothing_can_satisfy_is_the_fault_of_the_request(server: Live, name: str) -> None:
    for sent, param in (
        (_as_format(UNANSWERABLE[name]), "text.format.schema"),
        (_as_tool(UNANSWERABLE[name]), "tools"),
    ):
        answer = await exchange(server.port, sent, seconds=5.0)
        assert answer.status == 400, answer
        assert answer.error()["param"] == param


@pytest.mark.parametrize("pattern", ["(", "[", "a{2,1}", "(?P<n>a)(?P<n>b)", "\\", "a" * 10_000])
async def test_a_bad_grammar_of_a_custom_tool_is_refused_by_name(server: Live, pattern: str) -> None:
    grammar = {"type": "grammar", "syntax": "regex", "definition": pattern}
    tool = {"type": "custom", "name": "c", "format": grammar}
    await refused(server.port, request(body(tools=[tool])), 400, param="tools[0].format")


async def test_many_different_schemas_leave_nothing_behind(server: Live) -> None:
    """What is compiled for a schema must not be kept for ever."""
    for round_ in range(2):
        before = _rss(server)
        for number in range(150):
            answer = await exchange(server.port, _as_format({"type": "string", "const": f"{round_}.{number}" * 200}))
            assert answer.status == 200, answer
    assert _rss(server) - before < 4 * 1024 * 1024


def _rss(live: Live) -> int:
    with open(f"/proc/{live.process.pid}/statm") as statm:
        return int(statm.read().split()[1]) * 4096


async def test_a_schema_is_echoed_as_it_was_sent(server: Live) -> None:
    answer = await exchange(server.port, _as_format(FINE))
    assert json.loads(answer.body)["text"]["format"]["schema"] == FINE
