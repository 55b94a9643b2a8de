"""The history of a request: chains of responses, conversations and item references, loaded over an in-memory store."""

import asyncio
import tracemalloc
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from antiphon.core.deltas import CallDelta, CallDone, CallStarted, ReasoningDelta
from antiphon.core.prompt import ChatPrompt
from antiphon.engines.fake import FakeEngine, FakeSettings
from antiphon.errors import (
    BadRequest,
    EngineFailed,
    InvalidValue,
    MissingParameter,
    UnknownConversation,
    UnknownPrevious,
    UnsupportedParameter,
)
from antiphon.ids import ItemIds, new_id, parse_response_id
from antiphon.protocol.decoding.codec import encode
from antiphon.protocol.decoding.stored_items import assign_ids
from antiphon.protocol.types.items import FunctionCall, InputItem, Message, Reasoning
from antiphon.protocol.types.parts import InputText, OutputText
from antiphon.protocol.types.response import Response
from antiphon.service.persistence.rows import encode_request
from antiphon.stores.base import ConversationRow, ItemRow, NewResponse, ResponseEnd
from tests.service.instrumented_store import InstrumentedStore
from tests.service.requests import (
    TENANT,
    ServiceStack,
    accept_request,
    close_source,
    create_response,
    decode_request,
    get_text,
    start_service,
    stream_events,
)

pytestmark = pytest.mark.anyio
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}


def get_prompt_contents(engine: FakeEngine) -> list[Any]:
    """Return the message contents of the last prompt that the engine received."""
    prompt = engine.seen[-1].prompt
    assert isinstance(prompt, ChatPrompt)
    return [message["content"] for message in prompt.messages]


def extract_texts(items: Any) -> list[str]:
    parts = [part for item in items if isinstance(item, Message) for part in item.content]
    return [part.text for part in parts if isinstance(part, InputText | OutputText)]


def clear_history_cache(service: ServiceStack) -> None:
    """Empty the history cache, as a restart does."""
    service.history_loader.__init__(service.store)  # type: ignore[misc]  # reset in place


async def create_conversation(service: ServiceStack, *texts: str) -> str:
    row = ConversationRow(new_id("conv"), 1.0, {})
    items = assign_ids([Message(role="user", content=[InputText(text=text)]) for text in texts], new_id)
    await service.store.create_conversation(TENANT, row, [ItemRow(str(item.id), encode(item)) for item in items])
    return row.id


async def load_items(service: ServiceStack, conversation_id: str) -> list[InputItem]:
    items = await service.store.all_items(TENANT, conversation_id)
    assert items is not None
    return [msgspec.json.decode(item, type=InputItem) for item in items]


# ---- previous_response_id


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.shows("B.9")
async def test_a_response_continues_another(service: ServiceStack, engine: FakeEngine, restarted: bool) -> None:
    last: Response | None = None
    for turn in ("one", "two", "three"):
        if restarted:
            clear_history_cache(service)
        last = await create_response(service.responses, input=turn, previous_response_id=last and last.id)
    assert get_prompt_contents(engine) == ["one", "You said: one", "two", "You said: two", "three"]


@pytest.mark.shows("B.9")
async def test_several_branches_continue_one_response(service: ServiceStack, engine: FakeEngine) -> None:
    root = await create_response(service.responses, input="root")
    stem = await create_response(service.responses, input="stem", previous_response_id=root.id)
    before = ["root", "You said: root", "stem", "You said: stem"]
    for branch in ("a", "b", "c"):
        twig = await create_response(service.responses, input=branch, previous_response_id=stem.id)
        assert get_prompt_contents(engine) == [*before, branch]
        await create_response(service.responses, input="leaf", previous_response_id=twig.id)
        assert get_prompt_contents(engine) == [*before, branch, f"You said: {branch}", "leaf"]
    await create_response(service.responses, input="again", previous_response_id=root.id)
    assert get_prompt_contents(engine) == [*before[:2], "again"]


