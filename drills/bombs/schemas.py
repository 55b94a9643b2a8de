"""Schemas, patterns and grammars that crash or block a compiler, and templates in requests."""

from collections.abc import Iterator
from typing import Any

import msgspec

from drills.bombs.bomb import ENGINE_SECONDS, Bomb, create_bomb, post_bomb


def nested_schema(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


def _doubling_schema(doublings: int) -> dict[str, Any]:
    names = [f"d{n}" for n in range(doublings)]
    followers = [*names[1:], "leaf"]
    defs: dict[str, Any] = {
        name: {"allOf": [{"$ref": f"#/$defs/{after}"}, {"$ref": f"#/$defs/{after}"}]}
        for name, after in zip(names, followers, strict=True)
    }
    return {"$ref": "#/$defs/d0", "$defs": {**defs, "leaf": {"type": "string"}}}


BAD_SCHEMAS: dict[str, Any] = {
    "property that is no schema": {"type": "object", "properties": {"foo": "bar"}},
    "unknown type": {"type": "nope"},
    "broken pattern": {"type": "string", "pattern": "("},
    "enum of a hundred thousand": {"enum": list(range(90_000))},
    "enum beyond the limit": {"enum": list(range(1_001))},
    "too deep": nested_schema(33),
    "reference to itself": {"$ref": "#"},
    "references in a circle": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    "reference to nothing": {"$ref": "#/$defs/nowhere"},
    "reference to the network": {"$ref": "http://127.0.0.1:1/schema.json"},
    "reference to a file": {"$ref": "file:///etc/passwd"},
    "a million by doubling": _doubling_schema(20),
    "long pattern": {"type": "string", "pattern": "a" * 10_000},
    "required that is no list": {"type": "object", "required": "all"},
    "negative length": {"type": "string", "minLength": -1},
    "huge": {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(20_000)}},
}
# Answered or rejected, but quickly.
HARD_SCHEMAS: dict[str, Any] = {
    "nested repeats": {"type": "string", "pattern": "(a{1,1000}){1,1000}"},
    "backtracking": {"type": "string", "pattern": "^(.*a){25}$"},
    "classic": {"type": "string", "pattern": "(a+)+$"},
    "empty or anything": {"type": "string", "pattern": "^(|.*)$"},
    "repeats in repeats": {"type": "string", "pattern": "((((a{9}){9}){9}){9}){9}"},
    "wide classes": {"type": "string", "pattern": "(\\w{1,99}\\W{1,99}){9}"},
    "looking around": {"type": "string", "pattern": "^(?=(a+)+$)(?!b)(?<=x)a*$"},
    "many patterns": {"patternProperties": {f"^{n}(\\p{{L}}{{1,50}}){{1,9}}$": {"type": "string"} for n in range(40)}},
}
# Well-formed, but no output satisfies them; the engine reports it.
UNANSWERABLE_SCHEMAS: dict[str, Any] = {
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
VALID_SCHEMA = {
    "type": "object",
    "properties": {"tree": {"$ref": "#/$defs/node"}},
    "required": ["tree"],
    "additionalProperties": False,
    "$defs": {
        "node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}, "additionalProperties": False}
    },
}
BAD_PATTERNS = ("(", "[", "a{2,1}", "(?P<n>a)(?P<n>b)", "\\", "a" * 10_000)
BAD_GRAMMARS = ("start: [", "start: nowhere", "", "start: " + "(" * 5_000, "a" * 20_000)
_TEMPLATE = "{{ ''.__class__.__mro__[1].__subclasses__() }}"


def as_format(schema: Any) -> dict[str, Any]:
    return {"text": {"format": {"type": "json_schema", "name": "n", "schema": schema, "strict": False}}}


def as_tool(schema: Any) -> dict[str, Any]:
    return {"tools": [{"type": "function", "name": "f", "parameters": schema, "strict": False}]}


def as_custom_tool(syntax: str, definition: str) -> dict[str, Any]:
    grammar = {"type": "grammar", "syntax": syntax, "definition": definition}
    return {"tools": [{"type": "custom", "name": "c", "format": grammar}]}


def _as_chat_format(schema: Any) -> bytes:
    response_format = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    return msgspec.json.encode(
        {"model": "fake", "messages": [{"role": "user", "content": "x"}], "response_format": response_format}
    )


def schemas() -> Iterator[Bomb]:
    for name, schema in BAD_SCHEMAS.items():
        yield create_bomb(f"a format: {name}", as_format(schema), param="text.format.schema")
        yield create_bomb(f"a tool: {name}", as_tool(schema), param="tools[0].parameters")
        yield post_bomb(f"a chat's format: {name}", _as_chat_format(schema), "/v1/chat/completions",
                     param="response_format")  # fmt: skip
    for depth in (64, 1_000, 60_000):
        sent = b'{"items":' * depth + b"{}" + b"}" * depth
        prefix = b'{"model":"fake","input":"hi","text":{"format":{"type":"json_schema","name":"n","schema":'
        yield post_bomb(f"a format {depth} deep", prefix + sent + b"}}}")
    for name, schema in HARD_SCHEMAS.items():
        yield create_bomb(f"a hard format: {name}", as_format(schema), answers=(200, 400), reaches=True)
        yield create_bomb(f"a hard tool: {name}", as_tool(schema), answers=(200, 400), reaches=True)
    options: dict[str, Any] = {"reaches": True, "max_seconds": ENGINE_SECONDS}
    for name, schema in UNANSWERABLE_SCHEMAS.items():
        yield create_bomb(f"an unanswerable format: {name}", as_format(schema), param="text.format.schema", **options)
        yield create_bomb(f"an unanswerable tool: {name}", as_tool(schema), param="tools", **options)
    for pattern in BAD_PATTERNS:
        yield create_bomb(f"a custom tool's {pattern[:20]}", as_custom_tool("regex", pattern), param="tools[0].format")
    for grammar in BAD_GRAMMARS:
        yield create_bomb(f"a grammar: {grammar[:20]!r}", as_custom_tool("lark", grammar), param="tools[0].format")
    yield create_bomb("a valid schema after all others", as_format(VALID_SCHEMA), answers=(200,), reaches=True)
    yield from _templates()


def _templates() -> Iterator[Bomb]:
    """Yield requests with templates, which are never rendered, and with template variables whose names are reserved."""
    chat = {"model": "fake", "messages": [{"role": "user", "content": "x"}]}
    for field in ("chat_template", "documents"):
        value = _TEMPLATE if field == "chat_template" else [{"text": _TEMPLATE}]
        sent = msgspec.json.encode({**chat, field: value})
        yield post_bomb(f"a chat's {field}", sent, "/v1/chat/completions", answers=(200, 400), reaches=True)
        yield post_bomb(f"{field} to be tokenised", sent, "/tokenize", answers=(400, 404))
    yield create_bomb("chat_template", {"chat_template": _TEMPLATE}, answers=(200, 400), reaches=True)
    for name in ("tokenize", "chat_template", "add_generation_prompt", "messages", "tools", "return_dict"):
        yield create_bomb(
            f"chat_template_kwargs.{name}", {"chat_template_kwargs": {name: True}}, param="chat_template_kwargs"
        )
