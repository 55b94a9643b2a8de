"""The anthropic package, sync and async, against a server process: what its users do with it."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic, AsyncAnthropic
from pydantic import BaseModel

from tests.support.server_process import Live, serving

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


class Place(BaseModel):
    city: str
    people: int


@pytest.fixture
def claude(fake: Live) -> Iterator[Anthropic]:
    with Anthropic(base_url=fake.url, api_key="unused", max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture
async def async_claude(fake: Live) -> AsyncIterator[AsyncAnthropic]:
    async with AsyncAnthropic(base_url=fake.url, api_key="unused", max_retries=0, timeout=60) as client:
        yield client


@pytest.mark.shows("G.7")
def test_a_message_is_answered(claude: Anthropic) -> None:
    message = claude.messages.create(model="fake", max_tokens=99, system="Be brief.", messages=HI)
    (block,) = message.content
    assert (block.type, message.role, message.stop_reason) == ("text", "assistant", "end_turn")
    assert message.usage.output_tokens > 0
    assert message._request_id is not None
    assert message._request_id.startswith("req_")


@pytest.mark.shows("G.7")
def test_the_stream_helper_ends_with_the_same_message(claude: Anthropic) -> None:
    whole = claude.messages.create(model="fake", max_tokens=99, messages=HI)
    with claude.messages.stream(model="fake", max_tokens=99, messages=HI) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == stream.get_final_text()
    assert [block.to_dict() for block in final.content] == [block.to_dict() for block in whole.content]
    assert final.usage.output_tokens == whole.usage.output_tokens
    assert stream.request_id is not None


@pytest.mark.anyio
async def test_the_stream_helper_works_without_waiting_too(async_claude: AsyncAnthropic) -> None:
    async with async_claude.messages.stream(model="fake", max_tokens=99, messages=HI) as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_message()
    assert kinds[0] == "message_start"
    assert kinds[-1] == "message_stop"
    assert final.stop_reason == "end_turn"
    whole = await async_claude.messages.create(model="fake", max_tokens=99, messages=HI)
    assert [block.to_dict() for block in whole.content] == [block.to_dict() for block in final.content]


@pytest.mark.parametrize("streams", [True, False])
def test_a_tool_is_called_and_its_result_answered(claude: Anthropic, streams: bool) -> None:
    asked: Any = {"model": "fake", "max_tokens": 99, "tools": [WEATHER]}
    choice: Any = {"type": "tool", "name": "get_weather"}
    if streams:
        with claude.messages.stream(**asked, messages=HI, tool_choice=choice) as stream:
            first: anthropic.types.Message = stream.get_final_message()
    else:
        first = claude.messages.create(**asked, messages=HI, tool_choice=choice)
    use = first.content[0]
    assert use.type == "tool_use"
    assert first.stop_reason == "tool_use"
    assert set(use.input) == {"city", "days"}
    result: Any = {"type": "tool_result", "tool_use_id": use.id, "content": "Rain.", "is_error": False}
    back: Any = [*HI, first.to_param(), {"role": "user", "content": [result]}]
    second = claude.messages.create(**asked, messages=back)
    assert second.stop_reason == "end_turn"
    assert "Rain." in second.content[0].text  # the fake engine repeats it


def test_thoughts_come_with_a_signature_and_go_back(claude: Anthropic) -> None:
    with claude.messages.stream(model="fake", max_tokens=4000, messages=HI, thinking=THINKING) as stream:
        kinds = {event.type for event in stream}
        first = stream.get_final_message()
    assert {"thinking", "signature", "text"} <= kinds
    thought = first.content[0]
    assert thought.type == "thinking"
    assert thought.thinking
    assert thought.signature
    assert first.usage.output_tokens_details is not None
    back: Any = [*HI, first.to_param(), *HI]
    claude.messages.create(model="fake", max_tokens=4000, messages=back, thinking=THINKING)
    changed: Any = [*HI, {"role": "assistant", "content": [{**thought.to_dict(), "thinking": "else"}]}, *HI]
    with pytest.raises(anthropic.BadRequestError, match="was changed"):
        claude.messages.create(model="fake", max_tokens=4000, messages=changed)


def test_an_answer_can_be_parsed_into_a_class(claude: Anthropic) -> None:
    parsed = claude.messages.parse(model="fake", max_tokens=99, messages=HI, output_format=Place)
    assert isinstance(parsed.parsed_output, Place)


def test_tokens_are_counted_before(claude: Anthropic) -> None:
    counted = claude.messages.count_tokens(model="fake", messages=HI, system="Be brief.", tools=[WEATHER])
    usage = claude.messages.create(
        model="fake", max_tokens=9, messages=HI, system="Be brief.", tools=[WEATHER], tool_choice={"type": "auto"}
    ).usage
    assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_errors_are_of_the_classes_that_the_package_knows(claude: Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError, match="temperature") as caught:
        claude.messages.create(model="fake", max_tokens=9, messages=HI, extra_body={"temperature": 9})
    assert caught.value.type == "invalid_request_error"
    assert caught.value.request_id is not None
    with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
        claude.messages.create(model="fake", max_tokens=0, messages=HI)
    with pytest.raises(anthropic.BadRequestError, match="container"):
        claude.messages.create(model="fake", max_tokens=9, messages=HI, container="c_1")


def test_pings_do_not_disturb(pausing: Live) -> None:
    with (
        Anthropic(base_url=pausing.url, api_key="unused", max_retries=0, timeout=60) as client,
        client.messages.stream(model="fake", max_tokens=9, messages=HI) as stream,
    ):
        assert stream.get_final_message().stop_reason == "end_turn"


@pytest.mark.parametrize("named", ["api_key", "auth_token"])
def test_a_key_may_come_in_either_header(named: str) -> None:
    with serving("--engine", "fake", "--api-key", "sesame") as live:
        keys: dict[str, Any] = {"api_key": None, "auth_token": None}
        with Anthropic(base_url=live.url, **{**keys, named: "sesame"}, max_retries=0) as client:
            client.messages.create(model="fake", max_tokens=9, messages=HI)
            assert [model.id for model in client.models.list()] == ["fake"]
        with (
            Anthropic(base_url=live.url, **{**keys, named: "wrong"}, max_retries=0) as client,
            pytest.raises(anthropic.AuthenticationError),
        ):
            client.messages.create(model="fake", max_tokens=9, messages=HI)


@pytest.mark.real_model
def test_the_embedded_model_speaks_it_and_counts_alike(embedded: Live) -> None:
    with Anthropic(base_url=embedded.url, api_key="unused", max_retries=0, timeout=120) as client:
        model = next(iter(client.models.list())).id
        for system in ("", "Answer in one word."):
            asked: Any = {"model": model, "messages": HI, **({"system": system} if system else {})}
            with client.messages.stream(max_tokens=8, **asked) as stream:
                final = stream.get_final_message()
            assert final.stop_reason in ("max_tokens", "end_turn")
            counted = client.messages.count_tokens(**asked).input_tokens
            assert counted == final.usage.input_tokens + (final.usage.cache_read_input_tokens or 0)
        stopped = client.messages.create(
            model=model,
            max_tokens=64,
            extra_body={"temperature": 0},  # else it may find one word enough
            stop_sequences=[" "],
            messages=[{"role": "user", "content": "Write a sentence about the sea."}],
        )
        assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", " ")
