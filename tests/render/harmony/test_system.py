"""What a request leaves open of an answer in Harmony: by the header that is written for the model, or by constraint."""

from typing import Any

import pytest

from antiphon.core.history.history import make_history
from antiphon.core.prompt import Grammar, JsonObject, JsonSchema, StructuralTag
from antiphon.render.attachments import Attached
from antiphon.render.harmony.system import ALL as ALL_HELD
from antiphon.render.harmony.system import Demand, Means, demanded
from antiphon.render.messages import render_chat
from tests.render.requests import ALL, request

PLACE = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "name": "get_weather", "parameters": PLACE, "strict": True}
TIME = {"type": "function", "name": "get_time", "parameters": {"type": "object", "properties": {}}}
NAMED = {"type": "function", "name": "get_weather"}
SCHEMA = {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"], "additionalProperties": False}
FORM = {"format": {"type": "json_schema", "name": "answer", "schema": SCHEMA, "strict": True}}


def demand(*means: Means, **fields: Any) -> Demand:
    asked = request(**fields)
    chat = render_chat(make_history((), asked.input), asked, ALL, Attached()).prompt
    return demanded(asked, chat, frozenset(means))


def test_a_request_without_wishes_leaves_all_open() -> None:
    assert demand("json", "lark", "tag") == Demand()
    assert demand("json", tools=[WEATHER, TIME]) == Demand()


@pytest.mark.shows("D.12", "D.13")
def test_a_named_tool_is_called_at_once_and_its_arguments_are_held_to_its_schema() -> None:
    asked = {"tools": [WEATHER, TIME], "tool_choice": NAMED}
    assert demand(**asked) == Demand(opening="functions.get_weather")
    held = JsonSchema(schema=PLACE, name="get_weather", strict=True)
    assert demand("json", **asked) == Demand(opening="functions.get_weather", constraint=held, held=ALL_HELD)
    assert demand("json", tools=[WEATHER], tool_choice="required").opening == "functions.get_weather"


def test_one_of_several_tools_is_called_and_the_model_says_which() -> None:
    assert demand("json", tools=[WEATHER, TIME], tool_choice="required") == Demand(opening="functions")


@pytest.mark.parametrize("choice", [NAMED, "required"])
def test_where_the_engine_takes_a_grammar_the_model_may_think_before_it_calls(choice: Any) -> None:
    asked = {"tools": [WEATHER, TIME], "tool_choice": choice}
    by_grammar, by_tag = demand("json", "lark", **asked), demand("lark", "tag", **asked)
    assert (by_grammar.opening, by_tag.opening) == ("", "")
    assert isinstance(by_grammar.constraint, Grammar)
    assert "analysis" in by_grammar.constraint.definition
    assert "answer" not in by_grammar.constraint.definition
    assert ("get_time" in by_grammar.constraint.definition) is (choice == "required")
    assert isinstance(by_tag.constraint, StructuralTag)
    assert "final" not in str(by_tag.constraint.tag)


def test_a_form_is_held_from_the_header_of_the_answer_on() -> None:
    held = JsonSchema(schema=SCHEMA, name="answer", strict=True)
    assert demand("json", text=FORM) == Demand(opening="final", constraint=held, held=frozenset({"form"}))
    assert demand("json", text={"format": {"type": "json_object"}}).constraint == JsonObject()
    assert demand(text=FORM) == Demand()  # by the prompt alone


def test_a_form_leaves_a_model_with_tools_the_choice_to_call_unless_the_engine_takes_a_grammar() -> None:
    assert demand("json", text=FORM, tools=[WEATHER]) == Demand()
    constraint = demand("lark", text=FORM, tools=[WEATHER]).constraint
    assert isinstance(constraint, Grammar)
    assert constraint.definition.splitlines()[0] == "start: thought* preamble* (call_0 | answer)"
    assert " to=functions.get_weather" in constraint.definition


@pytest.mark.parametrize("means", ["lark", "tag"])
def test_a_strict_tool_is_called_as_it_wants_and_only_if_the_model_likes(means: Means) -> None:
    free = demand(means, tools=[WEATHER, {**TIME, "parameters": PLACE, "strict": False}])
    said = str(free.constraint)
    assert "final" in said
    assert said.count("additionalProperties") == (1 if means == "lark" else 8)  # of the strict one alone
    assert (free.opening, free.held) == ("", frozenset({"calls"}))
    assert demand("json", tools=[WEATHER]) == Demand()  # looked at afterwards


def test_an_effort_of_none_leaves_no_room_for_thoughts() -> None:
    silent = {"reasoning": {"effort": "none"}}
    assert demand("json", **silent) == Demand(opening="final")
    for constraint in (demand("lark", text=FORM, **silent).constraint, demand("tag", text=FORM, **silent).constraint):
        assert "analysis<" not in str(constraint)
        assert '"analysis" <[200008]> TEXT' not in str(constraint)
