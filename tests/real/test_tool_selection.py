"""A real model that was trained for tools selects the right one of four, with the right argument.

It is the GGUF file that TEST_GGUF names (`make test-engines GGUF=FILE`), Qwen2.5-Coder-1.5B-Instruct or better.
"""

import json
import sys
from typing import Any

import pytest
from openai import OpenAI

from tests.oracles.responses import check_response
from tests.real.test_required_calls import first_model_id, tool_client

__all__ = ["tool_client"]

pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(6000)]

MIN_RIGHT = 9


def make_tool(name: str, description: str, **properties: Any) -> Any:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "name": name, "description": description, "parameters": parameters}


TEXT, CODE = {"type": "string"}, {"type": "string", "description": "ISO code, such as EUR"}
TOOLS = [
    make_tool("get_weather", "The weather in a city, now.", city=TEXT),
    make_tool("convert_currency", "Converts money.", amount={"type": "number"}, source=CODE, target=CODE),
    make_tool("set_timer", "Sets a timer.", minutes={"type": "integer"}),
    make_tool("search_files", "Searches the user's files for a word.", word=TEXT),
]
QUESTIONS = [
    ("What is the weather in Oslo right now?", "get_weather", "city", "Oslo"),
    ("Is it raining in Rome?", "get_weather", "city", "Rome"),
    ("Tell me how warm it is in Nairobi today.", "get_weather", "city", "Nairobi"),
    ("I need to know the weather in Lima before I leave.", "get_weather", "city", "Lima"),
    ("How many dollars are 50 euros?", "convert_currency", "amount", 50),
    ("Convert 120 CHF to JPY.", "convert_currency", "amount", 120),
    ("Set a timer for 7 minutes.", "set_timer", "minutes", 7),
    ("Start a timer that rings in 25 minutes.", "set_timer", "minutes", 25),
    ("Find my files that contain the word invoice.", "search_files", "word", "invoice"),
    ("Which of my files mention Darwin?", "search_files", "word", "Darwin"),
]


@pytest.mark.shows("D.9")
def test_the_right_tool_is_called_with_the_right_argument(tool_client: OpenAI) -> None:
    model, right = first_model_id(tool_client), 0
    for question, name, argument, value in QUESTIONS:
        response = tool_client.responses.create(
            model=model, input=question, tools=TOOLS, temperature=0, max_output_tokens=150
        )
        check_response(json.loads(response.to_json()))
        calls = [(item.name, json.loads(item.arguments)) for item in response.output if item.type == "function_call"]
        fits = len(calls) == 1 and calls[0][0] == name and calls[0][1].get(argument) == value
        right += fits
        sys.stdout.write(f"{'right' if fits else 'wrong'}: {question} → {calls}\n")
    assert right >= MIN_RIGHT, f"{right} of {len(QUESTIONS)}"
