"""What came before a request: chains of responses, conversations, and items that are referred to."""

import asyncio
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from antiphon.core.deltas import CallDelta, CallDone, CallStarted, Thought
from antiphon.core.prompt import ChatPrompt
from antiphon.engines.fake import FakeEngine, FakeSettings
from antiphon.errors import (
    BadRequest,
    EngineFailed,
    InvalidValue,
    MissingParameter,
    UnknownConversation,
    UnknownPrevious,
)
from antiphon.ids import ItemIds, home, new_id
from antiphon.protocol.decoding.codec import encode
from antiphon.protocol.decoding.stored_items import keep
from antiphon.protocol.types.items import FunctionCall, InputItem, InputText, Message, OutputText, Reasoning
from antiphon.protocol.types.response import Response
from antiphon.service.persistence.stored_request import stored_request
from antiphon.stores.base import ConversationRow, End, ItemRow, NewResponse
from tests.service.instrumented_store import Watched
from tests.service.requests import TENANT, Service, accepted, answered, decoded, leave, serving, streamed, text_of

pytestmark = pytest.mark.anyio
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}


def seen(engine: FakeEngine) -> list[Any]:
    """The contents of the messages that the engine was given last."""
    prompt = engine.seen[-1].prompt
    assert isinstance(prompt, ChatPrompt)
    return [message["content"] for message in prompt.messages]


def words(items: Any) -> list[str]:
    parts = [part for item in items if isinstance(item, Message) for part in item.content]
    return [part.text for part in parts if isinstance(part, InputText | OutputText)]


def forgotten(made: Service) -> None:
    """As after a restart."""
    made.past.__init__(made.store)  # type: ignore[misc]  # the same object, as new


async def conversation(made: Service, *texts: str) -> str:
    row = ConversationRow(new_id("conv"), 1.0, {})
    items = keep([Message(role="user", content=[InputText(text=text)]) for text in texts], new_id)
    await made.store.create_conversation(TENANT, row, [ItemRow(str(item.id), encode(item)) for item in items])
    return row.id


async def items_of(made: Service, conversation_id: str) -> list[InputItem]:
    items = await made.store.all_items(TENANT, conversation_id)
    assert items is not None
    return [msgspec.json.decode(item, type=InputItem) for item in items]


# ---- previous_response_id


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.shows("B.9")
async def test_a_response_continues_another(made: Service, engine: FakeEngine, restarted: bool) -> None:
    last: Response | None = None
    for turn in ("one", "two", "three"):
        if restarted:
            forgotten(made)
        last = await answered(made.responses, input=turn, previous_response_id=last and last.id)
    assert seen(engine) == ["one", "You said: one", "two", "You said: two", "three"]


@pytest.mark.shows("B.9")
async def test_any_number_of_branches_grow_from_one(made: Service, engine: FakeEngine) -> None:
    root = await answered(made.responses, input="root")
    stem = await answered(made.responses, input="stem", previous_response_id=root.id)
    before = ["root", "You said: root", "stem", "You said: stem"]
    for branch in ("a", "b", "c"):
        twig = await answered(made.responses, input=branch, previous_response_id=stem.id)
        assert seen(engine) == [*before, branch]
        await answered(made.responses, input="leaf", previous_response_id=twig.id)
        assert seen(engine) == [*before, branch, f"You said: {branch}", "leaf"]
    await answered(made.responses, input="again", previous_response_id=root.id)
    assert seen(engine) == [*before[:2], "again"]


async def test_streams_and_json_continue_each_other(made: Service, engine: FakeEngine) -> None:
    (*_, first) = await streamed(made.responses, input="one")
    second = await answered(made.responses, input="two", previous_response_id=first.response.id)  # type: ignore[attr-defined]  # the terminal event
    await streamed(made.responses, input="three", previous_response_id=second.id)
    assert seen(engine) == ["one", "You said: one", "two", "You said: two", "three"]


async def test_previous_response_id_is_echoed(made: Service) -> None:
    first = await answered(made.responses)
    second = await answered(made.responses, previous_response_id=first.id)
    assert (first.previous_response_id, second.previous_response_id) == (None, first.id)
    assert (await made.stored(second.id)).previous_response_id == first.id


