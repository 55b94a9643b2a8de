"""Output constraints for models whose raw output the server parses, by the constraint kinds that their engines
support.

Covers `service/model_io/adapter.py`.
"""

from typing import Any, cast

import jsonschema_rs
import pytest

from antiphon.core.deltas import ReasoningDelta, Text
from antiphon.core.prompt import ChatPrompt, Chunk, Grammar, Json, JsonObject, JsonSchema
from antiphon.parsers.base import ParserOptions
from antiphon.parsers.detection import ModelOutputFormat
from antiphon.parsers.raw import RawParser
from antiphon.protocol.schemas.grammars import find_mismatch, has_lark
from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.tools import CodeInterpreterTool
from antiphon.render.harmony.system import ConstraintKind
from antiphon.service.model_io.adapter import OutputSpec
from antiphon.service.model_io.constraints import OutputConstraints, make_call_list_schema
from antiphon.tools.code_interpreter.tool import CodeInterpreter
from tests.service.requests import decode_request

WEATHER: Json = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"place": {"$ref": "#/$defs/place"}},
            "required": ["place"],
            "$defs": {"place": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}},
        },
    },
}
NOW: Json = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}
STRICT: Json = {"type": "function", "function": {**WEATHER["function"], "strict": True}}
FORMAT = {"type": "json_schema", "name": "n", "schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}
QWEN = ModelOutputFormat(reasoning="think", calls="hermes")
PLAIN = ModelOutputFormat(calls="hermes")
LARK: frozenset[ConstraintKind] = frozenset({"json", "lark"})
JSON: frozenset[ConstraintKind] = frozenset({"json"})
VLLM: frozenset[ConstraintKind] = frozenset({"json", "lark", "tag"})
NONE: frozenset[ConstraintKind] = frozenset()


def make_request(**body: Any) -> CreateResponse:
    return decode_request(**body).request


def build_output(
    output_format: ModelOutputFormat,
    kinds: frozenset[ConstraintKind],
    *tools: Json,
    choice: Any = "auto",
    opened: bool = False,
    **body: Any,
) -> OutputSpec:
    chat = ChatPrompt(messages=(), tools=tools, tool_choice=choice, parallel_tool_calls=not body.pop("one", False))
    named = {tool["function"]["name"]: tool for tool in tools}
    parser_options = ParserOptions(
        reasoning=output_format.reasoning, calls=output_format.calls if tools else None, tools=named
    )
    return OutputConstraints(make_request(**body), output_format, kinds).build(chat, parser_options, opened)


def accepts(output: OutputSpec, text: str) -> bool:
    assert isinstance(output.constraint, Grammar)
    return not find_mismatch(output.constraint.definition, text)


def choose_tool(name: str) -> Json:
    return {"type": "function", "function": {"name": name}}


CALL = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
needs_lark = pytest.mark.skipif(not has_lark(), reason="llguidance is not installed")


@needs_lark
@pytest.mark.shows("D.12", "D.13")
def test_a_required_call_is_constrained_to_the_models_own_call_format() -> None:
    output = build_output(QWEN, LARK, WEATHER, NOW, choice="required")
    assert output.parser_options.calls == "hermes"
    assert output.enforced == {"calls"}
    assert accepts(output, CALL)
    assert accepts(output, f"<think>Hm.</think>\n\n{CALL}")
    assert not accepts(output, "It is late.")


@needs_lark
@pytest.mark.shows("D.12")
def test_a_named_tool_is_the_only_one_that_can_be_called() -> None:
    output = build_output(PLAIN, LARK, WEATHER, NOW, choice=choose_tool("weather"), one=True)
    assert list(output.parser_options.tools) == ["weather"]
    assert not accepts(output, CALL)
    right = CALL.replace("now", "weather").replace("{}}", '{"place": {"city": "Rome"}}}')
    assert accepts(output, right)
    assert not accepts(output, f"{right}\n{right}")


@needs_lark
def test_reasoning_opened_by_the_prompt_comes_first() -> None:
    output = build_output(QWEN, LARK, NOW, choice="required", opened=True)
    assert accepts(output, f"Hm.</think>{CALL}")
    assert not accepts(output, CALL)


@needs_lark
def test_a_family_without_a_grammar_writes_a_list_of_calls() -> None:
    output = build_output(ModelOutputFormat(calls="qwen3_coder"), LARK, NOW, choice="required")
    assert output.parser_options.calls == "json"
    assert accepts(output, '[{"name": "now", "parameters": {}}]')


@pytest.mark.shows("D.12", "D.13")
@pytest.mark.parametrize("kinds", [JSON, VLLM])
def test_required_calls_become_a_json_list_by_schema(kinds: frozenset[ConstraintKind]) -> None:
    output = build_output(QWEN, kinds, WEATHER, NOW, choice="required")
    assert isinstance(output.constraint, JsonSchema)
    assert output.parser_options.calls == "json"
    assert output.parser_options.json_answer
    valid = jsonschema_rs.validator_for(output.constraint.schema).is_valid
    assert valid([{"name": "weather", "parameters": {"place": {"city": "Rome"}}}, {"name": "now", "parameters": {}}])
    assert not valid([{"name": "weather", "parameters": {"place": {}}}])
    assert not valid([{"name": "climate", "parameters": {}}])
    assert not valid([])


def test_without_parallel_calls_the_list_holds_one_call() -> None:
    schema = make_call_list_schema({"now": NOW}, parallel=False)
    assert not jsonschema_rs.validator_for(schema).is_valid([{"name": "now", "parameters": {}}] * 2)


@pytest.mark.parametrize("reference", ["#", "#/$defs/a"])
def test_references_within_a_parameter_schema_still_resolve(reference: str) -> None:
    own: Json = {
        "type": "object",
        "properties": {"next": {"$ref": reference}, "kind": {"const": {"$ref": "#"}}},
        "$defs": {"a": {"type": "object", "required": ["x"]}},
    }
    schema = make_call_list_schema({"f": {"function": {"name": "f", "parameters": own}}}, parallel=True)
    valid = jsonschema_rs.validator_for(schema).is_valid
    assert valid([{"name": "f", "parameters": {"next": {"x": 1}, "kind": {"$ref": "#"}}}])
    assert not valid([{"name": "f", "parameters": {"next": 3}}])


def test_an_engine_without_constraint_kinds_gets_no_constraint() -> None:
    for body in ({"choice": "required"}, {"text": {"format": FORMAT}}):
        output = build_output(QWEN, NONE, NOW, **body)
        assert (output.constraint, output.enforced, output.parser_options.calls) == (None, frozenset(), "hermes")


@needs_lark
@pytest.mark.shows("D.10")
def test_json_may_follow_reasoning_and_a_call_may_replace_it() -> None:
    output = build_output(QWEN, LARK, NOW, text={"format": FORMAT})
    assert output.enforced == {"calls", "form"}
    for text in ('{"a": 1}', '<think>Hm.</think>\n{"a": 1}', CALL):
        assert accepts(output, text)
    for text in ("Hello", '{"a": "1"}', '{"a": 1}' + "\n" * 9):
        assert not accepts(output, text)


@pytest.mark.shows("D.10")
@pytest.mark.parametrize(("text_format", "kind"), [(FORMAT, JsonSchema), ({"type": "json_object"}, JsonObject)])
def test_json_without_tools_uses_the_json_constraint_of_the_engine(text_format: Json, kind: type) -> None:
    for output_format, kinds in ((PLAIN, LARK), (QWEN, JSON), (PLAIN, VLLM)):
        output = build_output(output_format, kinds, text={"format": text_format})
        assert isinstance(output.constraint, kind)
        assert (
            output.parser_options.json_answer
        )  # JSON is not reasoning, even if the prompt may have opened a reasoning block


def test_json_with_tools_is_not_constrained_without_a_grammar() -> None:
    output = build_output(PLAIN, JSON, NOW, text={"format": FORMAT})
    assert (output.constraint, output.enforced) == (None, frozenset())


@needs_lark
@pytest.mark.shows("D.11")
def test_a_call_of_a_strict_tool_must_match_its_schema() -> None:
    output = build_output(QWEN, LARK, STRICT)
    assert accepts(output, "<think>Hm.</think>Hello!")
    right = '<tool_call>\n{"name": "weather", "arguments": {"place": {"city": "Rome"}}}\n</tool_call>'
    assert accepts(output, f"Well. {right}")
    assert not accepts(output, right.replace("city", "town"))
    assert output.enforced == {"calls"}


def test_without_strict_tools_or_a_grammar_there_is_no_constraint() -> None:
    assert build_output(QWEN, LARK, WEATHER, NOW).constraint is None
    assert build_output(QWEN, JSON, STRICT).constraint is None


@pytest.mark.shows("D.10")
@pytest.mark.parametrize("cut", range(1, 12))
@pytest.mark.parametrize(
    ("reply", "reasoning"),
    [('{"a": 1}', ""), ('\n [{"a": 1}]', ""), ("Hm.</think>\n\n{}", "Hm."), ("<think>Hm.</think>{}", "Hm.")],
)
def test_an_opening_bracket_is_not_reasoning_where_json_is_expected(reply: str, reasoning: str, cut: int) -> None:
    parser = RawParser(ChatPrompt(()), ParserOptions(reasoning="qwen3", prompt_hidden=True, json_answer=True))
    deltas = [*parser.feed(Chunk(text=reply[:cut])), *parser.feed(Chunk(text=reply[cut:])), *parser.finish()]
    assert "".join([delta.text for delta in deltas if isinstance(delta, ReasoningDelta)]) == reasoning
    text = "".join([delta.text for delta in deltas if isinstance(delta, Text)])
    assert text == reply.rpartition("</think>")[2].strip() or text == reply


@needs_lark
def test_code_of_the_code_interpreter_is_written_as_json() -> None:
    (function,) = CodeInterpreter.list_functions(cast(Any, None), CodeInterpreterTool())
    code = {"name": function.name, "parameters": function.parameters, "strict": function.strict}
    output = build_output(PLAIN, LARK, {"type": "function", "function": code})
    call = '<tool_call>\n{"name": "code_interpreter", "arguments": {"code": %s}}\n</tool_call>'
    assert accepts(output, call % '"1\\n2"')
    assert not accepts(output, call % '"\\n"')
    assert not accepts(output, call % '"""1\n2"""')
