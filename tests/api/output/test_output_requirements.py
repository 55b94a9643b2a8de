"""Output requirements of chat completions and the Anthropic API: invalid output is retried, then it fails."""

import json
from typing import Any

import pytest

from antiphon.core.deltas import CallDelta, CallDone, CallStarted, Delta, Text
from antiphon.core.prompt import TokenCounts
from tests.api.app import ApiServer, run_api
from tests.oracles.chat import check_chat, check_chunk, parse_chunks

pytestmark = pytest.mark.anyio

HI: dict[str, Any] = {"model": "fake", "messages": [{"role": "user", "content": "Hello there"}]}
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS, "strict": True}}
VALID, INVALID = '{"city": "Rome", "days": 2}', '{"city": "Rome"}'
RESPONSE_FORMAT = {"type": "json_schema", "json_schema": {"name": "w", "schema": PARAMETERS, "strict": True}}


def build_call(arguments: str) -> list[Delta]:
    return [CallStarted(0, "weather"), CallDelta(0, arguments[:5]), CallDelta(0, arguments[5:]), CallDone(0)]


async def create_chat(server: ApiServer, **body: Any) -> dict[str, Any]:
    answer = await server.post("chat/completions", {**HI, **body})
    assert answer.status == 200, answer.body
    completion: dict[str, Any] = answer.json()
    check_chat(completion)
    return completion


def list_call_arguments(message: dict[str, Any]) -> list[str]:
    return [one["function"]["arguments"] for one in message.get("tool_calls") or ()]


@pytest.mark.shows("D.11", "D.13")
async def test_an_invalid_call_of_a_strict_tool_is_retried() -> None:
    async with run_api() as server:
        server.engine.says(*build_call(INVALID), counts=TokenCounts(input_tokens=10, output_tokens=5))
        server.engine.says(*build_call(VALID), counts=TokenCounts(input_tokens=30, output_tokens=6))
        body = await create_chat(server, tools=[WEATHER])
    (choice,) = body["choices"]
    assert (list_call_arguments(choice["message"]), choice["finish_reason"]) == ([VALID], "tool_calls")
    assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (40, 11)


@pytest.mark.shows("D.12", "D.13")
async def test_a_stream_contains_nothing_of_a_failed_attempt() -> None:
    async with run_api() as server:
        server.engine.says(Text("It is sunny."))
        server.engine.says(*build_call(VALID))
        answer = await server.post(
            "chat/completions", {**HI, "stream": True, "tools": [WEATHER], "tool_choice": "required"}
        )
    chunks = parse_chunks(answer.body)
    for chunk in chunks:
        check_chunk(chunk)
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    assert not any(delta.get("content") for delta in deltas)
    assert "".join(one["function"]["arguments"] for d in deltas for one in d.get("tool_calls") or ()) == VALID
    assert len(server.engine.seen) == 2


async def test_calls_of_two_attempts_have_distinct_indexes() -> None:
    time = {"type": "function", "function": {"name": "time", "parameters": {"type": "object", "properties": {}}}}
    invalid: list[Delta] = [CallStarted(1, "weather"), CallDelta(1, INVALID), CallDone(1)]
    async with run_api() as server:
        server.engine.says(CallStarted(0, "time"), CallDelta(0, "{}"), CallDone(0), *invalid)
        server.engine.says(*build_call(VALID))
        answer = await server.post("chat/completions", {**HI, "stream": True, "tools": [WEATHER, time]})
    deltas = [choice["delta"] for chunk in parse_chunks(answer.body) for choice in chunk["choices"]]
    named = [one for delta in deltas for one in delta.get("tool_calls") or () if one["function"].get("name")]
    assert [(one["index"], one["function"]["name"]) for one in named] == [(0, "time"), (1, "weather")]


async def test_each_of_several_choices_is_retried() -> None:
    async with run_api() as server:
        server.engine.says(*build_call(INVALID))
        server.engine.repeats()
        server.engine.says(*build_call(VALID))
        server.engine.repeats()
        body = await create_chat(server, tools=[WEATHER], n=2)
    assert [list_call_arguments(choice["message"]) for choice in body["choices"]] == [[VALID], [VALID]]


@pytest.mark.parametrize("stream", [False, True])
async def test_repeated_invalid_calls_are_an_error(stream: bool) -> None:
    async with run_api() as server:
        server.engine.says(*build_call(INVALID))
        server.engine.repeats(2)
        answer = await server.post("chat/completions", {**HI, "stream": stream, "tools": [WEATHER]})
    assert answer.status == (200 if stream else 500)
    assert b"invalid_tool_call" in answer.body
    assert b"tool_calls" not in answer.body


@pytest.mark.shows("D.10")
async def test_an_answer_that_violates_the_response_format_is_an_error() -> None:
    async with run_api() as server:
        server.engine.says(Text("Rome, two days."))
        answer = await server.post("chat/completions", {**HI, "response_format": RESPONSE_FORMAT})
        assert (answer.status, answer.error["code"]) == (500, "invalid_output")
        server.engine.says(Text(VALID))
        (choice,) = (await create_chat(server, response_format=RESPONSE_FORMAT))["choices"]
        assert json.loads(choice["message"]["content"]) == json.loads(VALID)


async def test_endless_white_space_truncates_a_chat() -> None:
    async with run_api() as server:
        server.engine.says(Text("{"), *[Text("\n" * 90)] * 900)
        (choice,) = (await create_chat(server, response_format=RESPONSE_FORMAT))["choices"]
    assert choice["finish_reason"] == "length"


@pytest.mark.shows("D.12")
async def test_the_anthropic_api_retries_too() -> None:
    tool = {"name": "weather", "input_schema": PARAMETERS}
    async with run_api() as server:
        server.engine.says(Text("It is sunny."))
        server.engine.says(*build_call(VALID))
        answer = await server.post(
            "messages", {**HI, "max_tokens": 50, "tools": [tool], "tool_choice": {"type": "any"}}
        )
    assert [block["type"] for block in answer.json()["content"]] == ["tool_use"]