@pytest.mark.shows("A.23")
async def test_instructions_are_not_inherited(made: Service, engine: FakeEngine) -> None:
    first = await answered(made.responses, input="one", instructions="Be brief.")
    await answered(made.responses, input="two", previous_response_id=first.id, instructions="Be kind.")
    assert seen(engine) == ["Be kind.", "one", "You said: one", "two"]


async def test_calls_their_outputs_and_reasoning_come_along(made: Service, engine: FakeEngine) -> None:
    engine.says(Thought("hm"), CallStarted(0, "f"), CallDelta(0, "{}"), CallDone(0))
    asked = await answered(made.responses, input="go", tools=[TOOL])
    call = next(item for item in asked.output if isinstance(item, FunctionCall))
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "42"}
    told = await answered(made.responses, input=[output], previous_response_id=asked.id, tools=[TOOL])
    forgotten(made)
    earlier = await made.past.earlier(TENANT, decoded(previous_response_id=told.id).request)
    kinds = [type(item).__name__ for item in earlier]
    assert kinds == ["Message", "Reasoning", "FunctionCall", "FunctionCallOutput", "Message"]
    prompt = engine.seen[-1].prompt
    assert isinstance(prompt, ChatPrompt)
    assert [message["role"] for message in prompt.messages] == ["user", "assistant", "tool"]


async def test_an_output_for_a_call_that_never_was_is_refused(made: Service, engine: FakeEngine) -> None:
    first = await answered(made.responses)
    output = {"type": "function_call_output", "call_id": "call_no", "output": "42"}
    with pytest.raises(InvalidValue, match="call_no") as refused:
        await accepted(made.responses, input=[output], previous_response_id=first.id)
    assert refused.value.param == "input[0].call_id"
    assert len(engine.seen) == 1


async def test_an_output_is_taken_once(made: Service, engine: FakeEngine) -> None:
    engine.says(CallStarted(0, "f"), CallDelta(0, "{}"), CallDone(0))
    asked = await answered(made.responses, tools=[TOOL])
    (call,) = [item for item in asked.output if isinstance(item, FunctionCall)]
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "42"}
    told = await answered(made.responses, input=[output], previous_response_id=asked.id)
    with pytest.raises(InvalidValue, match="has an output already"):
        await accepted(made.responses, input=[output], previous_response_id=told.id)


async def test_a_cut_and_a_failed_response_can_be_continued(made: Service, engine: FakeEngine) -> None:
    cut = await answered(made.responses, input="a long enough question", max_output_tokens=2)
    assert cut.status == "incomplete"
    engine.fails(EngineFailed("It broke."))
    events = await streamed(made.responses, input="two", previous_response_id=cut.id)
    failed = events[-1].response  # type: ignore[attr-defined]  # the terminal event
    assert failed.status == "failed"
    await answered(made.responses, input="three", previous_response_id=failed.id)
    assert seen(engine) == ["a long enough question", text_of(cut), "two", "three"]


@pytest.mark.parametrize("name", ["resp_" + "0" * 32, "resp_1", "msg_" + "0" * 32, "", "x" * 500])
@pytest.mark.shows("B.10")
async def test_an_unknown_previous_response_is_a_400_with_its_code(
    made: Service, engine: FakeEngine, name: str
) -> None:
    with pytest.raises(UnknownPrevious) as refused:
        await accepted(made.responses, previous_response_id=name)
    error = refused.value
    assert (error.status, error.code, error.param) == (400, "previous_response_not_found", "previous_response_id")
    assert not engine.seen


async def test_anothers_response_is_unknown(made: Service) -> None:
    first = await answered(made.responses)
    with pytest.raises(UnknownPrevious):
        await made.responses.create("another", decoded(previous_response_id=first.id))


@pytest.mark.parametrize("store", [True, False])
@pytest.mark.parametrize("restarted", [False, True])
async def test_a_deleted_response_cannot_be_continued_though_it_is_remembered(
    made: Service, watched: Watched, engine: FakeEngine, store: bool, restarted: bool
) -> None:
    first = await answered(made.responses)
    second = await answered(made.responses, previous_response_id=first.id)
    third = await answered(made.responses, previous_response_id=second.id)
    assert await made.store.delete(TENANT, second.id)
    if restarted:
        forgotten(made)
    for stream in (False, True):
        with pytest.raises(UnknownPrevious):
            await accepted(made.responses, previous_response_id=second.id, store=store, stream=stream)
    assert len(engine.seen) == 3
    await answered(made.responses, input="on", previous_response_id=third.id, store=store)
    assert seen(engine) == ["hi", "You said: hi"] * 3 + ["on"]


