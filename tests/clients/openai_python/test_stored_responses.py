"""Stored objects with the `openai` package: responses, their input items and streams, background responses and
conversations.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.responses import Response, ResponseFunctionToolCall
from pydantic import BaseModel

from tests.clients.tool_definitions import WEATHER, CityPopulation
from tests.oracles.responses import (
    accumulate,
    check_conversation,
    check_conversation_item,
    check_event,
    check_response,
)
from tests.support.server_process import ServerProcess, repeat_until_timeout

RUNNING = ("queued", "in_progress")
LONG = "a long text that takes a while to repeat " * 20  # takes about 20 seconds on the slow server


def dump(model: BaseModel) -> dict[str, Any]:
    """Return the JSON of a model as it was received."""
    return dict(json.loads(model.model_dump_json(exclude_unset=True, by_alias=True)))


def validate(response: Response) -> Response:
    check_response(dump(response))
    return response


@pytest.fixture
def slow_client(slow_server: ServerProcess) -> Iterator[OpenAI]:
    """A client of the server that takes 0.1 s per token."""
    with OpenAI(base_url=slow_server.v1, api_key="unused", max_retries=0, timeout=60) as client:
        yield client


def poll_until_done(client: OpenAI, response: Response) -> Response:
    for _ in repeat_until_timeout():
        if response.status not in RUNNING:
            return validate(response)
        response = client.responses.retrieve(response.id)
    raise AssertionError(f"{response.id} is still {response.status}")


@pytest.mark.shows("A.3", "I.10")
def test_a_retrieved_response_equals_the_created_one(client: OpenAI) -> None:
    made = client.responses.create(model="fake", input="hi", metadata={"a": "b"})
    found = validate(client.responses.retrieve(made.id, include=["message.output_text.logprobs"]))
    assert dump(found) == dump(made)


@pytest.mark.anyio
@pytest.mark.shows("A.3", "A.6", "I.10")
async def test_the_async_client_retrieves_and_deletes(async_client: AsyncOpenAI) -> None:
    made = await async_client.responses.create(model="fake", input="hi")
    assert dump(validate(await async_client.responses.retrieve(made.id))) == dump(made)
    await async_client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        await async_client.responses.retrieve(made.id)


@pytest.mark.shows("A.6", "B.10")
def test_a_deleted_response_is_not_found(client: OpenAI) -> None:
    made = client.responses.create(model="fake", input="hi")
    client.responses.delete(made.id)
    for again in (client.responses.retrieve, client.responses.delete):
        with pytest.raises(openai.NotFoundError) as missing:
            again(made.id)
        assert missing.value.type == "not_found_error"
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model="fake", input="more", previous_response_id=made.id)
    assert refused.value.code == "previous_response_not_found"


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.shows("A.4", "A.5", "A1.3", "I.10")
def test_a_stream_can_be_retrieved_from_any_event(client: OpenAI, background: bool) -> None:
    with client.responses.create(model="fake", input="hi", stream=True, background=background) as stream:
        events = [dump(event) for event in stream]
    response_id = events[0]["response"]["id"]
    for number in (0, 3, len(events) - 2, len(events) - 1, 10_000):
        with client.responses.retrieve(response_id, stream=True, starting_after=number) as stream:
            assert [dump(event) for event in stream] == events[number + 1 :]
    with client.responses.retrieve(response_id, stream=True) as stream:
        again = [dump(event) for event in stream]
    for event in again:
        check_event(event)
    assert again == events
    assert accumulate(again).output_text == "You said: hi"


@pytest.mark.shows("A.5", "I.10")
def test_the_stream_helper_resumes_an_interrupted_stream(slow_client: OpenAI) -> None:
    with slow_client.responses.create(model="fake", input="hi", stream=True, background=True) as stream:
        first = next(stream)
        assert first.type == "response.created"
        last = next(event for event in stream if event.type == "response.output_text.delta")
    helper = slow_client.responses.stream(response_id=first.response.id, starting_after=last.sequence_number)
    with helper as resumed:
        numbers = [event.sequence_number for event in resumed if str(event.type) != "keepalive"]
        final = resumed.get_final_response()
    assert numbers == list(range(last.sequence_number + 1, last.sequence_number + 1 + len(numbers)))
    assert final.output_text == "You said: hi"


@pytest.mark.anyio
@pytest.mark.shows("A.5", "I.10")
async def test_the_async_stream_helper_resumes_and_parses(async_client: AsyncOpenAI) -> None:
    async with async_client.responses.stream(model="fake", input="Where?", text_format=CityPopulation) as stream:
        first = await anext(aiter(stream))
        await stream.get_final_response()
    assert first.type == "response.created"
    async with async_client.responses.stream(
        response_id=first.response.id, starting_after=2, text_format=CityPopulation
    ) as again:
        assert isinstance((await again.get_final_response()).output_parsed, CityPopulation)


@pytest.mark.shows("A.9", "I.10")
def test_the_sdk_iterator_reads_all_pages_of_the_input_items(client: OpenAI) -> None:
    contents = [str(number) for number in range(7)]
    made = client.responses.create(model="fake", input=[{"role": "user", "content": one} for one in contents])
    for order, expected in (("asc", contents), ("desc", contents[::-1])):
        listed: Any = client.responses.input_items.list(made.id, limit=3, order=order)  # type: ignore[arg-type]  # a literal
        assert [item.content[0].text for item in listed] == expected
    first = client.responses.input_items.list(made.id, limit=3)
    assert (len(first.data), first.has_more) == (3, True)
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.input_items.list(made.id, after="msg_nowhere")
    assert refused.value.param == "after"


@pytest.mark.anyio
@pytest.mark.shows("A.9", "I.10")
async def test_the_async_iterator_reads_all_pages_of_the_input_items(async_client: AsyncOpenAI) -> None:
    made = await async_client.responses.create(model="fake", input=[{"role": "user", "content": "a"}] * 5)
    assert len([item async for item in async_client.responses.input_items.list(made.id, limit=2)]) == 5


@pytest.mark.shows("B.6", "I.10")
@pytest.mark.uses("openai-python", "background")
def test_a_background_response_can_be_polled_to_its_end(client: OpenAI) -> None:
    made = validate(client.responses.create(model="fake", input="hi", background=True))
    assert made.status in RUNNING
    assert poll_until_done(client, made).output_text == "You said: hi"


@pytest.mark.anyio
@pytest.mark.shows("B.6", "I.10")
async def test_the_async_client_polls_a_background_response_to_its_end(async_client: AsyncOpenAI) -> None:
    response = await async_client.responses.create(model="fake", input="hi", background=True)
    for _ in repeat_until_timeout():
        if response.status not in RUNNING:
            break
        response = await async_client.responses.retrieve(response.id)
    assert validate(response).output_text == "You said: hi"


@pytest.mark.shows("A.7", "A.8", "B.8", "I.10")
def test_only_background_responses_can_be_cancelled(slow_client: OpenAI) -> None:
    made = slow_client.responses.create(model="fake", input=LONG, background=True)
    cancelled = validate(slow_client.responses.cancel(made.id))
    assert cancelled.status == "cancelled"
    assert (
        dump(slow_client.responses.cancel(made.id)) == dump(cancelled) == dump(slow_client.responses.retrieve(made.id))
    )
    with pytest.raises(openai.BadRequestError) as refused:
        slow_client.responses.cancel(slow_client.responses.create(model="fake", input="a").id)
    assert refused.value.code == "cancellation_not_supported"


@pytest.mark.shows("A.49", "I.10")
def test_a_cancelled_stream_ends_incomplete_and_replays_the_same_events(slow_client: OpenAI) -> None:
    with slow_client.responses.create(model="fake", input=LONG, background=True, stream=True) as stream:
        first = next(stream)
        assert first.type == "response.created"
        slow_client.responses.cancel(first.response.id)
        events = [dump(event) for event in stream]
    events = [event for event in events if event["type"] != "keepalive"]
    assert (events[-1]["type"], events[-1]["response"]["status"]) == ("response.incomplete", "cancelled")
    with slow_client.responses.retrieve(first.response.id, stream=True, starting_after=0) as stream:
        assert [dump(event) for event in stream] == events


@pytest.mark.shows("B.9", "I.10")
def test_a_tools_output_continues_the_response_that_called_it(client: OpenAI) -> None:
    first = client.responses.create(model="fake", input="weather?", tools=[WEATHER], instructions="Be brief.")
    (call,) = [item for item in first.output if isinstance(item, ResponseFunctionToolCall)]
    output: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}]
    branches = [
        validate(client.responses.create(model="fake", input=output, tools=[WEATHER], previous_response_id=first.id))
        for _ in range(2)
    ]
    for branch in branches:
        assert "sunny" in branch.output_text
        assert (branch.previous_response_id, branch.instructions) == (first.id, None)
    third = client.responses.create(model="fake", input="thanks", previous_response_id=branches[1].id)
    alone = client.responses.create(model="fake", input="thanks")
    assert third.output_text == alone.output_text == "You said: thanks"
    assert third.usage is not None
    assert alone.usage is not None
    assert third.usage.input_tokens > alone.usage.input_tokens + 10


def test_an_output_without_a_matching_call_is_rejected(client: OpenAI) -> None:
    first = client.responses.create(model="fake", input="hi")
    output: Any = [{"type": "function_call_output", "call_id": "call_1", "output": "sunny"}]
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model="fake", input=output, previous_response_id=first.id)
    assert refused.value.param == "input[0].call_id"


@pytest.mark.shows("B.11", "I.10")
def test_items_can_be_referenced_by_id(client: OpenAI) -> None:
    first = client.responses.create(model="fake", input="weather?", tools=[WEATHER], reasoning={"effort": "low"})
    reasoning, call = first.output
    assert isinstance(call, ResponseFunctionToolCall)
    input_: Any = [
        {"role": "user", "content": "weather?"},
        {"type": "item_reference", "id": reasoning.id},
        {"id": call.id},
        {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"},
    ]
    second = validate(client.responses.create(model="fake", input=input_, tools=[WEATHER]))
    assert "sunny" in second.output_text
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model="fake", input=[{"type": "item_reference", "id": "msg_nowhere"}])
    assert refused.value.param == "input[0].id"


@pytest.mark.shows("B.12", "B.13")
def test_an_idempotency_key_returns_the_same_response(client: OpenAI) -> None:
    key = {"Idempotency-Key": "a-key-of-mine"}
    first, second = (client.responses.create(model="fake", input="hi", extra_headers=key) for _ in range(2))
    assert dump(first) == dump(second)
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model="fake", input="ho", extra_headers=key)
    assert refused.value.code == "idempotency_key_reused"


def get_item_texts(items: Iterable[Any]) -> list[str]:
    """Validate conversation items and return their texts."""
    for item in items:
        check_conversation_item(dump(item))
    return [item.content[0].text for item in items]


@pytest.mark.shows("B.14", "B.15", "B.16", "B.17", "B.18", "B.19", "B.20", "B.21", "I.10")
def test_a_conversation_is_created_changed_listed_and_deleted(client: OpenAI) -> None:
    made = client.conversations.create(items=[{"role": "user", "content": "one"}], metadata={"k": "v", "l": "w"})
    check_conversation(dump(made))
    changed = client.conversations.update(made.id, metadata={"k": "x", "l": None})  # type: ignore[dict-item]  # null deletes the key
    assert changed.metadata == {"k": "x"}
    assert dump(client.conversations.retrieve(made.id)) == dump(changed)
    more: Any = [{"role": "user", "content": str(number)} for number in range(4)]
    added = client.conversations.items.create(made.id, items=more)
    assert get_item_texts(added.data) == ["0", "1", "2", "3"]
    assert get_item_texts([*client.conversations.items.list(made.id, limit=2, order="asc")]) == [
        "one",
        "0",
        "1",
        "2",
        "3",
    ]
    assert get_item_texts([*client.conversations.items.list(made.id, limit=2)]) == ["3", "2", "1", "0", "one"]
    item = client.conversations.items.retrieve(str(added.last_id), conversation_id=made.id)
    assert get_item_texts([item]) == ["3"]
    updated = client.conversations.items.delete(added.first_id, conversation_id=made.id)
    assert dump(updated) == dump(changed)
    assert get_item_texts([*client.conversations.items.list(made.id, order="asc")]) == ["one", "1", "2", "3"]
    gone = client.conversations.delete(made.id)
    check_conversation(dump(gone))
    with pytest.raises(openai.NotFoundError):
        client.conversations.retrieve(made.id)


@pytest.mark.anyio
@pytest.mark.shows("B.14", "B.19", "I.10")
async def test_the_async_client_manages_conversations(async_client: AsyncOpenAI) -> None:
    made = await async_client.conversations.create()
    await async_client.conversations.items.create(made.id, items=[{"role": "user", "content": "a"}] * 3)
    listed = [item async for item in async_client.conversations.items.list(made.id, limit=2)]
    assert get_item_texts(listed) == ["a"] * 3
    assert (await async_client.conversations.delete(made.id)).deleted


@pytest.mark.shows("B.22", "I.10")
@pytest.mark.uses("openai-python", "stored state")
def test_responses_read_their_conversation_and_add_to_it(client: OpenAI) -> None:
    made = client.conversations.create(items=[{"role": "user", "content": "one"}])
    first = validate(client.responses.create(model="fake", input="two", conversation=made.id))
    assert first.conversation is not None
    assert first.conversation.id == made.id
    with client.responses.create(model="fake", input="three", conversation={"id": made.id}, stream=True) as stream:
        assert list(stream)[-1].type == "response.completed"
    contents = ["one", "two", "You said: two", "three", "You said: three"]
    listed = [*client.conversations.items.list(made.id, order="asc")]
    assert get_item_texts(listed) == contents
    assert listed[2].id == first.output[0].id
    with pytest.raises(openai.NotFoundError) as missing:
        client.responses.create(model="fake", input="x", conversation="conv_" + "0" * 32)
    assert missing.value.param == "conversation"


@pytest.mark.shows("B.24")
def test_a_malformed_conversation_id_is_rejected(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.conversations.retrieve("invalid-id")
    assert refused.value.code == "invalid_conversation_id"
