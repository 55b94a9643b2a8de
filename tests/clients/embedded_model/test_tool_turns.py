"""Tool turns with the embedded model, whose chat template has no tools: offer, call, output, answer. The model is very
small, so only the form of its calls and answers is checked.
"""

import json
from typing import Any

import pytest
from openai import OpenAI
from openai.types.responses import Response

from tests.oracles.responses import accumulate, check_event, check_response
from tests.support.server_process import ServerProcess

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
QUESTION: Any = {"role": "user", "content": "Weather in Oslo?"}


@pytest.fixture
def model(embedded_client: OpenAI) -> str:
    return next(iter(embedded_client.models.list())).id


def validate(response: Response) -> Response:
    check_response(json.loads(response.to_json()))
    return response


@pytest.mark.shows("D.15", "D3.49")
@pytest.mark.uses("openai-python", "tools")
def test_a_tool_call_and_its_output_lead_to_an_answer(embedded_client: OpenAI, model: str) -> None:
    fields: Any = {"model": model, "tools": [TOOL], "temperature": 0, "max_output_tokens": 60}
    first = validate(
        embedded_client.responses.create(
            input=[QUESTION],
            parallel_tool_calls=False,
            tool_choice={"type": "function", "name": "get_weather"},
            **fields,
        )
    )
    (call,) = [item for item in first.output if item.type == "function_call"]
    assert isinstance(json.loads(call.arguments)["city"], str)
    output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "3 degrees, snow"}
    second = validate(
        embedded_client.responses.create(previous_response_id=first.id, input=[output], tool_choice="none", **fields)
    )
    assert second.output_text
    assert {item.type for item in second.output} == {"message"}


def test_a_stream_with_tools_is_valid(embedded_client: OpenAI, model: str) -> None:
    events = [
        event.to_dict(mode="json")
        for event in embedded_client.responses.create(
            model=model, input=[QUESTION], tools=[TOOL], temperature=0, max_output_tokens=40, stream=True
        )
    ]
    for event in events:
        check_event(event)
    assert accumulate(events).output


def test_the_embedded_engine_reports_tool_support(embedded_server: ServerProcess, embedded_client: OpenAI) -> None:
    capabilities = embedded_client.get("/capabilities", cast_to=dict[str, Any])["data"][0]
    assert "tools" in capabilities["honours"]
    assert "tools" not in capabilities["lacks"]
