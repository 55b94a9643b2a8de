"""What models whose words we read are held to, by what their engines can do."""

from typing import Any

import jsonschema_rs
import pytest

from antiphon.core.deltas import Text, Thought
from antiphon.core.prompt import ChatPrompt, Chunk, Grammar, Json, JsonObject, JsonSchema
from antiphon.parsers.base import Reading
from antiphon.parsers.detection import Manner
from antiphon.parsers.raw import RawParser
from antiphon.protocol.schemas.grammars import knows_lark, ungrammatical
from antiphon.protocol.types.request import CreateResponse
from antiphon.service.model_io.base import Means
from antiphon.service.model_io.constraints import Demand, Demands, list_of_calls, must_call
from tests.service.requests import decoded

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
FORM = {"type": "json_schema", "name": "n", "schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}
QWEN = Manner(thoughts="think", calls="hermes")
PLAIN = Manner(calls="hermes")
LARK: frozenset[Means] = frozenset({"json", "lark"})
JSON: frozenset[Means] = frozenset({"json"})
VLLM: frozenset[Means] = frozenset({"json", "lark", "tag"})
NONE: frozenset[Means] = frozenset()


def asked(**body: Any) -> CreateResponse:
    return decoded(**body).request


def demanded(
    manner: Manner, means: frozenset[Means], *tools: Json, choice: Any = "auto", opened: bool = False, **body: Any
) -> Demand:
    chat = ChatPrompt(messages=(), tools=tools, tool_choice=choice, parallel_tool_calls=not body.pop("one", False))
    named = {tool["function"]["name"]: tool for tool in tools}
    reading = Reading(thoughts=manner.thoughts, calls=manner.calls if tools else None, tools=named)
    return Demands(asked(**body), manner, means).of(chat, reading, opened)


def takes(demand: Demand, text: str) -> bool:
    assert isinstance(demand.constraint, Grammar)
    return not ungrammatical(demand.constraint.definition, text)


def choice_of(name: str) -> Json:
    return {"type": "function", "function": {"name": name}}


CALL = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
needs_lark = pytest.mark.skipif(not knows_lark(), reason="llguidance is not installed")


@needs_lark
@pytest.mark.shows("D.12", "D.13")
def test_who_must_call_is_held_to_its_own_way_of_calling() -> None:
    demand = demanded(QWEN, LARK, WEATHER, NOW, choice="required")
    assert demand.reading.calls == "hermes"
    assert demand.held == {"calls"}
    assert takes(demand, CALL)
    assert takes(demand, f"<think>Hm.</think>\n\n{CALL}")
    assert not takes(demand, "It is late.")


@needs_lark
@pytest.mark.shows("D.12")
def test_a_named_tool_is_the_only_one_that_can_be_called() -> None:
    demand = demanded(PLAIN, LARK, WEATHER, NOW, choice=choice_of("weather"), one=True)
    assert list(demand.reading.tools) == ["weather"]
    assert not takes(demand, CALL)
    right = CALL.replace("now", "weather").replace("{}}", '{"place": {"city": "Rome"}}}')
    assert takes(demand, right)
    assert not takes(demand, f"{right}\n{right}")


@needs_lark
def test_a_thought_that_the_prompt_has_opened_goes_on_first() -> None:
    demand = demanded(QWEN, LARK, NOW, choice="required", opened=True)
    assert takes(demand, f"Hm.</think>{CALL}")
    assert not takes(demand, CALL)


@needs_lark
def test_a_family_without_a_grammar_writes_a_list_of_calls() -> None:
    demand = demanded(Manner(calls="qwen3_coder"), LARK, NOW, choice="required")
    assert demand.reading.calls == "json"
    assert takes(demand, '[{"name": "now", "parameters": {}}]')


@pytest.mark.shows("D.12", "D.13")
@pytest.mark.parametrize("means", [JSON, VLLM])
def test_where_only_schemas_are_known_calls_are_a_list(means: frozenset[Means]) -> None:
    demand = demanded(QWEN, means, WEATHER, NOW, choice="required")
    assert isinstance(demand.constraint, JsonSchema)
    assert demand.reading.calls == "json"
    assert demand.reading.brackets
    valid = jsonschema_rs.validator_for(demand.constraint.schema).is_valid
    assert valid([{"name": "weather", "parameters": {"place": {"city": "Rome"}}}, {"name": "now", "parameters": {}}])
    assert not valid([{"name": "weather", "parameters": {"place": {}}}])
    assert not valid([{"name": "climate", "parameters": {}}])
    assert not valid([])


def test_one_call_at_most_is_one_call() -> None:
    schema = list_of_calls({"now": NOW}, parallel=False)
    assert not jsonschema_rs.validator_for(schema).is_valid([{"name": "now", "parameters": {}}] * 2)


@pytest.mark.parametrize("reference", ["#", "#/$defs/a"])
def test_references_within_a_schema_are_found_again(reference: str) -> None:
    own: Json = {
        "type": "object",
        "properties": {"next": {"$ref": reference}, "kind": {"const": {"$ref": "#"}}},
        "$defs": {"a": {"type": "object", "required": ["x"]}},
    }
    schema = list_of_calls({"f": {"function": {"name": "f", "parameters": own}}}, parallel=True)
    valid = jsonschema_rs.validator_for(schema).is_valid
    assert valid([{"name": "f", "parameters": {"next": {"x": 1}, "kind": {"$ref": "#"}}}])
    assert not valid([{"name": "f", "parameters": {"next": 3}}])


def test_an_engine_that_holds_to_nothing_is_not_asked_to() -> None:
    for body in ({"choice": "required"}, {"text": {"format": FORM}}):
        demand = demanded(QWEN, NONE, NOW, **body)
        assert (demand.constraint, demand.held, demand.reading.calls) == (None, frozenset(), "hermes")


@needs_lark
@pytest.mark.shows("D.10")
def test_json_may_come_after_a_thought_and_a_call_instead_of_it() -> None:
    demand = demanded(QWEN, LARK, NOW, text={"format": FORM})
    assert demand.held == {"calls", "form"}
    for text in ('{"a": 1}', '<think>Hm.</think>\n{"a": 1}', CALL):
        assert takes(demand, text)
    for text in ("Hello", '{"a": "1"}', '{"a": 1}' + "\n" * 9):
        assert not takes(demand, text)


@pytest.mark.shows("D.10")
@pytest.mark.parametrize(("form", "kind"), [(FORM, JsonSchema), ({"type": "json_object"}, JsonObject)])
def test_json_alone_is_the_engines_own_business(form: Json, kind: type) -> None:
    for manner, means in ((PLAIN, LARK), (QWEN, JSON), (PLAIN, VLLM)):
        demand = demanded(manner, means, text={"format": form})
        assert isinstance(demand.constraint, kind)
        assert demand.reading.brackets  # JSON is no thought, though the prompt may have opened one


def test_json_and_tools_without_a_grammar_are_looked_at_afterwards() -> None:
    demand = demanded(PLAIN, JSON, NOW, text={"format": FORM})
    assert (demand.constraint, demand.held) == (None, frozenset())


@needs_lark
@pytest.mark.shows("D.11")
def test_a_strict_tool_is_called_rightly_or_not_at_all() -> None:
    demand = demanded(QWEN, LARK, STRICT)
    assert takes(demand, "<think>Hm.</think>Hello!")
    right = '<tool_call>\n{"name": "weather", "arguments": {"place": {"city": "Rome"}}}\n</tool_call>'
    assert takes(demand, f"Well. {right}")
    assert not takes(demand, right.replace("city", "town"))
    assert demand.held == {"calls"}


def test_without_strict_tools_the_model_is_free() -> None:
    assert demanded(QWEN, LARK, WEATHER, NOW).constraint is None
    assert demanded(QWEN, JSON, STRICT).constraint is None


def test_what_must_be_called() -> None:
    tools = (WEATHER, NOW)
    assert must_call(ChatPrompt((), tools)) == []
    assert must_call(ChatPrompt((), tools, "required")) == ["weather", "now"]
    assert must_call(ChatPrompt((), tools, choice_of("now"))) == ["now"]


@pytest.mark.shows("D.10")
@pytest.mark.parametrize("cut", range(1, 12))
@pytest.mark.parametrize(
    ("said", "thought"),
    [('{"a": 1}', ""), ('\n [{"a": 1}]', ""), ("Hm.</think>\n\n{}", "Hm."), ("<think>Hm.</think>{}", "Hm.")],
)
def test_a_bracket_is_no_thought_where_json_is_wanted(said: str, thought: str, cut: int) -> None:
    parser = RawParser(ChatPrompt(()), Reading(thoughts="qwen3", unseen=True, brackets=True))
    deltas = [*parser.feed(Chunk(text=said[:cut])), *parser.feed(Chunk(text=said[cut:])), *parser.finish()]
    assert "".join([delta.text for delta in deltas if isinstance(delta, Thought)]) == thought
    told = "".join([delta.text for delta in deltas if isinstance(delta, Text)])
    assert told == said.rpartition("</think>")[2].strip() or told == said
