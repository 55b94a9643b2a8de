"""`context_management` and `compaction_trigger`: a response compacts its context, and later ones continue from it.

Covers `service/tool_loop/compaction.py`.
"""

import asyncio
from typing import Any

import pytest

from antiphon.core.deltas import CallDelta, CallDone, CallStarted, Text
from antiphon.core.prompt import TokenCounts
from antiphon.engines.base import Capabilities
from antiphon.engines.fake import FakeEngine, FakeSettings
from antiphon.errors import EngineFailed
from tests.api.app import ApiServer, parse_events, run_api
from tests.api.compaction import (
    NonCountingEngine,
    assistant_message,
    compact,
    count_input_tokens,
    get_last_messages,
    user_message,
)
from tests.oracles.responses import (
    accumulate,
    check_conversation_items,
    check_event,
    check_input_items,
    check_response,
)
from tests.support.asgi_client import AsgiResponse

pytestmark = pytest.mark.anyio

COMPACTION = {"context_management": [{"type": "compaction", "compact_threshold": 1000}]}
LONG = [item for turn in range(8) for item in (user_message(f"Question {turn}?"), assistant_message("so it is " * 80))]
QUESTION = user_message("And now?")
SUMMARY = ("assistant", "[Summary of the conversation so far]\nMuch was said.")
USERS = ("user", "\n\n".join([f"Question {turn}?" for turn in range(8)]))
TRIGGER = {"type": "compaction_trigger"}
TOOL = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}


def list_item_types(response: dict[str, Any]) -> list[str]:
    return [item["type"] for item in response["output"]]


async def create_compacted(server: ApiServer, **fields: Any) -> Any:
    """Create a response whose input exceeds the threshold."""
    server.engine.says(Text("Much was said."), counts=TokenCounts(input_tokens=2000, output_tokens=4))
    response = await server.create(**{"input": [*LONG, QUESTION], **COMPACTION, **fields})
    check_response(response)
    return response


async def stream_compacted(server: ApiServer, **fields: Any) -> tuple[AsgiResponse, list[dict[str, Any]]]:
    server.engine.says(Text("Much was said."))
    body = {"model": "fake", "input": [*LONG, QUESTION], "stream": True, **COMPACTION, **fields}
    answer = await server.post("responses", body)
    events = parse_events(answer)
    for event in events:
        check_event(event)
    return answer, events


@pytest.mark.shows("A.41")
@pytest.mark.parametrize("store", [True, False])
async def test_a_context_above_the_threshold_is_compacted_before_the_answer(store: bool) -> None:
    async with run_api() as server:
        response = await create_compacted(server, store=store)
        assert list_item_types(response) == ["compaction", "message"]
        assert response["output"][1]["content"][0]["text"] == "You said: And now?"
        assert get_last_messages(server.engine) == [USERS, SUMMARY, ("user", "And now?")]
        assert response["usage"]["input_tokens_details"]["input_tokens_per_turn"][0] == 2000
        assert response["usage"]["output_tokens_details"]["output_tokens_per_turn"][0] == 4
        assert response["context_management"] == COMPACTION["context_management"]


@pytest.mark.shows("A.41")
@pytest.mark.parametrize("fields", [{}, {"background": True}, {"store": False}])
async def test_a_compacting_stream_is_valid_and_its_replay_is_byte_identical(fields: dict[str, Any]) -> None:
    async with run_api() as server, asyncio.timeout(30):
        answer, events = await stream_compacted(server, **fields)
        types = [event["type"].removeprefix("response.") for event in events if "queued" not in event["type"]]
        assert types[:6] == [
            "created",
            "in_progress",
            "output_item.added",
            "compaction.compacting",
            "output_item.done",
            "output_item.added",
        ]
        added, _, done = [event for event in events if event.get("output_index") == 0][:3]
        assert (added["item"]["encrypted_content"], added["item"]["id"]) == ("", done["item"]["id"])
        final: Any = accumulate(events).to_dict()
        assert list_item_types(final) == ["compaction", "message"]
        if fields.get("store") is not False:
            assert (await server.get(f"responses/{final['id']}?stream=true")).body == answer.body