async def test_streamed_and_json_responses_continue_each_other(service: ServiceStack, engine: FakeEngine) -> None:
    (*_, first) = await stream_events(service.responses, input="one")
    second = await create_response(service.responses, input="two", previous_response_id=first.response.id)  # type: ignore[attr-defined]  # the terminal event
    await stream_events(service.responses, input="three", previous_response_id=second.id)
    assert get_prompt_contents(engine) == ["one", "You said: one", "two", "You said: two", "three"]


async def test_previous_response_id_is_echoed(service: ServiceStack) -> None:
    first = await create_response(service.responses)
    second = await create_response(service.responses, previous_response_id=first.id)
    assert (first.previous_response_id, second.previous_response_id) == (None, first.id)
    assert (await service.load_response(second.id)).previous_response_id == first.id


@pytest.mark.shows("A.23")
async def test_instructions_are_not_inherited(service: ServiceStack, engine: FakeEngine) -> None:
    first = await create_response(service.responses, input="one", instructions="Be brief.")
    await create_response(service.responses, input="two", previous_response_id=first.id, instructions="Be kind.")
    assert get_prompt_contents(engine) == ["Be kind.", "one", "You said: one", "two"]


async def test_calls_outputs_and_reasoning_are_part_of_the_history(service: ServiceStack, engine: FakeEngine) -> None:
    engine.says(ReasoningDelta("hm"), CallStarted(0, "f"), CallDelta(0, "{}"), CallDone(0))
    first = await create_response(service.responses, input="go", tools=[TOOL])
    call = next(item for item in first.output if isinstance(item, FunctionCall))
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "42"}
    second = await create_response(service.responses, input=[output], previous_response_id=first.id, tools=[TOOL])
    clear_history_cache(service)
    earlier = await service.history_loader.load_earlier(TENANT, decode_request(previous_response_id=second.id).request)
    kinds = [type(item).__name__ for item in earlier]
    assert kinds == ["Message", "Reasoning", "FunctionCall", "FunctionCallOutput", "Message"]
    prompt = engine.seen[-1].prompt
    assert isinstance(prompt, ChatPrompt)
    assert [message["role"] for message in prompt.messages] == ["user", "assistant", "tool"]


async def test_an_output_for_an_unknown_call_is_rejected(service: ServiceStack, engine: FakeEngine) -> None:
    first = await create_response(service.responses)
    output = {"type": "function_call_output", "call_id": "call_no", "output": "42"}
    with pytest.raises(InvalidValue, match="call_no") as refused:
        await accept_request(service.responses, input=[output], previous_response_id=first.id)
    assert refused.value.param == "input[0].call_id"
    assert len(engine.seen) == 1


async def test_a_second_output_for_a_call_is_rejected(service: ServiceStack, engine: FakeEngine) -> None:
    engine.says(CallStarted(0, "f"), CallDelta(0, "{}"), CallDone(0))
    first = await create_response(service.responses, tools=[TOOL])
    (call,) = [item for item in first.output if isinstance(item, FunctionCall)]
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "42"}
    second = await create_response(service.responses, input=[output], previous_response_id=first.id)
    with pytest.raises(InvalidValue, match="has an output already"):
        await accept_request(service.responses, input=[output], previous_response_id=second.id)


async def test_incomplete_and_failed_responses_can_be_continued(service: ServiceStack, engine: FakeEngine) -> None:
    cut = await create_response(service.responses, input="a long enough question", max_output_tokens=2)
    assert cut.status == "incomplete"
    engine.fails(EngineFailed("It broke."))
    events = await stream_events(service.responses, input="two", previous_response_id=cut.id)
    failed = events[-1].response  # type: ignore[attr-defined]  # the terminal event
    assert failed.status == "failed"
    await create_response(service.responses, input="three", previous_response_id=failed.id)
    assert get_prompt_contents(engine) == ["a long enough question", get_text(cut), "two", "three"]


@pytest.mark.parametrize("name", ["resp_" + "0" * 32, "resp_1", "msg_" + "0" * 32, "", "x" * 500])
@pytest.mark.shows("B.10")
async def test_an_unknown_previous_response_is_a_400_with_its_code(
    service: ServiceStack, engine: FakeEngine, name: str
) -> None:
    with pytest.raises(UnknownPrevious) as refused:
        await accept_request(service.responses, previous_response_id=name)
    error = refused.value
    assert (error.status, error.code, error.param) == (400, "previous_response_not_found", "previous_response_id")
    assert not engine.seen


