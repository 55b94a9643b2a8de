"""The openai package and what the server keeps: responses, their input and streams, background, conversations."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.responses import Response, ResponseFunctionToolCall
from pydantic import BaseModel

from tests.clients.tool_definitions import WEATHER, Place
from tests.oracles.responses import (
    accumulate,
    check_conversation,
    check_conversation_item,
    check_event,
    check_response,
)
from tests.support.server_process import Live, patiently

RUNNING = ("queued", "in_progress")
LONG = "a long text that takes a while to repeat " * 20  # some 20 seconds, of a slow server


def raw(model: BaseModel) -> dict[str, Any]:
    return dict(json.loads(model.model_dump_json(exclude_unset=True, by_alias=True)))


def checked(response: Response) -> Response:
    check_response(raw(response))
    return response


@pytest.fixture
def slow(pausing: Live) -> Iterator[OpenAI]:
    """A client of a server that takes a tenth of a second for each token."""
    with OpenAI(base_url=pausing.v1, api_key="unused", max_retries=0, timeout=60) as client:
        yield client


def polled(client: OpenAI, response: Response) -> Response:
    for _ in patiently():
        if response.status not in RUNNING:
            return checked(response)
        response = client.responses.retrieve(response.id)
    raise AssertionError(f"{response.id} is still {response.status}")


@pytest.mark.shows("A.3", "I.10")
def test_a_response_is_retrieved_as_it_was(client: OpenAI) -> None:
    made = client.responses.create(model="fake", input="hi", metadata={"a": "b"})
    found = checked(client.responses.retrieve(made.id, include=["message.output_text.logprobs"]))
    assert raw(found) == raw(made)


@pytest.mark.anyio
@pytest.mark.shows("A.3", "A.6", "I.10")
async def test_the_async_client_retrieves_and_deletes(async_client: AsyncOpenAI) -> None:
    made = await async_client.responses.create(model="fake", input="hi")
    assert raw(checked(await async_client.responses.retrieve(made.id))) == raw(made)
    await async_client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        await async_client.responses.retrieve(made.id)


@pytest.mark.shows("A.6", "B.10")
def test_a_deleted_response_is_gone(client: OpenAI) -> None:
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
def test_a_stream_is_retrieved_from_any_event_on(client: OpenAI, background: bool) -> None:
    with client.responses.create(model="fake", input="hi", stream=True, background=background) as stream:
        told = [raw(event) for event in stream]
    response_id = told[0]["response"]["id"]
    for number in (0, 3, len(told) - 2, len(told) - 1, 10_000):
        with client.responses.retrieve(response_id, stream=True, starting_after=number) as stream:
            assert [raw(event) for event in stream] == told[number + 1 :]
    with client.responses.retrieve(response_id, stream=True) as stream:
        again = [raw(event) for event in stream]
    for event in again:
        check_event(event)
    assert again == told
    assert accumulate(again).output_text == "You said: hi"


@pytest.mark.shows("A.5", "I.10")
def test_a_stream_that_broke_off_is_taken_up_by_the_helper(slow: OpenAI) -> None:
    with slow.responses.create(model="fake", input="hi", stream=True, background=True) as stream:
        first = next(stream)
        assert first.type == "response.created"
        last = next(event for event in stream if event.type == "response.output_text.delta")
    helper = slow.responses.stream(response_id=first.response.id, starting_after=last.sequence_number)
    with helper as resumed:
        numbers = [event.sequence_number for event in resumed if str(event.type) != "keepalive"]
        final = resumed.get_final_response()
    assert numbers == list(range(last.sequence_number + 1, last.sequence_number + 1 + len(numbers)))
    assert final.output_text == "You said: hi"


@pytest.mark.anyio
@pytest.mark.shows("A.5", "I.10")
async def test_the_async_helper_takes_it_up_and_parses(async_client: AsyncOpenAI) -> None:
    async with async_client.responses.stream(model="fake", input="Where?", text_format=Place) as stream:
        first = await anext(aiter(stream))
        await stream.get_final_response()
    assert first.type == "response.created"
    async with async_client.responses.stream(
        response_id=first.response.id, starting_after=2, text_format=Place
    ) as again:
        assert isinstance((await again.get_final_response()).output_parsed, Place)


@pytest.mark.shows("A.9", "I.10")
def test_the_sdks_iterator_goes_through_all_pages_of_the_input(client: OpenAI) -> None:
    said = [str(number) for number in range(7)]
    made = client.responses.create(model="fake", input=[{"role": "user", "content": one} for one in said])
    for order, expected in (("asc", said), ("desc", said[::-1])):
        listed: Any = client.responses.input_items.list(made.id, limit=3, order=order)  # type: ignore[arg-type]  # a word
        assert [item.content[0].text for item in listed] == expected
    first = client.responses.input_items.list(made.id, limit=3)
    assert (len(first.data), first.has_more) == (3, True)
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.input_items.list(made.id, after="msg_nowhere")
    assert refused.value.param == "after"


@pytest.mark.anyio
@pytest.mark.shows("A.9", "I.10")
async def test_so_does_the_async_one(async_client: AsyncOpenAI) -> None:
    made = await async_client.responses.create(model="fake", input=[{"role": "user", "content": "a"}] * 5)
    assert len([item async for item in async_client.responses.input_items.list(made.id, limit=2)]) == 5


@pytest.mark.shows("B.6", "I.10")
def test_background_is_polled_to_its_end(client: OpenAI) -> None:
    made = checked(client.responses.create(model="fake", input="hi", background=True))
    assert made.status in RUNNING
    assert polled(client, made).output_text == "You said: hi"


@pytest.mark.anyio
@pytest.mark.shows("B.6", "I.10")
async def test_so_it_is_by_the_async_client(async_client: AsyncOpenAI) -> None:
    response = await async_client.responses.create(model="fake", input="hi", background=True)
    for _ in patiently():
        if response.status not in RUNNING:
            break
        response = await async_client.responses.retrieve(response.id)
    assert checked(response).output_text == "You said: hi"


@pytest.mark.shows("A.7", "A.8", "B.8", "I.10")
def test_background_is_cancelled_and_nothing_else_can_be(slow: OpenAI) -> None:
    made = slow.responses.create(model="fake", input=LONG, background=True)
    cancelled = checked(slow.responses.cancel(made.id))
    assert cancelled.status == "cancelled"
    assert raw(slow.responses.cancel(made.id)) == raw(cancelled) == raw(slow.responses.retrieve(made.id))
    with pytest.raises(openai.BadRequestError) as refused:
        slow.responses.cancel(slow.responses.create(model="fake", input="a").id)
    assert refused.value.code == "cancellation_not_supported"


@pytest.mark.shows("A.49", "I.10")
def test_a_cancelled_stream_ends_incomplete_and_is_told_again_so(slow: OpenAI) -> None:
    with slow.responses.create(model="fake", input=LONG, background=True, stream=True) as stream:
        first = next(stream)
        assert first.type == "response.created"
        slow.responses.cancel(first.response.id)
        told = [raw(event) for event in stream]
    told = [event for event in told if event["type"] != "keepalive"]
    assert (told[-1]["type"], told[-1]["response"]["status"]) == ("response.incomplete", "cancelled")
    with slow.responses.retrieve(first.response.id, stream=True, starting_after=0) as stream:
        assert [raw(event) for event in stream] == told


@pytest.mark.shows("B.9", "A.25", "I.10")
def test_a_tools_output_continues_the_response_that_called_it(client: OpenAI) -> None:
    first = client.responses.create(model="fake", input="weather?", tools=[WEATHER], instructions="Be brief.")
    (call,) = [item for item in first.output if isinstance(item, ResponseFunctionToolCall)]
    output: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}]
    branches = [
        checked(client.responses.create(model="fake", input=output, tools=[WEATHER], previous_response_id=first.id))
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


def test_an_output_for_a_call_that_nobody_made_is_refused(client: OpenAI) -> None:
    first = client.responses.create(model="fake", input="hi")
    output: Any = [{"type": "function_call_output", "call_id": "call_1", "output": "sunny"}]
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model="fake", input=output, previous_response_id=first.id)
    assert refused.value.param == "input[0].call_id"


@pytest.mark.shows("B.11", "I.10")
def test_items_can_be_referred_to(client: OpenAI) -> None:
    first = client.responses.create(model="fake", input="weather?", tools=[WEATHER], reasoning={"effort": "low"})
    thought, call = first.output
    assert isinstance(call, ResponseFunctionToolCall)
    input_: Any = [
        {"role": "user", "content": "weather?"},
        {"type": "item_reference", "id": thought.id},
        {"id": call.id},
        {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"},
    ]
    second = checked(client.responses.create(model="fake", input=input_, tools=[WEATHER]))
    assert "sunny" in second.output_text
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model="fake", input=[{"type": "item_reference", "id": "msg_nowhere"}])
    assert refused.value.param == "input[0].id"


@pytest.mark.shows("B.12", "B.13")
def test_an_idempotency_key_gives_the_same_response_again(client: OpenAI) -> None:
    key = {"Idempotency-Key": "a-key-of-mine"}
    first, second = (client.responses.create(model="fake", input="hi", extra_headers=key) for _ in range(2))
    assert raw(first) == raw(second)
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model="fake", input="ho", extra_headers=key)
    assert refused.value.code == "idempotency_key_reused"


def texts(items: Iterable[Any]) -> list[str]:
    for item in items:
        check_conversation_item(raw(item))
    return [item.content[0].text for item in items]


@pytest.mark.shows("B.14", "B.15", "B.16", "B.17", "B.18", "B.19", "B.20", "B.21", "I.10")
def test_a_conversation_from_its_beginning_to_its_end(client: OpenAI) -> None:
    made = client.conversations.create(items=[{"role": "user", "content": "one"}], metadata={"k": "v", "l": "w"})
    check_conversation(raw(made))
    changed = client.conversations.update(made.id, metadata={"k": "x", "l": None})  # type: ignore[dict-item]  # deletes
    assert changed.metadata == {"k": "x"}
    assert raw(client.conversations.retrieve(made.id)) == raw(changed)
    more: Any = [{"role": "user", "content": str(number)} for number in range(4)]
    added = client.conversations.items.create(made.id, items=more)
    assert texts(added.data) == ["0", "1", "2", "3"]
    assert texts([*client.conversations.items.list(made.id, limit=2, order="asc")]) == ["one", "0", "1", "2", "3"]
    assert texts([*client.conversations.items.list(made.id, limit=2)]) == ["3", "2", "1", "0", "one"]
    item = client.conversations.items.retrieve(str(added.last_id), conversation_id=made.id)
    assert texts([item]) == ["3"]
    left = client.conversations.items.delete(added.first_id, conversation_id=made.id)
    assert raw(left) == raw(changed)
    assert texts([*client.conversations.items.list(made.id, order="asc")]) == ["one", "1", "2", "3"]
    gone = client.conversations.delete(made.id)
    check_conversation(raw(gone))
    with pytest.raises(openai.NotFoundError):
        client.conversations.retrieve(made.id)


@pytest.mark.anyio
@pytest.mark.shows("B.14", "B.19", "I.10")
async def test_the_async_client_has_conversations_too(async_client: AsyncOpenAI) -> None:
    made = await async_client.conversations.create()
    await async_client.conversations.items.create(made.id, items=[{"role": "user", "content": "a"}] * 3)
    listed = [item async for item in async_client.conversations.items.list(made.id, limit=2)]
    assert texts(listed) == ["a"] * 3
    assert (await async_client.conversations.delete(made.id)).deleted


@pytest.mark.shows("B.22", "I.10")
def test_responses_read_their_conversation_and_add_to_it(client: OpenAI) -> None:
    made = client.conversations.create(items=[{"role": "user", "content": "one"}])
    first = checked(client.responses.create(model="fake", input="two", conversation=made.id))
    assert first.conversation is not None
    assert first.conversation.id == made.id
    with client.responses.create(model="fake", input="three", conversation={"id": made.id}, stream=True) as stream:
        assert list(stream)[-1].type == "response.completed"
    said = ["one", "two", "You said: two", "three", "You said: three"]
    listed = [*client.conversations.items.list(made.id, order="asc")]
    assert texts(listed) == said
    assert listed[2].id == first.output[0].id
    with pytest.raises(openai.NotFoundError) as missing:
        client.responses.create(model="fake", input="x", conversation="conv_" + "0" * 32)
    assert missing.value.param == "conversation"


@pytest.mark.shows("B.24")
def test_a_conversation_id_of_another_kind_is_refused(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.conversations.retrieve("invalid-id")
    assert refused.value.code == "invalid_conversation_id"