@pytest.mark.parametrize("store", [True, False])
async def test_an_expired_response_cannot_be_continued(made: Service, watched: Watched, store: bool) -> None:
    first = await answered(made.responses)
    second = await answered(made.responses, previous_response_id=first.id)
    watched.ahead = made.keeper.settings.ttl + 1.0
    with pytest.raises(UnknownPrevious):
        await accepted(made.responses, previous_response_id=second.id, store=store)


async def test_a_response_that_still_runs_cannot_be_continued_yet(made: Service) -> None:
    running = await accepted(made.responses, stream=True)
    (response_id,) = made.running()
    with pytest.raises(InvalidValue, match="still in_progress") as refused:
        await accepted(made.responses, previous_response_id=response_id)
    assert refused.value.param == "previous_response_id"
    leave(running)
    await made.keeper.drain(5.0)
    assert (await answered(made.responses, previous_response_id=response_id)).status == "completed"


async def test_a_response_that_is_not_stored_can_continue_one_that_is(made: Service, engine: FakeEngine) -> None:
    first = await answered(made.responses, input="one")
    second = await answered(made.responses, input="two", previous_response_id=first.id, store=False)
    assert seen(engine) == ["one", "You said: one", "two"]
    assert second.store is False
    with pytest.raises(UnknownPrevious):
        await accepted(made.responses, previous_response_id=second.id)


async def test_a_chain_in_use_is_read_once(made: Service, watched: Watched) -> None:
    last = await answered(made.responses)
    for _ in range(20):
        last = await answered(made.responses, previous_response_id=last.id)
    assert watched.calls.count("chain") == 1
    assert set(watched.calls) == {"chain", "begin", "finish"}


async def test_only_what_is_not_known_is_read(made: Service, watched: Watched, engine: FakeEngine) -> None:
    root = await answered(made.responses, input="root")
    stem = await answered(made.responses, input="stem", previous_response_id=root.id)
    elsewhere = Service(engine, watched.as_store())
    for name in ("a", "b"):
        stem = await answered(elsewhere.responses, input=name, previous_response_id=stem.id)
    watched.answers.clear()
    await answered(made.responses, input="now", previous_response_id=stem.id)
    assert seen(engine)[0::2] == ["root", "stem", "a", "b", "now"]
    (read,) = [links for name, links in watched.answers if name == "chain"]
    assert len(read) == 2


@pytest.mark.shows("B.9")
async def test_a_chain_may_be_as_long_as_it_likes(watched: Watched) -> None:
    engine = FakeEngine(FakeSettings(context=1_000_000))
    made = Service(engine, watched.as_store())
    last = await answered(made.responses, input="0")
    for turn in range(1, 3000):
        name, before = new_id("resp"), last.id
        last = replace(last, id=name, previous_response_id=before)
        asked = decoded(input=str(turn))
        new = NewResponse(
            id=name, status="completed", created=1.0, previous=before, request=stored_request(asked), response=b""
        )
        end = End(
            id=name, fence=0, status="completed", response=encode(last), tape=b"", ended=1.0, expires=None, new=new
        )
        await made.store.finish(TENANT, end)
    await answered(made.responses, input="now", previous_response_id=last.id)
    assert seen(engine)[0::2] == [*map(str, range(3000)), "now"]
    assert len(engine.seen) == 2


async def test_a_cache_that_is_too_small_changes_nothing(engine: FakeEngine, watched: Watched) -> None:
    async with serving(engine, watched.as_store()) as made:
        made.past.__init__(made.store, 3000)  # type: ignore[misc]  # the same object, with less room
        chains: list[list[str]] = [[], [], []]
        last: list[Response | None] = [None, None, None]
        for turn in range(12):
            for number, said in enumerate(chains):
                asked = f"{number}.{turn}"
                previous = last[number]
                last[number] = await answered(
                    made.responses, input=asked, previous_response_id=previous and previous.id
                )
                said.append(asked)
                assert seen(engine)[0::2] == said