async def test_a_response_of_another_tenant_is_unknown(service: ServiceStack) -> None:
    first = await create_response(service.responses)
    with pytest.raises(UnknownPrevious):
        await service.responses.create("another", decode_request(previous_response_id=first.id))


@pytest.mark.parametrize("store", [True, False])
@pytest.mark.parametrize("restarted", [False, True])
async def test_a_deleted_response_cannot_be_continued_even_if_it_is_cached(
    service: ServiceStack, instrumented_store: InstrumentedStore, engine: FakeEngine, store: bool, restarted: bool
) -> None:
    first = await create_response(service.responses)
    second = await create_response(service.responses, previous_response_id=first.id)
    third = await create_response(service.responses, previous_response_id=second.id)
    assert await service.store.delete(TENANT, second.id)
    if restarted:
        clear_history_cache(service)
    for stream in (False, True):
        with pytest.raises(UnknownPrevious):
            await accept_request(service.responses, previous_response_id=second.id, store=store, stream=stream)
    assert len(engine.seen) == 3
    await create_response(service.responses, input="on", previous_response_id=third.id, store=store)
    assert get_prompt_contents(engine) == ["hi", "You said: hi"] * 3 + ["on"]


@pytest.mark.parametrize("store", [True, False])
async def test_an_expired_response_cannot_be_continued(
    service: ServiceStack, instrumented_store: InstrumentedStore, store: bool
) -> None:
    first = await create_response(service.responses)
    second = await create_response(service.responses, previous_response_id=first.id)
    instrumented_store.clock_offset = service.writer.settings.store_ttl + 1.0
    with pytest.raises(UnknownPrevious):
        await accept_request(service.responses, previous_response_id=second.id, store=store)


async def test_a_running_response_cannot_be_continued(service: ServiceStack) -> None:
    running = await accept_request(service.responses, stream=True)
    (response_id,) = service.list_running()
    with pytest.raises(InvalidValue, match="still in_progress") as refused:
        await accept_request(service.responses, previous_response_id=response_id)
    assert refused.value.param == "previous_response_id"
    close_source(running)
    await service.writer.drain(5.0)
    assert (await create_response(service.responses, previous_response_id=response_id)).status == "completed"


async def test_an_unstored_response_can_continue_a_stored_one(service: ServiceStack, engine: FakeEngine) -> None:
    first = await create_response(service.responses, input="one")
    second = await create_response(service.responses, input="two", previous_response_id=first.id, store=False)
    assert get_prompt_contents(engine) == ["one", "You said: one", "two"]
    assert second.store is False
    with pytest.raises(UnknownPrevious):
        await accept_request(service.responses, previous_response_id=second.id)


async def test_an_active_chain_is_read_from_the_store_once(
    service: ServiceStack, instrumented_store: InstrumentedStore
) -> None:
    last = await create_response(service.responses)
    for _ in range(20):
        last = await create_response(service.responses, previous_response_id=last.id)
    assert instrumented_store.calls.count("chain") == 1
    assert set(instrumented_store.calls) == {"chain", "begin", "finish"}


async def test_only_uncached_responses_of_a_chain_are_read(
    service: ServiceStack, instrumented_store: InstrumentedStore, engine: FakeEngine
) -> None:
    root = await create_response(service.responses, input="root")
    stem = await create_response(service.responses, input="stem", previous_response_id=root.id)
    other_service = ServiceStack(engine, instrumented_store.as_store())
    for name in ("a", "b"):
        stem = await create_response(other_service.responses, input=name, previous_response_id=stem.id)
    instrumented_store.results.clear()
    await create_response(service.responses, input="now", previous_response_id=stem.id)
    assert get_prompt_contents(engine)[0::2] == ["root", "stem", "a", "b", "now"]
    (read,) = [links for name, links in instrumented_store.results if name == "chain"]
    assert len(read) == 2