@pytest.mark.shows("A.41")
async def test_later_requests_continue_from_the_compaction() -> None:
    async with run_api() as server:
        expected = [USERS, SUMMARY, ("user", "And now?"), ("assistant", "You said: And now?"), ("user", "Then?")]
        first = await create_compacted(server)
        await server.create(input="Then?", previous_response_id=first["id"])
        assert get_last_messages(server.engine) == expected
        unstored = await create_compacted(server, store=False)
        for before in ([], LONG, [*LONG, QUESTION]):
            await server.create(input=[*before, *unstored["output"], user_message("Then?")])
            assert get_last_messages(server.engine) == expected
        conversation = await server.post_ok("conversations", {"items": LONG})
        await create_compacted(server, input=[QUESTION], conversation=conversation["id"])
        await server.create(input="Then?", conversation=conversation["id"])
        assert get_last_messages(server.engine) == expected
        check_conversation_items((await server.get(f"conversations/{conversation['id']}/items?limit=100")).json())


async def test_a_second_compaction_retains_every_user_message() -> None:
    async with run_api() as server:
        first = await create_compacted(server)
        server.engine.says(Text("Much more was said."))
        body = {"input": [*LONG, QUESTION], "previous_response_id": first["id"], **COMPACTION}
        second = await server.create(**body)
        assert list_item_types(second) == ["compaction", "message"]
        (_, users), (_, summary), *_ = get_last_messages(server.engine)
        assert users == f"{USERS[1]}\n\nAnd now?\n\n{USERS[1]}"
        assert summary.endswith("Much more was said.")
        assert get_last_messages(server.engine)[2:] == [("user", "And now?")]


async def test_a_context_below_the_threshold_is_not_compacted() -> None:
    async with run_api() as server:
        for threshold in (3000, None):
            management = [{"type": "compaction", "compact_threshold": threshold}]
            response = await server.create(input=[*LONG, QUESTION], context_management=management)
            assert list_item_types(response) == ["message"]
        assert server.engine.requests == 2


async def test_the_lowest_of_several_thresholds_applies() -> None:
    async with run_api() as server:
        management = [{"type": "compaction", "compact_threshold": count} for count in (90_000, 1000)]
        assert list_item_types(await create_compacted(server, context_management=management)) == [
            "compaction",
            "message",
        ]


async def test_the_default_threshold_is_a_share_of_the_context() -> None:
    async with run_api(engine=FakeEngine(FakeSettings(context=2000))) as server:
        size = await count_input_tokens(server, [*LONG, QUESTION])
        assert 1500 < size < 2000
        response = await create_compacted(server, context_management=[{"type": "compaction"}])
        assert list_item_types(response) == ["compaction", "message"]


class EngineWithoutContextLimit(FakeEngine):
    """An engine that counts tokens and does not report a context length."""

    async def capabilities(self, model: str) -> Capabilities:
        return Capabilities(level="chat", supported_fields=frozenset(), can_count_tokens=True)


async def test_a_threshold_is_required_if_the_context_length_is_unknown() -> None:
    async with run_api(engine=EngineWithoutContextLimit()) as server:
        body = {"model": "fake", "input": "hi", "context_management": [{"type": "compaction"}]}
        error = (await server.post("responses", body)).error
        assert (error["code"], error["param"]) == (
            "missing_required_parameter",
            "context_management[0].compact_threshold",
        )


async def test_the_threshold_is_compared_with_an_estimate_if_the_engine_cannot_count() -> None:
    async with run_api(engine=NonCountingEngine()) as server:
        assert list_item_types(await create_compacted(server)) == ["compaction", "message"]
        management = [{"type": "compaction", "compact_threshold": 5000}]
        assert list_item_types(await server.create(input=[*LONG, QUESTION], context_management=management)) == [
            "message"
        ]


