"""Forced tool calls of the embedded model: it calls only allowed tools and the arguments match their schema. The values
are not checked.
"""

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
INPUTS = ["Weather in Oslo?", "Set a timer.", "Hello!", "Tell me a story.", "</tool_call>", "{}"]


def find_parameters(name: str) -> Any:
    (parameters,) = [tool["parameters"] for tool in TOOLS if tool["name"] == name]
    return parameters


def has_valid_calls(response: Response) -> bool:
    """Return whether there is at least one completed call and every completed call matches its schema. Calls cut by the
    token limit are ignored.
    """
    calls = [item for item in response.output if item.type == "function_call" and item.status == "completed"]
    return bool(calls) and all(
        jsonschema_rs.validator_for(find_parameters(call.name)).is_valid(json.loads(call.arguments)) for call in calls
    )


def require_calls(client: OpenAI, model: str, inputs: Iterable[str], **fields: Any) -> list[bool]:
    """Return for each input whether the response has valid calls."""
    body: Any = {"model": model, "tools": TOOLS, "tool_choice": "required", "max_output_tokens": 80, **fields}
    return [
        has_valid_calls(client.responses.create(input=text, extra_body={"seed": seed}, **body))
        for seed, text in enumerate(inputs)
    ]


@pytest.fixture
def model(embedded_client: OpenAI) -> str:
    return next(iter(embedded_client.models.list())).id


@pytest.mark.shows("D.12", "D.13")
def test_tool_choice_required_produces_valid_calls(embedded_client: OpenAI, model: str) -> None:
    assert all(require_calls(embedded_client, model, INPUTS[:2], parallel_tool_calls=False))


@pytest.mark.shows("D.11", "D.12")
def test_a_named_strict_tool_is_called_once_and_streamed(embedded_client: OpenAI, model: str) -> None:
    choice: Any = {"type": "function", "name": "get_weather"}
    with embedded_client.responses.create(
        model=model, input="Hello!", tools=TOOLS, tool_choice=choice, max_output_tokens=80, stream=True
    ) as stream:
        events = [event.to_dict(mode="json") for event in stream]
    for event in events:
        check_event(event)
    response = accumulate(events)
    check_response(json.loads(response.to_json()))
    assert [getattr(item, "name", None) for item in response.output] == ["get_weather"]
    assert has_valid_calls(response)
    assert len([event for event in events if event["type"] == "response.function_call_arguments.delta"]) > 1


@pytest.mark.shows("D.14")
def test_the_input_of_a_custom_tool_matches_its_regular_expression(embedded_client: OpenAI, model: str) -> None:
    form: Any = {"type": "grammar", "syntax": "regex", "definition": "[0-9]{3}-[0-9]{2}"}
    tool: Any = {"type": "custom", "name": "dial", "description": "Dials a number.", "format": form}
    response = embedded_client.responses.create(
        model=model, input="Call me.", tools=[tool], tool_choice="required", parallel_tool_calls=False,
        max_output_tokens=60,
    )  # fmt: skip
    (call,) = response.output
    assert call.type == "custom_tool_call"
    head, _, tail = call.input.partition("-")
    assert (len(head), len(tail), head.isdigit(), tail.isdigit()) == (3, 2, True, True)


@pytest.mark.shows("D.10")
def test_a_json_schema_with_tools_produces_json_or_a_call(embedded_client: OpenAI, model: str) -> None:
    form: Any = {
        "type": "json_schema", "name": "n", "strict": True,
        "schema": {
            "type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}},
            "required": ["n"], "additionalProperties": False,
        },
    }  # fmt: skip
    response = embedded_client.responses.create(
        model=model, input="How many?", tools=[TIMER], text={"format": form}, parallel_tool_calls=False,
        max_output_tokens=60, temperature=0,
    )  # fmt: skip
    assert response.status == "completed"
    (item,) = response.output
    if item.type == "message":
        assert set(json.loads(response.output_text)) == {"n"}
    else:
        assert has_valid_calls(response)
