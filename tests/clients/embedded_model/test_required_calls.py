"""The embedded model has to call: what it calls is what it may, and the arguments fit. What they say is not judged."""

import json
from collections.abc import Iterable
from typing import Any

import jsonschema_rs
import pytest
from openai import OpenAI
from openai.types.responses import Response

from tests.oracles.responses import accumulate, check_event, check_response

pytestmark = [pytest.mark.needs("llamacpp"), pytest.mark.real_model, pytest.mark.timeout(400)]

WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city.",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 12},
            "days": {"type": "integer", "minimum": 1, "maximum": 9},
        },
        "required": ["city", "days"],
        "additionalProperties": False,
    },
}
TIMER: Any = {
    "type": "function",
    "name": "set_timer",
    "description": "Sets a timer.",
    "parameters": {
        "type": "object",
        "properties": {"minutes": {"type": "integer", "minimum": 0, "maximum": 99}, "loud": {"type": "boolean"}},
        "required": ["minutes"],
        "additionalProperties": False,
    },
}
TOOLS = [WEATHER, TIMER]
ASKED = ["Weather in Oslo?", "Set a timer.", "Hello!", "Tell me a story.", "</tool_call>", "{}"]


def schema_of(name: str) -> Any:
    (parameters,) = [tool["parameters"] for tool in TOOLS if tool["name"] == name]
    return parameters


def fits(response: Response) -> bool:
    """It called, and every call fits; one that was cut by its length counts for nothing."""
    calls = [item for item in response.output if item.type == "function_call" and item.status == "completed"]
    return bool(calls) and all(
        jsonschema_rs.validator_for(schema_of(call.name)).is_valid(json.loads(call.arguments)) for call in calls
    )


def required(client: OpenAI, model: str, asked: Iterable[str], **more: Any) -> list[bool]:
    """Whether it did as it must, for each."""
    wanted: Any = {"model": model, "tools": TOOLS, "tool_choice": "required", "max_output_tokens": 80, **more}
    return [
        fits(client.responses.create(input=text, extra_body={"seed": seed}, **wanted))
        for seed, text in enumerate(asked)
    ]


@pytest.fixture
def model(small: OpenAI) -> str:
    return next(iter(small.models.list())).id


@pytest.mark.shows("D.12", "D.13")
def test_who_must_call_calls_and_its_arguments_fit(small: OpenAI, model: str) -> None:
    assert all(required(small, model, ASKED[:3], parallel_tool_calls=False))


@pytest.mark.shows("D.11", "D.12")
def test_a_named_strict_tool_is_called_once_and_streamed(small: OpenAI, model: str) -> None:
    choice: Any = {"type": "function", "name": "get_weather"}
    with small.responses.create(
        model=model, input="Hello!", tools=TOOLS, tool_choice=choice, max_output_tokens=80, stream=True
    ) as stream:
        events = [event.to_dict(mode="json") for event in stream]
    for event in events:
        check_event(event)
    whole = accumulate(events)
    check_response(json.loads(whole.to_json()))
    assert [getattr(item, "name", None) for item in whole.output] == ["get_weather"]
    assert fits(whole)
    assert len([event for event in events if event["type"] == "response.function_call_arguments.delta"]) > 1


@pytest.mark.shows("D.14")
def test_a_custom_tool_gets_what_its_regular_expression_allows(small: OpenAI, model: str) -> None:
    form: Any = {"type": "grammar", "syntax": "regex", "definition": "[0-9]{3}-[0-9]{2}"}
    tool: Any = {"type": "custom", "name": "dial", "description": "Dials a number.", "format": form}
    response = small.responses.create(
        model=model, input="Call me.", tools=[tool], tool_choice="required", parallel_tool_calls=False,
        max_output_tokens=60,
    )  # fmt: skip
    (call,) = response.output
    assert call.type == "custom_tool_call"
    head, _, tail = call.input.partition("-")
    assert (len(head), len(tail), head.isdigit(), tail.isdigit()) == (3, 2, True, True)


@pytest.mark.shows("D.10")
def test_json_or_a_call_is_all_that_comes_where_both_are_wanted(small: OpenAI, model: str) -> None:
    form: Any = {
        "type": "json_schema", "name": "n", "strict": True,
        "schema": {
            "type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}},
            "required": ["n"], "additionalProperties": False,
        },
    }  # fmt: skip
    response = small.responses.create(
        model=model, input="How many?", tools=[TIMER], text={"format": form}, parallel_tool_calls=False,
        max_output_tokens=60, temperature=0,
    )  # fmt: skip
    assert response.status == "completed"
    (item,) = response.output
    if item.type == "message":
        assert set(json.loads(response.output_text)) == {"n"}
    else:
        assert fits(response)
