"""The `anthropic` package, sync and async, against a server process: messages, streams, tools, thinking, parsing and
errors.
"""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic, AsyncAnthropic
from pydantic import BaseModel

from tests.support.server_process import ServerProcess, run_server

HI: Any = [{"role": "user", "content": "Hello"}]
WEATHER: Any = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 2}},
        "required": ["city", "days"],
    },
}
THINKING: Any = {"type": "enabled", "budget_tokens": 2000}


class CityPopulation(BaseModel):
    city: str
    people: int


@pytest.fixture
def client(fake_server: ServerProcess) -> Iterator[Anthropic]:
    with Anthropic(base_url=fake_server.url, api_key="unused", max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture
async def async_client(fake_server: ServerProcess) -> AsyncIterator[AsyncAnthropic]:
    async with AsyncAnthropic(base_url=fake_server.url, api_key="unused", max_retries=0, timeout=60) as client:
        yield client


@pytest.mark.shows("G.7")
def test_a_message_is_answered(client: Anthropic) -> None:
    message = client.messages.create(model="fake", max_tokens=99, system="Be brief.", messages=HI)
    (block,) = message.content
    assert (block.type, message.role, message.stop_reason) == ("text", "assistant", "end_turn")
    assert message.usage.output_tokens > 0
    assert message._request_id is not None
    assert message._request_id.startswith("req_")


@pytest.mark.shows("G.7")
def test_the_stream_helper_ends_with_the_same_message(client: Anthropic) -> None:
    message = client.messages.create(model="fake", max_tokens=99, messages=HI)
    with client.messages.stream(model="fake", max_tokens=99, messages=HI) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == stream.get_final_text()
    assert [block.to_dict() for block in final.content] == [block.to_dict() for block in message.content]
    assert final.usage.output_tokens == message.usage.output_tokens
    assert stream.request_id is not None


@pytest.mark.anyio
async def test_the_async_stream_helper_ends_with_the_same_message(async_client: AsyncAnthropic) -> None:
    async with async_client.messages.stream(model="fake", max_tokens=99, messages=HI) as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_message()
    assert kinds[0] == "message_start"
    assert kinds[-1] == "message_stop"
    assert final.stop_reason == "end_turn"
    message = await async_client.messages.create(model="fake", max_tokens=99, messages=HI)
    assert [block.to_dict() for block in message.content] == [block.to_dict() for block in final.content]


@pytest.mark.parametrize("streams", [True, False])
def test_a_tool_is_called_and_its_result_is_answered(client: Anthropic, streams: bool) -> None:
    fields: Any = {"model": "fake", "max_tokens": 99, "tools": [WEATHER]}
    choice: Any = {"type": "tool", "name": "get_weather"}
    if streams:
        with client.messages.stream(**fields, messages=HI, tool_choice=choice) as stream:
            first: anthropic.types.Message = stream.get_final_message()
    else:
        first = client.messages.create(**fields, messages=HI, tool_choice=choice)
    tool_use = first.content[0]
    assert tool_use.type == "tool_use"
    assert first.stop_reason == "tool_use"
    assert set(tool_use.input) == {"city", "days"}
    result: Any = {"type": "tool_result", "tool_use_id": tool_use.id, "content": "Rain.", "is_error": False}
    conversation: Any = [*HI, first.to_param(), {"role": "user", "content": [result]}]
    second = client.messages.create(**fields, messages=conversation)
    assert second.stop_reason == "end_turn"
    assert "Rain." in second.content[0].text  # the fake engine repeats the tool result


def test_thinking_blocks_are_signed_and_accepted_back(client: Anthropic) -> None:
    with client.messages.stream(model="fake", max_tokens=4000, messages=HI, thinking=THINKING) as stream:
        kinds = {event.type for event in stream}
        first = stream.get_final_message()
    assert {"thinking", "signature", "text"} <= kinds
    thinking_block = first.content[0]
    assert thinking_block.type == "thinking"
    assert thinking_block.thinking
    assert thinking_block.signature
    assert first.usage.output_tokens_details is not None
    conversation: Any = [*HI, first.to_param(), *HI]
    client.messages.create(model="fake", max_tokens=4000, messages=conversation, thinking=THINKING)
    changed: Any = [*HI, {"role": "assistant", "content": [{**thinking_block.to_dict(), "thinking": "else"}]}, *HI]
    with pytest.raises(anthropic.BadRequestError, match="was modified"):
        client.messages.create(model="fake", max_tokens=4000, messages=changed)


def test_parse_returns_an_instance_of_the_model_class(client: Anthropic) -> None:
    parsed = client.messages.parse(model="fake", max_tokens=99, messages=HI, output_format=CityPopulation)
    assert isinstance(parsed.parsed_output, CityPopulation)


def test_count_tokens_equals_the_usage_of_the_same_request(client: Anthropic) -> None:
    counted = client.messages.count_tokens(model="fake", messages=HI, system="Be brief.", tools=[WEATHER])
    usage = client.messages.create(
        model="fake", max_tokens=9, messages=HI, system="Be brief.", tools=[WEATHER], tool_choice={"type": "auto"}
    ).usage
    assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_errors_raise_the_exception_classes_of_the_package(client: Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError, match="temperature") as caught:
        client.messages.create(model="fake", max_tokens=9, messages=HI, extra_body={"temperature": 9})
    assert caught.value.type == "invalid_request_error"
    assert caught.value.request_id is not None
    with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
        client.messages.create(model="fake", max_tokens=0, messages=HI)
    with pytest.raises(anthropic.BadRequestError, match="container"):
        client.messages.create(model="fake", max_tokens=9, messages=HI, container="c_1")


def test_the_stream_helper_ignores_pings(slow_server: ServerProcess) -> None:
    with (
        Anthropic(base_url=slow_server.url, api_key="unused", max_retries=0, timeout=60) as client,
        client.messages.stream(model="fake", max_tokens=9, messages=HI) as stream,
    ):
        assert stream.get_final_message().stop_reason == "end_turn"


@pytest.mark.parametrize("option", ["api_key", "auth_token"])
def test_an_api_key_is_accepted_in_either_header(option: str) -> None:
    with run_server("--engine", "fake", "--api-key", "sesame") as server:
        keys: dict[str, Any] = {"api_key": None, "auth_token": None}
        with Anthropic(base_url=server.url, **{**keys, option: "sesame"}, max_retries=0) as client:
            client.messages.create(model="fake", max_tokens=9, messages=HI)
            assert [model.id for model in client.models.list()] == ["fake"]
        with (
            Anthropic(base_url=server.url, **{**keys, option: "wrong"}, max_retries=0) as client,
            pytest.raises(anthropic.AuthenticationError),
        ):
            client.messages.create(model="fake", max_tokens=9, messages=HI)


@pytest.mark.real_model
def test_the_embedded_model_serves_messages_and_counts_the_same_tokens(embedded_server: ServerProcess) -> None:
    with Anthropic(base_url=embedded_server.url, api_key="unused", max_retries=0, timeout=120) as client:
        model = next(iter(client.models.list())).id
        for system in ("", "Answer in one word."):
            fields: Any = {"model": model, "messages": HI, **({"system": system} if system else {})}
            with client.messages.stream(max_tokens=8, **fields) as stream:
                final = stream.get_final_message()
            assert final.stop_reason in ("max_tokens", "end_turn")
            counted = client.messages.count_tokens(**fields).input_tokens
            assert counted == final.usage.input_tokens + (final.usage.cache_read_input_tokens or 0)
        stopped = client.messages.create(
            model=model,
            max_tokens=64,
            extra_body={"temperature": 0},  # sampling might end the answer after a single word
            stop_sequences=[" "],
            messages=[{"role": "user", "content": "Write a sentence about the sea."}],
        )
        assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", " ")
