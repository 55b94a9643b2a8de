"""Constraints on a Harmony answer: the header that is prefilled for the model, and the constraint that the engine
enforces.
"""

from typing import Any

import pytest

from antiphon.core.history.history import make_history
from antiphon.core.prompt import ChatPrompt, Grammar, JsonObject, JsonSchema, StructuralTag
from antiphon.protocol.schemas.schema_edits import MAX_TEXT
from antiphon.render.content import AttachmentLookup
from antiphon.render.harmony.system import ALL_ENFORCED as ALL_HELD
from antiphon.render.harmony.system import ConstraintKind, HarmonyConstraint, derive_constraint, list_required_tools
from antiphon.render.messages import render_chat
from tests.render.requests import ALL_FEATURES, make_request

CITY_SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "name": "get_weather", "parameters": CITY_SCHEMA, "strict": True}
TIME = {"type": "function", "name": "get_time", "parameters": {"type": "object", "properties": {}}}
NAMED = {"type": "function", "name": "get_weather"}
SCHEMA = {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"], "additionalProperties": False}
TEXT_FORMAT = {"format": {"type": "json_schema", "name": "answer", "schema": SCHEMA, "strict": True}}


def build_constraint(*kinds: ConstraintKind, **fields: Any) -> HarmonyConstraint:
    create_request = make_request(**fields)
    chat = render_chat(make_history((), create_request.input), create_request, ALL_FEATURES, AttachmentLookup()).prompt
    return derive_constraint(create_request, chat, frozenset(kinds))


def test_required_tools_follow_the_tool_choice() -> None:
    tools = ({"type": "function", "function": {"name": "weather"}}, {"type": "function", "function": {"name": "now"}})
    assert not list_required_tools(ChatPrompt((), tools))
    assert list_required_tools(ChatPrompt((), tools, "required")) == tools
    assert list_required_tools(ChatPrompt((), tools, {"function": {"name": "now"}})) == [tools[1]]


def test_a_plain_request_is_unconstrained() -> None:
    assert build_constraint("json", "lark", "tag") == HarmonyConstraint()
    assert build_constraint("json", tools=[WEATHER, TIME]) == HarmonyConstraint()


@pytest.mark.shows("D.12", "D.13")
def test_a_named_tool_is_prefilled_and_its_arguments_follow_its_schema() -> None:
    fields = {"tools": [WEATHER, TIME], "tool_choice": NAMED}
    assert build_constraint(**fields) == HarmonyConstraint(opening="functions.get_weather")
    schema = JsonSchema(schema=CITY_SCHEMA, name="get_weather", strict=True)
    assert build_constraint("json", **fields) == HarmonyConstraint(
        opening="functions.get_weather", constraint=schema, enforced=ALL_HELD
    )
    assert build_constraint("json", tools=[WEATHER], tool_choice="required").opening == "functions.get_weather"


def test_a_required_call_leaves_the_choice_among_several_tools() -> None:
    assert build_constraint("json", tools=[WEATHER, TIME], tool_choice="required") == HarmonyConstraint(
        opening="functions"
    )


@pytest.mark.parametrize("choice", [NAMED, "required"])
def test_a_grammar_lets_the_model_reason_before_a_required_call(choice: Any) -> None:
    fields = {"tools": [WEATHER, TIME], "tool_choice": choice}
    by_grammar, by_tag = build_constraint("json", "lark", **fields), build_constraint("lark", "tag", **fields)
    assert (by_grammar.opening, by_tag.opening) == ("", "")
    assert isinstance(by_grammar.constraint, Grammar)
    assert "analysis" in by_grammar.constraint.definition
    assert "answer" not in by_grammar.constraint.definition
    assert ("get_time" in by_grammar.constraint.definition) is (choice == "required")
    assert isinstance(by_tag.constraint, StructuralTag)
    assert "final" not in str(by_tag.constraint.tag)


def test_a_format_prefills_the_final_header_and_constrains_the_answer() -> None:
    schema = JsonSchema(schema=SCHEMA, name="answer", strict=True)
    assert build_constraint("json", text=TEXT_FORMAT) == HarmonyConstraint(
        opening="final", constraint=schema, enforced=frozenset({"form"})
    )
    assert build_constraint("json", text={"format": {"type": "json_object"}}).constraint == JsonObject()
    assert build_constraint(text=TEXT_FORMAT) == HarmonyConstraint()  # stated in the prompt only


def test_a_format_with_tools_is_enforced_only_by_a_grammar() -> None:
    assert build_constraint("json", text=TEXT_FORMAT, tools=[WEATHER]) == HarmonyConstraint()
    constraint = build_constraint("lark", text=TEXT_FORMAT, tools=[WEATHER]).constraint
    assert isinstance(constraint, Grammar)
    assert constraint.definition.splitlines()[0] == "start: thought* preamble* (call_0 | answer)"
    assert " to=functions.get_weather" in constraint.definition
    assert constraint.definition.count(f'"maxLength":{MAX_TEXT}') == 2  # of the argument and of the answer


@pytest.mark.parametrize("kind", ["lark", "tag"])
def test_a_strict_tool_is_constrained_but_not_forced(kind: ConstraintKind) -> None:
    free = build_constraint(kind, tools=[WEATHER, {**TIME, "parameters": CITY_SCHEMA, "strict": False}])
    text = str(free.constraint)
    assert "final" in text
    assert text.count("additionalProperties") == (1 if kind == "lark" else 8)  # of the strict tool only
    assert (free.opening, free.enforced) == ("", frozenset({"calls"}))
    assert build_constraint("json", tools=[WEATHER]) == HarmonyConstraint()  # checked after generation


def test_effort_none_allows_no_reasoning() -> None:
    silent = {"reasoning": {"effort": "none"}}
    assert build_constraint("json", **silent) == HarmonyConstraint(opening="final")
    for constraint in (
        build_constraint("lark", text=TEXT_FORMAT, **silent).constraint,
        build_constraint("tag", text=TEXT_FORMAT, **silent).constraint,
    ):
        assert "analysis<" not in str(constraint)
        assert '"analysis" <[200008]> TEXT' not in str(constraint)