@pytest.mark.parametrize("given", [[], None])
async def test_an_input_is_not_needed_where_there_is_something_before_it(
    made: Service, engine: FakeEngine, given: list[Any] | None
) -> None:
    first = await answered(made.responses, input="one")
    await answered(made.responses, input=given, previous_response_id=first.id)
    assert seen(engine) == ["one", "You said: one"]
    talk = await conversation(made, "hello")
    await answered(made.responses, input=given, conversation=talk)
    assert seen(engine) == ["hello"]
    with pytest.raises(MissingParameter) as missing:
        await accepted(made.responses, input=given, conversation=await conversation(made))
    assert missing.value.param == "input"


async def test_what_an_earlier_item_does_wrong_is_told_by_the_field_it_came_by(made: Service) -> None:
    picture = [{"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,AAAA"}]}]
    first = await answered(made.responses, input="hi")
    row = await made.row(first.id)
    assert row.request
    modest = FakeEngine(FakeSettings(level="text"))
    async with serving(modest, made.store) as other:
        talk = await conversation(made)
        items = keep(decoded(input=picture).request.input, new_id)
        await made.store.add_items(TENANT, talk, [ItemRow(str(item.id), encode(item)) for item in items], 10)
        with pytest.raises(BadRequest) as refused:
            await accepted(other.responses, conversation=talk)
    assert refused.value.param == "conversation"


async def test_who_takes_a_run_over_finds_what_it_continues_though_that_was_deleted(made: Service) -> None:
    first = await answered(made.responses, input="one")
    second = await answered(made.responses, input="two", previous_response_id=first.id)
    running = await accepted(made.responses, input="three", previous_response_id=second.id, stream=True)
    (response_id,) = made.running()
    await made.store.delete(TENANT, second.id)
    await made.store.delete(TENANT, first.id)
    forgotten(made)
    request = decoded(previous_response_id=second.id).request
    earlier = await made.past.earlier(TENANT, request, response_id)
    assert words(earlier) == ["one", "You said: one", "two", "You said: two"]
    leave(running)


# ---- conversations


@pytest.mark.shows("B.22")
async def test_a_conversation_is_put_before_and_grows_by_input_and_output(made: Service, engine: FakeEngine) -> None:
    talk = await conversation(made, "hello")
    first = await answered(made.responses, input="one", conversation=talk)
    assert seen(engine) == ["hello", "one"]
    await streamed(made.responses, input="two", conversation={"id": talk})
    assert seen(engine) == ["hello", "one", "You said: one", "two"]
    items = await items_of(made, talk)
    assert words(items) == ["hello", "one", "You said: one", "two", "You said: two"]
    assert first.conversation is not None
    assert first.conversation.id == talk
    assert [home(str(item.id)) for item in items[1:3]] == [first.id, first.id]
    assert items[2] == first.output[0]


@pytest.mark.shows("B.22")
async def test_only_what_was_answered_joins_the_conversation(made: Service, engine: FakeEngine) -> None:
    talk = await conversation(made, "hello")
    engine.fails(EngineFailed("It broke."))
    with pytest.raises(EngineFailed):
        await answered(made.responses, input="failed", conversation=talk)
    leave(await accepted(made.responses, input="left", conversation=talk, stream=True))
    await made.keeper.drain(5.0)
    assert words(await items_of(made, talk)) == ["hello"]
    await answered(made.responses, input="a question that is cut", conversation=talk, max_output_tokens=2)
    assert words(await items_of(made, talk))[:2] == ["hello", "a question that is cut"]
    assert len(await items_of(made, talk)) == 3


async def test_what_is_not_stored_does_not_join_the_conversation(made: Service, engine: FakeEngine) -> None:
    talk = await conversation(made, "hello")
    await answered(made.responses, input="one", conversation=talk, store=False)
    assert seen(engine) == ["hello", "one"]
    assert words(await items_of(made, talk)) == ["hello"]


@pytest.mark.parametrize("name", ["conv_" + "0" * 32, "conv_1"])
async def test_an_unknown_conversation_is_a_404(made: Service, engine: FakeEngine, name: str) -> None:
    with pytest.raises(UnknownConversation) as refused:
        await accepted(made.responses, conversation=name)
    assert (refused.value.status, refused.value.param) == (404, "conversation")
    assert not engine.seen


async def test_a_conversation_that_is_deleted_meanwhile_does_not_trouble_the_response(made: Service) -> None:
    talk = await conversation(made, "hello")
    running = await accepted(made.responses, conversation=talk)
    await made.store.delete_conversation(TENANT, talk)
    assert running.source is not None
    response = msgspec.json.decode(await running.source.result(), type=Response)
    running.source.leave()
    assert response.status == "completed"
    assert (await made.stored(response.id)).status == "completed"