@pytest.mark.shows("B.9")
async def test_a_chain_of_3000_responses_is_loaded(instrumented_store: InstrumentedStore) -> None:
    engine = FakeEngine(FakeSettings(context=1_000_000))
    service = ServiceStack(engine, instrumented_store.as_store())
    last = await create_response(service.responses, input="0")
    for turn in range(1, 3000):
        name, before = new_id("resp"), last.id
        last = replace(last, id=name, previous_response_id=before)
        decoded_request = decode_request(input=str(turn))
        new = NewResponse(
            id=name,
            status="completed",
            created=1.0,
            previous=before,
            request=encode_request(decoded_request),
            response=b"",
        )
        end = ResponseEnd(
            id=name,
            fence=0,
            status="completed",
            response=encode(last),
            packed_log=b"",
            ended=1.0,
            expires=None,
            new=new,
        )
        await service.store.finish(TENANT, end)
    await create_response(service.responses, input="now", previous_response_id=last.id)
    assert get_prompt_contents(engine)[0::2] == [*map(str, range(3000)), "now"]
    assert len(engine.seen) == 2


async def test_a_small_cache_does_not_change_results(engine: FakeEngine, instrumented_store: InstrumentedStore) -> None:
    async with start_service(engine, instrumented_store.as_store()) as service:
        service.history_loader.__init__(service.store, 3000)  # type: ignore[misc]  # reset in place with a smaller cache
        chains: list[list[str]] = [[], [], []]
        last: list[Response | None] = [None, None, None]
        for turn in range(12):
            for number, texts in enumerate(chains):
                text = f"{number}.{turn}"
                previous = last[number]
                last[number] = await create_response(
                    service.responses, input=text, previous_response_id=previous and previous.id
                )
                texts.append(text)
                assert get_prompt_contents(engine)[0::2] == texts


@pytest.mark.parametrize("input_items", [[], None])
async def test_input_is_optional_if_there_is_earlier_history(
    service: ServiceStack, engine: FakeEngine, input_items: list[Any] | None
) -> None:
    first = await create_response(service.responses, input="one")
    await create_response(service.responses, input=input_items, previous_response_id=first.id)
    assert get_prompt_contents(engine) == ["one", "You said: one"]
    conversation_id = await create_conversation(service, "hello")
    await create_response(service.responses, input=input_items, conversation=conversation_id)
    assert get_prompt_contents(engine) == ["hello"]
    with pytest.raises(MissingParameter) as missing:
        await accept_request(service.responses, input=input_items, conversation=await create_conversation(service))
    assert missing.value.param == "input"


async def test_an_error_in_an_earlier_item_names_the_field_that_loaded_it(service: ServiceStack) -> None:
    image = [{"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,AAAA"}]}]
    first = await create_response(service.responses, input="hi")
    row = await service.load_row(first.id)
    assert row.request
    text_engine = FakeEngine(FakeSettings(level="text"))
    async with start_service(text_engine, service.store) as other:
        conversation_id = await create_conversation(service)
        items = assign_ids(decode_request(input=image).request.input, new_id)
        await service.store.add_items(
            TENANT, conversation_id, [ItemRow(str(item.id), encode(item)) for item in items], 10
        )
        with pytest.raises(BadRequest) as refused:
            await accept_request(other.responses, conversation=conversation_id)
    assert refused.value.param == "conversation"


async def test_a_recovered_run_finds_its_history_after_deletion(service: ServiceStack) -> None:
    first = await create_response(service.responses, input="one")
    second = await create_response(service.responses, input="two", previous_response_id=first.id)
    running = await accept_request(service.responses, input="three", previous_response_id=second.id, stream=True)
    (response_id,) = service.list_running()
    await service.store.delete(TENANT, second.id)
    await service.store.delete(TENANT, first.id)
    clear_history_cache(service)
    request = decode_request(previous_response_id=second.id).request
    earlier = await service.history_loader.load_earlier(TENANT, request, response_id)
    assert extract_texts(earlier) == ["one", "You said: one", "two", "You said: two"]
    close_source(running)


# ---- conversations


