"""What chats insist on: the same as responses do, in the words of chat completions and messages."""

import json
from typing import Any

import pytest

from antiphon.core.deltas import CallDelta, CallDone, CallStarted, Delta, Text
from antiphon.core.prompt import Counts
from tests.api.app import Api, api
from tests.oracles.chat import check_chat, check_chunk, frames_in

pytestmark = pytest.mark.anyio

HI: dict[str, Any] = {"model": "fake", "messages": [{"role": "user", "content": "Hello there"}]}
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS, "strict": True}}
RIGHT, WRONG = '{"city": "Rome", "days": 2}', '{"city": "Rome"}'
FORM = {"type": "json_schema", "json_schema": {"name": "w", "schema": PARAMETERS, "strict": True}}


def call(arguments: str) -> list[Delta]:
    return [CallStarted(0, "weather"), CallDelta(0, arguments[:5]), CallDelta(0, arguments[5:]), CallDone(0)]


async def made(server: Api, **body: Any) -> dict[str, Any]:
    answer = await server.post("chat/completions", {**HI, **body})
    assert answer.status == 200, answer.body
    completion: dict[str, Any] = answer.json()
    check_chat(completion)
    return completion


def called(message: dict[str, Any]) -> list[str]:
    return [one["function"]["arguments"] for one in message.get("tool_calls") or ()]


@pytest.mark.shows("D.11", "D.13")
async def test_a_strict_tool_is_called_rightly() -> None:
    async with api() as server:
        server.engine.says(*call(WRONG), counts=Counts(input_tokens=10, output_tokens=5))
        server.engine.says(*call(RIGHT), counts=Counts(input_tokens=30, output_tokens=6))
        body = await made(server, tools=[WEATHER])
    (choice,) = body["choices"]
    assert (called(choice["message"]), choice["finish_reason"]) == ([RIGHT], "tool_calls")
    assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (40, 11)


@pytest.mark.shows("D.12", "D.13")
async def test_a_stream_tells_nothing_of_a_try_that_failed() -> None:
    async with api() as server:
        server.engine.says(Text("It is sunny."))
        server.engine.says(*call(RIGHT))
        answer = await server.post(
            "chat/completions", {**HI, "stream": True, "tools": [WEATHER], "tool_choice": "required"}
        )
    chunks = frames_in(answer.body)
    for chunk in chunks:
        check_chunk(chunk)
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    assert not any(delta.get("content") for delta in deltas)
    assert "".join(one["function"]["arguments"] for d in deltas for one in d.get("tool_calls") or ()) == RIGHT
    assert len(server.engine.seen) == 2


async def test_calls_of_two_tries_have_numbers_of_their_own() -> None:
    time = {"type": "function", "function": {"name": "time", "parameters": {"type": "object", "properties": {}}}}
    wrong: list[Delta] = [CallStarted(1, "weather"), CallDelta(1, WRONG), CallDone(1)]
    async with api() as server:
        server.engine.says(CallStarted(0, "time"), CallDelta(0, "{}"), CallDone(0), *wrong)
        server.engine.says(*call(RIGHT))
        answer = await server.post("chat/completions", {**HI, "stream": True, "tools": [WEATHER, time]})
    deltas = [choice["delta"] for chunk in frames_in(answer.body) for choice in chunk["choices"]]
    named = [one for delta in deltas for one in delta.get("tool_calls") or () if one["function"].get("name")]
    assert [(one["index"], one["function"]["name"]) for one in named] == [(0, "time"), (1, "weather")]


async def test_each_of_several_choices_is_insisted_on() -> None:
    async with api() as server:
        server.engine.says(*call(WRONG))
        server.engine.repeats()
        server.engine.says(*call(RIGHT))
        server.engine.repeats()
        body = await made(server, tools=[WEATHER], n=2)
    assert [called(choice["message"]) for choice in body["choices"]] == [[RIGHT], [RIGHT]]


@pytest.mark.parametrize("stream", [False, True])
async def test_who_stays_wrong_is_an_error(stream: bool) -> None:
    async with api() as server:
        server.engine.says(*call(WRONG))
        server.engine.repeats(2)
        answer = await server.post("chat/completions", {**HI, "stream": stream, "tools": [WEATHER]})
    assert answer.status == (200 if stream else 500)
    assert b"invalid_tool_call" in answer.body
    assert b"tool_calls" not in answer.body


@pytest.mark.shows("D.10")
async def test_a_response_format_that_is_not_kept_is_an_error() -> None:
    async with api() as server:
        server.engine.says(Text("Rome, two days."))
        answer = await server.post("chat/completions", {**HI, "response_format": FORM})
        assert (answer.status, answer.error["code"]) == (500, "invalid_output")
        server.engine.says(Text(RIGHT))
        (choice,) = (await made(server, response_format=FORM))["choices"]
        assert json.loads(choice["message"]["content"]) == json.loads(RIGHT)


async def test_white_space_without_end_cuts_a_chat() -> None:
    async with api() as server:
        server.engine.says(Text("{"), *[Text("\n" * 90)] * 900)
        (choice,) = (await made(server, response_format=FORM))["choices"]
    assert choice["finish_reason"] == "length"


@pytest.mark.shows("D.12")
async def test_messages_insist_too() -> None:
    tool = {"name": "weather", "input_schema": PARAMETERS}
    async with api() as server:
        server.engine.says(Text("It is sunny."))
        server.engine.says(*call(RIGHT))
        answer = await server.post(
            "messages", {**HI, "max_tokens": 50, "tools": [tool], "tool_choice": {"type": "any"}}
        )
    assert [block["type"] for block in answer.json()["content"]] == ["tool_use"]