@pytest.mark.shows("B.26")
async def test_parallel_writers_neither_lose_nor_interleave_a_turn(made: Service) -> None:
    talk = await conversation(made)

    async def speak(number: int) -> None:
        for turn in range(2):
            text = f"{number}.{turn}"
            if number % 2:
                await answered(made.responses, input=text, conversation=talk)
            else:
                await streamed(made.responses, input=text, conversation=talk)

    await asyncio.gather(*(speak(number) for number in range(25)))
    said = words(await items_of(made, talk))
    assert [f"You said: {asked}" for asked in said[0::2]] == said[1::2]
    assert sorted(said[0::2]) == sorted(f"{number}.{turn}" for number in range(25) for turn in range(2))
    for number in range(25):
        assert said.index(f"{number}.0") < said.index(f"{number}.1")


# ---- references


def reference(item: Any) -> dict[str, Any]:
    return {"type": "item_reference", "id": str(item if isinstance(item, str) else item.id)}


@pytest.mark.shows("B.11")
async def test_a_reference_is_replaced_by_the_item(made: Service, engine: FakeEngine) -> None:
    first = await answered(made.responses, input="one", reasoning={"effort": "low"})
    thought, said = first.output
    assert isinstance(thought, Reasoning)
    asked = ItemIds(first.id, "input")("msg")
    given = [reference(asked), reference(thought), reference(said), {"role": "user", "content": "two"}]
    second = await answered(made.responses, input=given)
    assert [content for content in seen(engine) if content] == ["one", "You said: one", "two"]
    kept = await made.past.earlier(TENANT, decoded(previous_response_id=second.id).request)
    assert [home(str(item.id)) for item in kept] == [second.id] * 5


@pytest.mark.shows("B.11")
async def test_an_item_of_a_conversation_is_found_too(made: Service, engine: FakeEngine) -> None:
    talk = await conversation(made, "hello")
    (item,) = await items_of(made, talk)
    await answered(made.responses, input=[reference(item), {"role": "user", "content": "two"}])
    assert seen(engine) == ["hello", "two"]


async def test_an_item_outlives_its_response_in_a_conversation(made: Service, engine: FakeEngine) -> None:
    talk = await conversation(made)
    first = await answered(made.responses, input="one", conversation=talk)
    await made.store.delete(TENANT, first.id)
    await answered(made.responses, input=[reference(first.output[0]), {"role": "user", "content": "two"}])
    assert seen(engine) == ["You said: one", "two"]


@pytest.mark.parametrize("name", ["msg_" + "0" * 37, "msg_" + "0" * 32, "msg_mine", "x" * 400])
async def test_a_reference_to_nothing_is_refused_by_its_place(made: Service, engine: FakeEngine, name: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        await accepted(made.responses, input=[{"role": "user", "content": "hi"}, reference(name)])
    assert refused.value.param == "input[1].id"
    assert not engine.seen


async def test_items_of_deleted_responses_and_of_others_are_not_found(made: Service) -> None:
    first = await answered(made.responses)
    with pytest.raises(InvalidValue):
        await made.responses.create("another", decoded(input=[reference(first.output[0])]))
    await made.store.delete(TENANT, first.id)
    with pytest.raises(InvalidValue):
        await accepted(made.responses, input=[reference(first.output[0])])


async def test_an_output_answers_a_call_that_is_referred_to(made: Service, engine: FakeEngine) -> None:
    engine.says(CallStarted(0, "f"), CallDelta(0, "{}"), CallDone(0))
    asked = await answered(made.responses, input="go", tools=[TOOL])
    (call,) = asked.output
    assert isinstance(call, FunctionCall)
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "42"}
    told = await answered(
        made.responses, input=[{"role": "user", "content": "go"}, reference(call), output], tools=[TOOL]
    )
    assert told.status == "completed"
    with pytest.raises(InvalidValue, match="There is no call"):
        await accepted(made.responses, input=[reference(call), {**output, "call_id": "call_other"}])


async def test_a_reference_is_what_is_shown_of_the_input(made: Service) -> None:
    first = await answered(made.responses, input="one")
    second = await answered(made.responses, input=[reference(first.output[0]), {"role": "user", "content": "two"}])
    assert text_of(first) in str((await made.row(second.id)).request)