@pytest.mark.shows("A.41")
async def test_an_input_longer_than_the_model_context_is_compacted() -> None:
    async with run_api(engine=FakeEngine(FakeSettings(context=1500))) as server:
        management = [{"type": "compaction", "compact_threshold": 100_000}]
        response = await create_compacted(server, context_management=management)
        assert list_item_types(response) == ["compaction", "message"]
        refused = await server.post("responses", {"model": "fake", "input": [*LONG, QUESTION]})
        assert refused.error["code"] == "context_length_exceeded"


@pytest.mark.shows("A.41")
async def test_open_tool_calls_are_not_compacted() -> None:
    async with run_api() as server:
        server.engine.says(CallStarted(0, "look"), CallDelta(0, "{}"), CallDone(0))
        first = await server.create(input=[*LONG, user_message("Look!")], tools=[TOOL])
        output = {"type": "function_call_output", "call_id": first["output"][0]["call_id"], "output": "a tree"}
        fields = {"tools": [TOOL], "previous_response_id": first["id"]}
        second = await create_compacted(server, input=[output], **fields)
        assert list_item_types(second) == ["compaction", "message"]
        roles = [role for role, _ in get_last_messages(server.engine)]
        assert roles == ["user", "assistant", "tool"]
        assert get_last_messages(server.engine)[0][1].endswith("Look!")
        assert get_last_messages(server.engine)[-1] == ("tool", "a tree")
        await server.create(input="Thanks.", tools=[TOOL], previous_response_id=second["id"], tool_choice="none")
        assert [role for role, _ in get_last_messages(server.engine)] == [*roles, "assistant", "user"]


async def test_a_single_long_question_is_not_compacted() -> None:
    async with run_api() as server:
        response = await server.create(input="a long question " * 400, **COMPACTION)
        assert list_item_types(response) == ["message"]
        assert server.engine.requests == 1


async def test_instructions_survive_compaction() -> None:
    async with run_api() as server:
        developer = {"role": "developer", "content": "Be kind."}
        response = await create_compacted(server, instructions="Be brief.", input=[developer, *LONG, QUESTION])
        assert get_last_messages(server.engine)[:2] == [("system", "Be brief."), ("developer", "Be kind.")]
        await server.create(input="Then?", previous_response_id=response["id"])
        assert get_last_messages(server.engine)[0] == ("developer", "Be kind.")


async def test_a_response_continues_after_a_failed_compaction_if_the_input_fits() -> None:
    async with run_api() as server:
        server.engine.fails(EngineFailed("It died."))
        response = await server.create(input=[*LONG, QUESTION], **COMPACTION)
        check_response(response)
        assert (response["status"], list_item_types(response)) == ("completed", ["message"])
    async with run_api(engine=FakeEngine(FakeSettings(context=1500))) as server:
        server.engine.fails(EngineFailed("It died."))
        refused = await server.post("responses", {"model": "fake", "input": [*LONG, QUESTION], **COMPACTION})
        assert (refused.status, refused.error["code"]) == (400, "context_length_exceeded")
        server.engine.fails(EngineFailed("It died."))
        body = {"model": "fake", "input": [*LONG, QUESTION], "stream": True, **COMPACTION}
        events = parse_events(await server.post("responses", body))
        assert [event["type"] for event in events][-2:] == ["error", "response.failed"]
        assert events[-1]["response"]["error"]["code"] == "context_length_exceeded"
        assert server.engine.running == 0


async def test_compaction_works_with_a_single_engine_slot() -> None:
    async with run_api(engine=FakeEngine(FakeSettings(at_once=1))) as server, asyncio.timeout(30):
        assert list_item_types(await create_compacted(server)) == ["compaction", "message"]
        _, events = await stream_compacted(server, background=True)
        assert events[-1]["type"] == "response.completed"


async def test_a_summary_does_not_count_against_max_output_tokens() -> None:
    async with run_api() as server:
        server.engine.says(Text("Much was said."), counts=TokenCounts(input_tokens=2000, output_tokens=400))
        response = await server.create(input=[*LONG, QUESTION], max_output_tokens=100, **COMPACTION)
        assert response["status"] == "completed"
        assert server.engine.seen[-1].sampling.max_tokens == 100


