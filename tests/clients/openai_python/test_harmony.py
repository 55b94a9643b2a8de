"""The `openai` package in a conversation with a gpt-oss model, simulated by the fake engine at the level of Harmony
tokens: two tool turns, an answer, and a follow-up message.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI
from openai.types.responses import Response, ResponseFunctionToolCall, ResponseOutputMessage, ResponseReasoningItem

from tests.clients.tool_definitions import WEATHER
from tests.oracles.responses import accumulate, check_event
from tests.support.server_process import run_server

TIME: Any = {"type": "function", "name": "get_time", "parameters": {"type": "object", "properties": {}}}
TOOLS: Any = [WEATHER, TIME]
ARGUMENTS = '{"city": "Paris", "days": 2}'
SCRIPT = f"""
[[reply]]
request = 1
steps = [{{ harmony = '''<|channel|>analysis<|message|>Paris, then.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{ARGUMENTS}<|call|>''' }}]

[[reply]]
request = 2
steps = [{{ harmony = '''<|channel|>analysis<|message|>And the time.<|end|><|start|>assistant<|channel|>commentary<|message|>One more thing.<|end|><|start|>assistant<|channel|>commentary to=functions.get_time <|constrain|>json<|message|>{{}}<|call|>''' }}]

[[reply]]
request = 3
steps = [{{ harmony = '''<|channel|>analysis<|message|>All there.<|end|><|start|>assistant<|channel|>final<|message|>Warm, at noon.<|return|>''' }}]
"""  # noqa: E501


@pytest.fixture
def client(tmp_path: Path) -> Iterator[OpenAI]:
    script = tmp_path / "gpt-oss.toml"
    script.write_text(SCRIPT)
    with (
        run_server("--engine", "fake", "--fake-level", "harmony", "--fake-script", str(script)) as server,
        OpenAI(base_url=server.v1, api_key="unused", max_retries=0, timeout=60) as client,
    ):
        yield client


def _stream_response(client: OpenAI, **body: Any) -> Response:
    """Stream a response with the helper of the package, compare it with the stored response, and return the stored
    one.
    """
    with client.responses.stream(model="gpt-oss", **body) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    stored = client.responses.retrieve(final.id)
    assert [item.type for item in stored.output] == [item.type for item in final.output]
    assert stored.output_text == final.output_text
    return stored


def _count_tokens(client: OpenAI, **body: Any) -> int:
    return client.responses.input_tokens.count(model="gpt-oss", **body).input_tokens


def _tool_output(call: Any, text: str) -> list[Any]:
    assert isinstance(call, ResponseFunctionToolCall)
    return [{"type": "function_call_output", "call_id": call.call_id, "output": text}]


@pytest.mark.shows("D.1", "D.2", "D.3", "D.5", "D.7", "I.10")
def test_two_tool_turns_lead_to_a_final_answer(client: OpenAI) -> None:
    question: Any = {"role": "user", "content": "How is it in Paris?"}
    first = _stream_response(client, input=[question], tools=TOOLS)
    reasoning, call = first.output
    assert isinstance(reasoning, ResponseReasoningItem)
    assert reasoning.content is not None
    assert reasoning.content[0].text == "Paris, then."
    assert isinstance(call, ResponseFunctionToolCall)
    assert (call.name, call.arguments) == ("get_weather", ARGUMENTS)

    second = _stream_response(client, previous_response_id=first.id, input=_tool_output(call, "22 °C"), tools=TOOLS)
    assert [item.type for item in second.output] == ["reasoning", "message", "function_call"]
    assert second.usage is not None
    # The reasoning is rendered again: without it the prompt would be shorter.
    without_reasoning = [question, call.model_dump(exclude_none=True), *_tool_output(call, "22 °C")]
    assert second.usage.input_tokens > _count_tokens(client, input=without_reasoning, tools=TOOLS)
    assert second.usage.input_tokens == _count_tokens(
        client, previous_response_id=first.id, input=_tool_output(call, "22 °C"), tools=TOOLS
    )

    third = _stream_response(
        client, previous_response_id=second.id, input=_tool_output(second.output[-1], "12:00"), tools=TOOLS
    )
    answer = third.output[-1]
    assert isinstance(answer, ResponseOutputMessage)
    assert (third.output_text, answer.phase) == ("Warm, at noon.", "final_answer")

    thanks: Any = {"role": "user", "content": "Thanks!"}
    last = _stream_response(client, previous_response_id=third.id, input=[thanks])
    assert last.output_text == "You said: Thanks!"
    history = [
        question, *first.output[1:], *_tool_output(call, "22 °C"), *second.output[1:],
        *_tool_output(second.output[-1], "12:00"), *third.output[1:], thanks,
    ]  # fmt: skip
    history_items: Any = [item if isinstance(item, dict) else item.model_dump(exclude_none=True) for item in history]
    assert last.usage is not None
    assert last.usage.input_tokens == _count_tokens(
        client, input=history_items
    )  # no reasoning remains after the final answer


def test_every_event_is_valid_and_the_stored_response_equals_the_fold(client: OpenAI) -> None:
    with client.responses.create(model="gpt-oss", input="How is it in Paris?", tools=TOOLS, stream=True) as stream:
        raw = [json.loads(event.model_dump_json(exclude_unset=True, by_alias=True)) for event in stream]
    for event in raw:
        check_event(event)
    folded = accumulate(raw)
    stored = client.responses.retrieve(folded.id)
    assert stored.output == folded.output
    assert stored.usage == folded.usage
    assert stored.usage is not None
    assert stored.usage.output_tokens_details.reasoning_tokens == 4
