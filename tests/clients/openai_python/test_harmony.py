"""The openai package in a conversation with a gpt-oss model, which the fake engine plays by its tokens: two turns of
tools, an answer, and a question after it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI
from openai.types.responses import Response, ResponseFunctionToolCall, ResponseOutputMessage, ResponseReasoningItem

from tests.clients.tool_definitions import WEATHER
from tests.oracles.responses import accumulate, check_event
from tests.support.server_process import serving

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
        serving("--engine", "fake", "--fake-level", "harmony", "--fake-script", str(script)) as live,
        OpenAI(base_url=live.v1, api_key="unused", max_retries=0, timeout=60) as made,
    ):
        yield made


def _streamed(client: OpenAI, **body: Any) -> Response:
    """By the package's own helper, every event looked at."""
    with client.responses.stream(model="gpt-oss", **body) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kept = client.responses.retrieve(final.id)
    assert [item.type for item in kept.output] == [item.type for item in final.output]
    assert kept.output_text == final.output_text
    return kept


def _counted(client: OpenAI, **body: Any) -> int:
    return client.responses.input_tokens.count(model="gpt-oss", **body).input_tokens


def _output(call: Any, text: str) -> list[Any]:
    assert isinstance(call, ResponseFunctionToolCall)
    return [{"type": "function_call_output", "call_id": call.call_id, "output": text}]


@pytest.mark.shows("D.1", "D.2", "D.3", "D.5", "D.7", "I.10")
def test_two_turns_of_tools_and_an_answer(client: OpenAI) -> None:
    asked: Any = {"role": "user", "content": "How is it in Paris?"}
    first = _streamed(client, input=[asked], tools=TOOLS)
    thought, call = first.output
    assert isinstance(thought, ResponseReasoningItem)
    assert thought.content is not None
    assert thought.content[0].text == "Paris, then."
    assert isinstance(call, ResponseFunctionToolCall)
    assert (call.name, call.arguments) == ("get_weather", ARGUMENTS)

    second = _streamed(client, previous_response_id=first.id, input=_output(call, "22 °C"), tools=TOOLS)
    assert [item.type for item in second.output] == ["reasoning", "message", "function_call"]
    assert second.usage is not None
    # The thought is told again: without it the prompt would be shorter.
    without = [asked, call.model_dump(exclude_none=True), *_output(call, "22 °C")]
    assert second.usage.input_tokens > _counted(client, input=without, tools=TOOLS)
    assert second.usage.input_tokens == _counted(
        client, previous_response_id=first.id, input=_output(call, "22 °C"), tools=TOOLS
    )

    third = _streamed(client, previous_response_id=second.id, input=_output(second.output[-1], "12:00"), tools=TOOLS)
    answer = third.output[-1]
    assert isinstance(answer, ResponseOutputMessage)
    assert (third.output_text, answer.phase) == ("Warm, at noon.", "final_answer")

    thanks: Any = {"role": "user", "content": "Thanks!"}
    last = _streamed(client, previous_response_id=third.id, input=[thanks])
    assert last.output_text == "You said: Thanks!"
    said = [
        asked, *first.output[1:], *_output(call, "22 °C"), *second.output[1:],
        *_output(second.output[-1], "12:00"), *third.output[1:], thanks,
    ]  # fmt: skip
    spoken: Any = [item if isinstance(item, dict) else item.model_dump(exclude_none=True) for item in said]
    assert last.usage is not None
    assert last.usage.input_tokens == _counted(client, input=spoken)  # no thought is left


def test_every_event_of_such_a_stream_is_valid_and_json_is_the_same(client: OpenAI) -> None:
    with client.responses.create(model="gpt-oss", input="How is it in Paris?", tools=TOOLS, stream=True) as stream:
        raw = [json.loads(event.model_dump_json(exclude_unset=True, by_alias=True)) for event in stream]
    for event in raw:
        check_event(event)
    folded = accumulate(raw)
    got = client.responses.retrieve(folded.id)
    assert got.output == folded.output
    assert got.usage == folded.usage
    assert got.usage is not None
    assert got.usage.output_tokens_details.reasoning_tokens == 4
