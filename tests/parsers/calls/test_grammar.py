"""Grammars of answers accept and reject the right texts, checked with llguidance, the library that engines use.

Covers `parsers/calls/base.py` and `parsers/calls/registry.py`.
"""

import json
from typing import Any

import pytest

from antiphon.core.deltas import CallDelta, CallStarted
from antiphon.core.prompt import Json, JsonSchema
from antiphon.engines.llamacpp.wire import to_llamacpp_constraint
from antiphon.parsers.calls.base import CallShape, GrammarRequest, ReasoningPrefix, TextPiece
from antiphon.parsers.calls.grammar import JSON_LIST, strip_lookaround, write_grammar
from antiphon.parsers.calls.registry import FORMATS, load_format
from antiphon.protocol.schemas import grammars
from antiphon.protocol.schemas.grammars import find_mismatch, has_lark

pytestmark = pytest.mark.skipif(not has_lark(), reason="llguidance is not installed")

PARAMETERS: Json = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": ["integer", "null"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS: dict[str, Json] = {
    "weather": {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}},
    "now": {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}},
}
THINKING = ReasoningPrefix(opening='"<think>"', closing='"</think>"')
OPENED = ReasoningPrefix(opening='"<think>"', closing='"</think>"', is_open=True)
HERMES = CallShape(begin="<tool_call>\n", end="\n</tool_call>", marker="<tool_call>")
MISTRAL = CallShape(before="[TOOL_CALLS][", between=", ", after="]", marker="[TOOL_CALLS]")
ROME = '{"name": "weather", "arguments": {"city": "Rome"}}'
CALL = f"<tool_call>\n{ROME}\n</tool_call>"
NOW = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
BAD = CALL.replace("city", "town")


def is_accepted(shape: CallShape | None, text: str, **fields: Any) -> bool:
    grammar = write_grammar(shape, GrammarRequest(**{"tools": TOOLS, **fields}))
    assert grammar is not None
    return not find_mismatch(grammar.definition, text)


@pytest.mark.shows("D.13")
@pytest.mark.parametrize(
    ("text", "several", "one"),
    [
        (CALL, True, True),
        (f"{CALL}\n{NOW}", True, False),
        ("Rome is sunny.", False, False),
        (f"Well: {CALL}", False, False),
        (BAD, False, False),
        (CALL.replace("weather", "climate"), False, False),
        ("", False, False),
    ],
)
def test_a_required_call_is_enforced(text: str, several: bool, one: bool) -> None:
    assert is_accepted(HERMES, text) is several
    assert is_accepted(HERMES, text, call_count="one") is one


@pytest.mark.shows("D.13")
@pytest.mark.parametrize("shape", [HERMES, MISTRAL, JSON_LIST])
def test_reasoning_may_precede_a_call_and_excludes_its_marker(shape: CallShape) -> None:
    call = {
        HERMES: CALL,
        MISTRAL: f"[TOOL_CALLS][{ROME}]",
        JSON_LIST: f"[{ROME.replace('arguments', 'parameters')}]",
    }[shape]
    assert is_accepted(shape, call, reasoning=THINKING)
    assert is_accepted(shape, f"<think>\nHm.\n</think>\n\n{call}", reasoning=THINKING)
    assert is_accepted(shape, f"Hm.</think>{call}", reasoning=OPENED)
    assert not is_accepted(shape, call, reasoning=OPENED)
    if shape.marker:
        assert not is_accepted(shape, f"<think>{shape.marker}</think>{call}", reasoning=THINKING)


@pytest.mark.shows("D.11", "D.13")
@pytest.mark.parametrize(
    ("text", "several", "one"),
    [
        ("Rome is sunny.", True, True),
        ("", True, True),
        (CALL, True, True),
        (f"Let me see. {CALL}", True, True),
        (f"{CALL}\n{NOW}", True, False),
        (f"<think>Hm.</think>{CALL}", True, True),
        (BAD, False, False),
        (f"Well: {BAD}", False, False),
        ("<tool_call> {", False, False),
        ("Beware of <tool_ca", True, True),
    ],
)
def test_text_is_free_and_a_call_in_it_must_match(text: str, several: bool, one: bool) -> None:
    assert is_accepted(HERMES, text, answer="text") is several
    assert is_accepted(HERMES, text, answer="text", call_count="one") is one


@pytest.mark.parametrize("text", [f"[TOOL_CALLS][{ROME}]", f"So: [TOOL_CALLS][{ROME}, {ROME}]", "Sunny."])
def test_a_marker_may_precede_a_list_of_calls(text: str) -> None:
    assert is_accepted(MISTRAL, text, answer="text")
    assert not is_accepted(MISTRAL, text.replace("city", "town"), answer="text") or "city" not in text