@pytest.mark.shows("A.41")
async def test_a_trigger_returns_the_compaction_without_an_answer() -> None:
    async with run_api() as server:
        first = await server.create(input="I am Ada.")
        server.engine.says(Text("Ada was greeted."))
        response = await server.create(input=[TRIGGER], previous_response_id=first["id"])
        check_response(response)
        assert (response["status"], list_item_types(response)) == ("completed", ["compaction"])
        assert server.engine.requests == 2
        expected = [("user", "I am Ada."), ("assistant", "[Summary of the conversation so far]\nAda was greeted.")]
        await server.create(input="Who am I?", previous_response_id=response["id"])
        assert get_last_messages(server.engine) == [*expected, ("user", "Who am I?")]
        await server.create(input=[user_message("I am Ada."), TRIGGER, *response["output"], user_message("Who am I?")])
        assert get_last_messages(server.engine) == [*expected, ("user", "Who am I?")]
        page = (await server.get(f"responses/{response['id']}/input_items")).json()
        check_input_items(page)
        assert page["data"] == []


@pytest.mark.parametrize("fields", [{}, {"background": True}, {"store": False}])
async def test_a_trigger_can_be_streamed(fields: dict[str, Any]) -> None:
    async with run_api() as server, asyncio.timeout(30):
        answer, events = await stream_compacted(server, input=[*LONG, TRIGGER], context_management=None, **fields)
        final: Any = accumulate(events).to_dict()
        assert list_item_types(final) == ["compaction"]
        assert [event["type"] for event in events if "delta" in event["type"]] == []
        if fields.get("store") is not False:
            assert (await server.get(f"responses/{final['id']}?stream=true")).body == answer.body


async def test_a_trigger_stores_its_compaction_in_the_conversation() -> None:
    async with run_api() as server:
        conversation = await server.post_ok(
            "conversations", {"items": [user_message("I am Ada."), assistant_message("Hello!")]}
        )
        await server.create(input=[TRIGGER], conversation=conversation["id"])
        page = (await server.get(f"conversations/{conversation['id']}/items?order=asc")).json()
        check_conversation_items(page)
        assert [item["type"] for item in page["data"]] == ["message", "message", "compaction"]
        answer = await server.post(f"conversations/{conversation['id']}/items", {"items": [TRIGGER]})
        assert (answer.status, answer.error["param"]) == (400, "items[0]")


async def test_a_trigger_must_be_the_last_item_and_not_the_only_one() -> None:
    async with run_api() as server:
        for items, param in (
            ([TRIGGER, user_message("hi")], "input[0]"),
            ([user_message("hi"), TRIGGER, TRIGGER], "input[1]"),
            ([TRIGGER], "input"),
        ):
            answer = await server.post("responses", {"model": "fake", "input": items})
            assert (answer.status, answer.error["param"]) == (400, param)
        assert server.engine.requests == 0


async def test_a_trigger_fails_if_its_summary_fails() -> None:
    async with run_api() as server:
        server.engine.fails(EngineFailed("It died."))
        refused = await server.post("responses", {"model": "fake", "input": [user_message("hi"), TRIGGER]})
        assert (refused.status, refused.error["message"]) == (500, "It died.")
        server.engine.fails(EngineFailed("It died."))
        body = {"model": "fake", "input": [user_message("hi"), TRIGGER], "stream": True}
        events = parse_events(await server.post("responses", body))
        assert [event["type"].removeprefix("response.") for event in events] == [
            "created",
            "in_progress",
            "error",
            "failed",
        ]


async def test_a_response_that_contains_a_compaction_can_be_compacted() -> None:
    async with run_api() as server:
        response = await create_compacted(server)
        compacted = await compact(server, previous_response_id=response["id"])
        texts = [item["content"][0]["text"] for item in compacted["output"][:-1]]
        assert texts == [*[f"Question {turn}?" for turn in range(8)], "And now?"]


async def test_input_tokens_are_counted_before_compaction() -> None:
    async with run_api() as server:
        items = [*LONG, QUESTION]
        assert await count_input_tokens(server, items, **COMPACTION) == await count_input_tokens(server, items)
