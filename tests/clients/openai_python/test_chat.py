"""Chat completions and completions with the `openai` package against a real server: create, stream and parse."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI, pydantic_function_tool
from openai.types.chat import (
    ChatCompletion,
    ChatCompletionMessageCustomToolCall,
    ChatCompletionMessageFunctionToolCall,
)
from pydantic import BaseModel

from tests.clients.tool_definitions import CityPopulation
from tests.oracles.chat import accumulate, check_chat, check_chunk, check_completion
from tests.support.server_process import ServerProcess, run_server

HI: Any = [{"role": "user", "content": "hello there"}]


class Weather(BaseModel):
    """The weather of a city."""

    city: str


def _validate(completion: ChatCompletion) -> ChatCompletion:
    check_chat(json.loads(completion.to_json()))
    return completion


@pytest.mark.shows("G.1", "G1.5")
def test_create_returns_a_completion(client: OpenAI) -> None:
    completion = _validate(client.chat.completions.create(model="any-name", messages=HI))
    assert completion.choices[0].message.content == "You said: hello there"
    assert completion.model == "any-name"
    assert completion.usage is not None
    assert completion.usage.completion_tokens > 0


@pytest.mark.anyio
async def test_the_async_client_gets_the_same_answer(async_client: AsyncOpenAI) -> None:
    completion = _validate(await async_client.chat.completions.create(model="fake", messages=HI))
    assert completion.choices[0].message.content == "You said: hello there"


@pytest.mark.shows("G.1")
def test_a_stream_has_the_same_answer(client: OpenAI) -> None:
    with client.chat.completions.create(
        model="fake", messages=HI, stream=True, stream_options={"include_usage": True}
    ) as stream:
        chunks = [chunk.to_dict(mode="json") for chunk in stream]
    for chunk in chunks:
        check_chunk(chunk)
    deltas = [choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"]]  # type: ignore[attr-defined]  # plain JSON
    assert "".join(deltas) == "You said: hello there"
    assert chunks[-1]["usage"] is not None


@pytest.mark.anyio
async def test_the_async_stream_helper_emits_events_and_the_final_completion(async_client: AsyncOpenAI) -> None:
    event_types: list[str] = []
    async with async_client.chat.completions.stream(model="fake", messages=HI, logprobs=True, n=2) as stream:
        async for event in stream:
            event_types.append(event.type)
        final = await stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done", "logprobs.content.done"} <= set(event_types)
    assert [choice.message.content for choice in final.choices] == ["You said: hello there"] * 2


def test_the_stream_helper_parses_tool_calls(client: OpenAI) -> None:
    tools = [pydantic_function_tool(Weather)]
    with client.chat.completions.stream(model="fake", messages=HI, tools=tools) as stream:
        done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
        final = stream.get_final_completion()
    assert [event.name for event in done] == ["Weather"]
    assert isinstance(done[0].parsed_arguments, Weather)
    assert final.choices[0].finish_reason == "tool_calls"


@pytest.mark.anyio
@pytest.mark.shows("G.2")
async def test_parse_returns_an_instance_of_the_model_class(async_client: AsyncOpenAI) -> None:
    completion = await async_client.chat.completions.parse(model="fake", messages=HI, response_format=CityPopulation)
    assert isinstance(completion.choices[0].message.parsed, CityPopulation)


@pytest.mark.shows("G.2")
def test_a_tool_is_called_and_its_output_is_answered(client: OpenAI) -> None:
    tools = [pydantic_function_tool(Weather)]
    first = client.chat.completions.parse(model="fake", messages=HI, tools=tools, parallel_tool_calls=False)
    (call,) = first.choices[0].message.tool_calls or []
    assert isinstance(call.function.parsed_arguments, Weather)
    messages: Any = [
        *HI,
        first.choices[0].message.to_dict(),
        {"role": "tool", "tool_call_id": call.id, "content": "sunny"},
    ]
    second = _validate(client.chat.completions.create(model="fake", messages=messages, tools=tools))
    assert second.choices[0].message.content
    assert second.choices[0].finish_reason == "stop"


@pytest.mark.parametrize(
    "choice",
    [
        "required",
        {"type": "function", "function": {"name": "Weather"}},
        {
            "type": "allowed_tools",
            "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "Weather"}}]},
        },
    ],
)
def test_every_kind_of_tool_choice_is_honoured(client: OpenAI, choice: Any) -> None:
    tools = [pydantic_function_tool(Weather), pydantic_function_tool(CityPopulation)]
    completion = _validate(client.chat.completions.create(model="fake", messages=HI, tools=tools, tool_choice=choice))
    (call,) = completion.choices[0].message.tool_calls or []
    assert isinstance(call, ChatCompletionMessageFunctionToolCall)
    assert call.function.name == "Weather"
    none = client.chat.completions.create(model="fake", messages=HI, tools=tools, tool_choice="none")
    assert none.choices[0].message.tool_calls is None


def test_a_custom_tool_is_called(client: OpenAI) -> None:
    tools: Any = [{"type": "custom", "custom": {"name": "sql", "description": "Runs SQL."}}]
    completion = _validate(
        client.chat.completions.create(model="fake", messages=HI, tools=tools, tool_choice="required")
    )
    (call,) = completion.choices[0].message.tool_calls or []
    assert isinstance(call, ChatCompletionMessageCustomToolCall)
    assert call.custom.name == "sql"


def test_an_error_raises_the_sdk_exception_with_the_field_name(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        client.chat.completions.create(model="fake", messages=[{"role": "user", "content": [{"type": "nope"}]}])  # type: ignore[list-item, misc]  # wrong on purpose
    assert raised.value.param == "messages[0].content[0].type"
    with pytest.raises(openai.BadRequestError) as raised:
        client.chat.completions.create(model="fake", messages=HI, modalities=["audio"])
    assert (raised.value.param, raised.value.code) == ("modalities", "unsupported_parameter")


def test_a_langchain_request_is_answered(client: OpenAI) -> None:
    """LangChain sends nulls and empty strings for missing content, and requests usage with every stream."""
    messages: Any = [
        {"content": "You are helpful.", "role": "system"},
        {"content": "weather?", "role": "user"},
        {
            "content": None,
            "role": "assistant",
            "tool_calls": [{"type": "function", "id": "c1", "function": {"name": "Weather", "arguments": "{}"}}],
        },
        {"content": "sunny", "role": "tool", "tool_call_id": "c1"},
    ]
    with client.chat.completions.create(
        messages=messages,
        model="fake",
        stream=True,
        stream_options={"include_usage": True},
        temperature=0.7,
        tools=[pydantic_function_tool(Weather)],
        parallel_tool_calls=False,
        n=1,
    ) as stream:
        chunks = [*stream]
    assert chunks[-1].usage is not None
    assert {choice.finish_reason for chunk in chunks for choice in chunk.choices} == {None, "stop"}


def test_an_ai_sdk_request_is_answered(client: OpenAI) -> None:
    """The AI SDK sends text as parts, tool results as text, and earlier reasoning as `reasoning_content`."""
    messages: Any = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "weather?"}]},
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "I should look.",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "Weather", "arguments": '{"city":""}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": '{"sun":true}'},
        {"role": "user", "content": "and now?"},
    ]
    completion = _validate(
        client.chat.completions.create(
            model="fake",
            messages=messages,
            max_tokens=64,
            reasoning_effort="low",
            response_format={"type": "text"},
            extra_body={"strictJsonSchema": True},
        )
    )
    assert completion.choices[0].message.content
    assert completion.choices[0].message.model_extra is not None
    assert completion.choices[0].message.model_extra["reasoning"]


@pytest.mark.shows("G.3")
def test_completions_are_answered(client: OpenAI) -> None:
    completion = client.completions.create(model="fake", prompt=["one", "two"], n=2, logprobs=1, max_tokens=3)
    check_completion(json.loads(completion.to_json()))
    assert [choice.index for choice in completion.choices] == [0, 1, 2, 3]
    assert completion.choices[0].logprobs is not None
    assert completion.choices[0].finish_reason == "length"


@pytest.mark.anyio
@pytest.mark.shows("G.3")
async def test_completions_are_streamed(async_client: AsyncOpenAI) -> None:
    stream = await async_client.completions.create(model="fake", prompt="one", stream=True, echo=True)
    chunks = [chunk async for chunk in stream]
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == "oneYou said: one"


def test_keepalives_do_not_disturb_a_stream(slow_server: ServerProcess) -> None:
    with (
        OpenAI(base_url=slow_server.v1, api_key="unused", max_retries=0, timeout=60) as client,
        client.chat.completions.create(model="fake", messages=HI, stream=True, max_tokens=4) as stream,
    ):
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert text == "You said: hello "[: len(text)] != ""


@pytest.fixture(scope="module")
def front_client(fake_server: ServerProcess) -> Iterator[OpenAI]:
    """A client of an Antiphon server whose engine is another Antiphon server, used as an OpenAI-compatible engine."""
    with (
        run_server("--engine", f"openai://127.0.0.1:{fake_server.port}") as server,
        OpenAI(base_url=server.v1, api_key="unused", max_retries=0, timeout=60) as client,
    ):
        yield client


def test_chat_completions_pass_through_a_second_server(front_client: OpenAI) -> None:
    tools = [pydantic_function_tool(Weather)]
    completion = _validate(
        front_client.chat.completions.create(model="fake", messages=HI, tools=tools, n=2, reasoning_effort="low")
    )
    for choice in completion.choices:
        assert choice.finish_reason == "tool_calls"
        assert choice.message.model_extra is not None
        assert choice.message.model_extra["reasoning"]
    stream = front_client.chat.completions.create(model="fake", messages=HI, logprobs=True, top_logprobs=2, stream=True)
    chunks = [chunk.to_dict(mode="json") for chunk in stream]
    final = accumulate(chunks).choices[0]
    assert final.message.content == "You said: hello there"
    assert final.logprobs is not None
    assert "".join(each.token for each in final.logprobs.content or ()) == final.message.content


def test_completions_pass_through_a_second_server(front_client: OpenAI) -> None:
    completion = front_client.completions.create(model="fake", prompt=["one", "two"], logprobs=1)
    check_completion(json.loads(completion.to_json()))
    assert [choice.text for choice in completion.choices] == ["You said: one", "You said: two"]
    assert completion.choices[0].logprobs is not None