def test_unmarked_calls_have_no_grammar_that_allows_text() -> None:
    assert write_grammar(JSON_LIST, GrammarRequest(tools=TOOLS, answer="text")) is None


@pytest.mark.parametrize("thinking", [None, THINKING])
def test_a_structured_answer_may_replace_a_call(thinking: ReasoningPrefix | None) -> None:
    for text in ('{"city": "Rome"}', CALL):
        assert is_accepted(HERMES, text, answer=PARAMETERS, reasoning=thinking)
    assert is_accepted(None, '{"city": "Rome", "days": 3}', answer=PARAMETERS, tools={}, reasoning=thinking)
    assert not is_accepted(HERMES, "Rome", answer=PARAMETERS, reasoning=thinking)
    assert is_accepted(HERMES, '<think>?</think>{"city": "Rome"}', answer=PARAMETERS, reasoning=thinking) is bool(
        thinking
    )


def test_whitespace_is_limited() -> None:
    assert not is_accepted(None, '{"city":' + " " * 5 + '"Rome"}', answer=PARAMETERS, tools={})
    assert not is_accepted(None, '{"city": "Rome"}' + "\n" * 5, answer=PARAMETERS, tools={})


@pytest.mark.shows("D.21")
@pytest.mark.parametrize(
    ("kind", "accepted", "rejected"),
    [
        ("integer", ["0", "-12", "9007199254740991"], ["9007199254740992", "1" * 100]),
        ("number", ["0", "3.14", "-0.5", "0.123456789", "1234567.5"], ["1" * 100, "0." + "3" * 10]),
        ("string", ['""', '"Grüße, 😀"', f'"{"a" * 65536}"'], [f'"{"a" * 65537}"']),
    ],
)
def test_values_without_bounds_end_in_every_grammar(
    kind: str, accepted: list[str], rejected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammars, "MAX_SECONDS", 100.0)  # the machine may be busy
    schema = {"type": "object", "properties": {"a": {"type": kind}}, "required": ["a"]}
    tools = {"f": {"type": "function", "function": {"name": "f", "parameters": schema}}}
    json_schema = f"start: %json {json.dumps(to_llamacpp_constraint(JsonSchema(schema), bounded=True).schema)}"
    for text in (*accepted, *rejected):
        expected = text in accepted
        assert is_accepted(None, f'{{"a": {text}}}', answer=schema, tools={}) is expected
        assert is_accepted(JSON_LIST, f'[{{"name": "f", "parameters": {{"a": {text}}}}}]', tools=tools) is expected
        assert (not find_mismatch(json_schema, f'{{"a":{text}}}')) is expected


def test_patterns_with_lookaround_are_not_enforced() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(?=a)a$"}}, "required": ["a"]}
    assert is_accepted(None, '{"a": "b"}', answer=schema, tools={})
    assert not is_accepted(None, '{"a": 1}', answer=schema, tools={})
    other = {"enum": [{"pattern": "(?=a)"}], "pattern": "a+"}
    assert strip_lookaround(other) == other


SHAPES = {name: row.shape for name, row in sorted(FORMATS.items()) if row.shape is not None}  # those with a grammar


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("call_count", ["one", "several"])
def test_the_grammar_of_a_format_is_valid_and_rejects_plain_text(shape: CallShape, call_count: Any) -> None:
    grammar = write_grammar(shape, GrammarRequest(tools=TOOLS, call_count=call_count))
    assert grammar is not None
    assert "cannot be read" not in find_mismatch(grammar.definition, "Hello!")
    assert find_mismatch(grammar.definition, "Hello!")


@pytest.mark.parametrize("name", SHAPES)
def test_calls_that_a_grammar_accepts_are_parsed_by_its_format(name: str) -> None:
    shape = SHAPES[name]
    one = f'{shape.begin}{{"name": "weather", "{shape.arguments}": {{"city": "Rome"}}}}{shape.end}'
    text = f"{shape.before}{one}{shape.between}{one}{shape.after}"
    assert is_accepted(shape, text)
    reader = load_format(name)(TOOLS)
    pieces = [*reader.feed(text), *reader.finish()]
    assert [piece for piece in pieces if isinstance(piece, TextPiece) and piece.text.strip()] == []
    assert [piece.name for piece in pieces if isinstance(piece, CallStarted)] == ["weather"] * 2
    assert "".join([piece.text for piece in pieces if isinstance(piece, CallDelta)]) == '{"city": "Rome"}' * 2