async def test_a_conversation_of_large_items_is_loaded_without_extra_copies(service: ServiceStack) -> None:
    conversation_id = await create_conversation(service, *["x" * 1_000_000] * 4)
    tracemalloc.start()
    try:
        request = decode_request(input="hi", conversation=conversation_id).request
        loaded = await service.history_loader.load_earlier(TENANT, request)
        assert tracemalloc.get_traced_memory()[1] < 9_000_000  # as they are stored, and decoded
    finally:
        tracemalloc.stop()
    assert len(loaded) == 4


@pytest.mark.shows("B.22")
async def test_a_conversation_is_prepended_and_grows_by_input_and_output(
    service: ServiceStack, engine: FakeEngine
) -> None:
    conversation_id = await create_conversation(service, "hello")
    first = await create_response(service.responses, input="one", conversation=conversation_id)
    assert get_prompt_contents(engine) == ["hello", "one"]
    await stream_events(service.responses, input="two", conversation={"id": conversation_id})
    assert get_prompt_contents(engine) == ["hello", "one", "You said: one", "two"]
    items = await load_items(service, conversation_id)
    assert extract_texts(items) == ["hello", "one", "You said: one", "two", "You said: two"]
    assert first.conversation is not None
    assert first.conversation.id == conversation_id
    assert [parse_response_id(str(item.id)) for item in items[1:3]] == [first.id, first.id]
    assert items[2] == first.output[0]


@pytest.mark.shows("B.22")
async def test_failed_and_cancelled_responses_are_not_added_to_the_conversation(
    service: ServiceStack, engine: FakeEngine
) -> None:
    conversation_id = await create_conversation(service, "hello")
    engine.fails(EngineFailed("It broke."))
    with pytest.raises(EngineFailed):
        await create_response(service.responses, input="failed", conversation=conversation_id)
    close_source(await accept_request(service.responses, input="left", conversation=conversation_id, stream=True))
    await service.writer.drain(5.0)
    assert extract_texts(await load_items(service, conversation_id)) == ["hello"]
    await create_response(
        service.responses, input="a question that is cut", conversation=conversation_id, max_output_tokens=2
    )
    assert extract_texts(await load_items(service, conversation_id))[:2] == ["hello", "a question that is cut"]
    assert len(await load_items(service, conversation_id)) == 3


async def test_an_unstored_turn_of_a_conversation_is_refused(service: ServiceStack, engine: FakeEngine) -> None:
    conversation_id = await create_conversation(service, "hello")
    with pytest.raises(UnsupportedParameter, match="must be stored") as refused:
        await create_response(service.responses, input="one", conversation=conversation_id, store=False)
    assert (refused.value.status, refused.value.param) == (400, "store")
    assert not engine.seen
    assert extract_texts(await load_items(service, conversation_id)) == ["hello"]


@pytest.mark.parametrize("name", ["conv_" + "0" * 32, "conv_1"])
async def test_an_unknown_conversation_is_a_404(service: ServiceStack, engine: FakeEngine, name: str) -> None:
    with pytest.raises(UnknownConversation) as refused:
        await accept_request(service.responses, conversation=name)
    assert (refused.value.status, refused.value.param) == (404, "conversation")
    assert not engine.seen


async def test_deleting_the_conversation_does_not_fail_a_running_response(service: ServiceStack) -> None:
    conversation_id = await create_conversation(service, "hello")
    running = await accept_request(service.responses, conversation=conversation_id)
    await service.store.delete_conversation(TENANT, conversation_id)
    assert running.source is not None
    response = msgspec.json.decode(await running.source.result(), type=Response)
    running.source.close()
    assert response.status == "completed"
    assert (await service.load_response(response.id)).status == "completed"


@pytest.mark.shows("B.26")
async def test_parallel_writers_neither_lose_nor_interleave_a_turn(service: ServiceStack) -> None:
    conversation_id = await create_conversation(service)

    async def send_turns(number: int) -> None:
        for turn in range(2):
            text = f"{number}.{turn}"
            if number % 2:
                await create_response(service.responses, input=text, conversation=conversation_id)
            else:
                await stream_events(service.responses, input=text, conversation=conversation_id)

    await asyncio.gather(*(send_turns(number) for number in range(25)))
    texts = extract_texts(await load_items(service, conversation_id))
    assert [f"You said: {question}" for question in texts[0::2]] == texts[1::2]
    assert sorted(texts[0::2]) == sorted(f"{number}.{turn}" for number in range(25) for turn in range(2))
    for number in range(25):
        assert texts.index(f"{number}.0") < texts.index(f"{number}.1")


