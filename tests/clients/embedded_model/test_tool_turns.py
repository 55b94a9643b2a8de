"""Tool turns with the embedded model, whose template knows no tools: offers, a call, its output, an answer. It is very
small: what it calls and answers is judged by its form alone."""

import json
from typing import Any

import pytest
from openai import OpenAI
from openai.types.responses import Response

from tests.oracles.responses import accumulate, check_event, check_response
from tests.support.server_process import Live

pytestmark = [pytest.mark.needs("llamacpp"), pytest.mark.real_model, pytest.mark.timeout(400)]

TOOL: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 12}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}
ASKED: Any = {"role": "user", "content": "Weather in Oslo?"}


@pytest.fixture
def model(small: OpenAI) -> str:
    return next(iter(small.models.list())).id


def checked(response: Response) -> Response:
    check_response(json.loads(response.to_json()))
    return response


@pytest.mark.shows("D.15", "D3.49")
def test_a_call_is_answered_and_the_answer_is_answered(small: OpenAI, model: str) -> None:
    wants: Any = {"model": model, "tools": [TOOL], "temperature": 0, "max_output_tokens": 60}
    first = checked(
        small.responses.create(
            input=[ASKED], parallel_tool_calls=False, tool_choice={"type": "function", "name": "get_weather"}, **wants
        )
    )
    (call,) = [item for item in first.output if item.type == "function_call"]
    assert isinstance(json.loads(call.arguments)["city"], str)
    output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "3 degrees, snow"}
    second = checked(small.responses.create(previous_response_id=first.id, input=[output], tool_choice="none", **wants))
    assert second.output_text
    assert {item.type for item in second.output} == {"message"}


def test_tools_are_offered_and_a_stream_is_whole_whatever_comes(small: OpenAI, model: str) -> None:
    events = [
        event.to_dict(mode="json")
        for event in small.responses.create(
            model=model, input=[ASKED], tools=[TOOL], temperature=0, max_output_tokens=40, stream=True
        )
    ]
    for event in events:
        check_event(event)
    assert accumulate(events).output


def test_the_embedded_engine_says_that_it_takes_tools(embedded: Live, small: OpenAI) -> None:
    able = small.get("/capabilities", cast_to=dict[str, Any])["data"][0]
    assert "tools" in able["honours"]
    assert "tools" not in able["lacks"]