# ---- references


def make_reference(item: Any) -> dict[str, Any]:
    return {"type": "item_reference", "id": str(item if isinstance(item, str) else item.id)}


@pytest.mark.shows("B.11")
async def test_a_reference_is_replaced_by_the_item(service: ServiceStack, engine: FakeEngine) -> None:
    first = await create_response(service.responses, input="one", reasoning={"effort": "low"})
    reasoning, message = first.output
    assert isinstance(reasoning, Reasoning)
    input_id = ItemIds(first.id, "input")("msg")
    input_items = [
        make_reference(input_id),
        make_reference(reasoning),
        make_reference(message),
        {"role": "user", "content": "two"},
    ]
    second = await create_response(service.responses, input=input_items)
    assert [content for content in get_prompt_contents(engine) if content] == ["one", "You said: one", "two"]
    stored = await service.history_loader.load_earlier(TENANT, decode_request(previous_response_id=second.id).request)
    assert [parse_response_id(str(item.id)) for item in stored] == [second.id] * 5


@pytest.mark.shows("B.11")
async def test_a_conversation_item_can_be_referenced(service: ServiceStack, engine: FakeEngine) -> None:
    conversation_id = await create_conversation(service, "hello")
    (item,) = await load_items(service, conversation_id)
    await create_response(service.responses, input=[make_reference(item), {"role": "user", "content": "two"}])
    assert get_prompt_contents(engine) == ["hello", "two"]


async def test_an_item_outlives_its_response_in_a_conversation(service: ServiceStack, engine: FakeEngine) -> None:
    conversation_id = await create_conversation(service)
    first = await create_response(service.responses, input="one", conversation=conversation_id)
    await service.store.delete(TENANT, first.id)
    await create_response(
        service.responses, input=[make_reference(first.output[0]), {"role": "user", "content": "two"}]
    )
    assert get_prompt_contents(engine) == ["You said: one", "two"]


@pytest.mark.parametrize("name", ["msg_" + "0" * 37, "msg_" + "0" * 32, "msg_mine", "x" * 400])
async def test_an_unknown_reference_is_rejected_with_its_index(
    service: ServiceStack, engine: FakeEngine, name: str
) -> None:
    with pytest.raises(InvalidValue) as refused:
        await accept_request(service.responses, input=[{"role": "user", "content": "hi"}, make_reference(name)])
    assert refused.value.param == "input[1].id"
    assert not engine.seen


async def test_items_of_deleted_responses_and_of_other_tenants_are_not_found(service: ServiceStack) -> None:
    first = await create_response(service.responses)
    with pytest.raises(InvalidValue):
        await service.responses.create("another", decode_request(input=[make_reference(first.output[0])]))
    await service.store.delete(TENANT, first.id)
    with pytest.raises(InvalidValue):
        await accept_request(service.responses, input=[make_reference(first.output[0])])


async def test_an_output_can_answer_a_referenced_call(service: ServiceStack, engine: FakeEngine) -> None:
    engine.says(CallStarted(0, "f"), CallDelta(0, "{}"), CallDone(0))
    first = await create_response(service.responses, input="go", tools=[TOOL])
    (call,) = first.output
    assert isinstance(call, FunctionCall)
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "42"}
    second = await create_response(
        service.responses, input=[{"role": "user", "content": "go"}, make_reference(call), output], tools=[TOOL]
    )
    assert second.status == "completed"
    with pytest.raises(InvalidValue, match="There is no call"):
        await accept_request(service.responses, input=[make_reference(call), {**output, "call_id": "call_other"}])


async def test_a_referenced_item_is_stored_with_the_input(service: ServiceStack) -> None:
    first = await create_response(service.responses, input="one")
    second = await create_response(
        service.responses, input=[make_reference(first.output[0]), {"role": "user", "content": "two"}]
    )
    assert get_text(first) in str((await service.load_row(second.id)).request)
