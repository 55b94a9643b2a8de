"""`context_management` and compaction_trigger: a long context is compacted within a response, and later ones go on."""

import asyncio
from typing import Any

import pytest

from antiphon.core.deltas import CallDelta, CallDone, CallStarted, Text
from antiphon.core.prompt import Counts
from antiphon.engines.base import Capabilities
from antiphon.engines.fake import FakeEngine, FakeSettings
from antiphon.errors import EngineFailed
from tests.api.app import Api, api, events_in
from tests.api.compaction import Untold, assistant, compact, heard, tokens, user
from tests.oracles.responses import (
    accumulate,
    check_conversation_items,
    check_event,
    check_input_items,
    check_response,
)
from tests.support.asgi_client import Answer

pytestmark = pytest.mark.anyio

COMPACTS = {"context_management": [{"type": "compaction", "compact_threshold": 1000}]}
LONG = [item for turn in range(8) for item in (user(f"Question {turn}?"), assistant("so it is " * 80))]
QUESTION = user("And now?")
SUMMARY = ("assistant", "[Summary of the conversation so far]\nMuch was said.")
USERS = ("user", "\n\n".join([f"Question {turn}?" for turn in range(8)]))
TRIGGER = {"type": "compaction_trigger"}
TOOL = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}


def kinds(response: dict[str, Any]) -> list[str]:
    return [item["type"] for item in response["output"]]


async def compacting(server: Api, **fields: Any) -> Any:
    server.engine.says(Text("Much was said."), counts=Counts(input_tokens=2000, output_tokens=4))
    response = await server.create(**{"input": [*LONG, QUESTION], **COMPACTS, **fields})
    check_response(response)
    return response


async def streamed(server: Api, **fields: Any) -> tuple[Answer, list[dict[str, Any]]]:
    server.engine.says(Text("Much was said."))
    body = {"model": "fake", "input": [*LONG, QUESTION], "stream": True, **COMPACTS, **fields}
    answer = await server.post("responses", body)
    events = events_in(answer)
    for event in events:
        check_event(event)
    return answer, events


@pytest.mark.shows("A.41")
@pytest.mark.parametrize("store", [True, False])
async def test_a_context_beyond_the_threshold_is_compacted_before_the_question_is_answered(store: bool) -> None:
    async with api() as server:
        response = await compacting(server, store=store)
        assert kinds(response) == ["compaction", "message"]
        assert response["output"][1]["content"][0]["text"] == "You said: And now?"
        assert heard(server.engine) == [USERS, SUMMARY, ("user", "And now?")]
        assert response["usage"]["input_tokens_details"]["input_tokens_per_turn"][0] == 2000
        assert response["usage"]["output_tokens_details"]["output_tokens_per_turn"][0] == 4
        assert response["context_management"] == COMPACTS["context_management"]


@pytest.mark.shows("A.41")
@pytest.mark.parametrize("fields", [{}, {"background": True}, {"store": False}])
async def test_the_stream_is_strict_and_is_told_again_to_the_byte(fields: dict[str, Any]) -> None:
    async with api() as server, asyncio.timeout(30):
        answer, events = await streamed(server, **fields)
        told = [event["type"].removeprefix("response.") for event in events if "queued" not in event["type"]]
        assert told[:6] == [
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
        assert kinds(final) == ["compaction", "message"]
        if fields.get("store") is not False:
            assert (await server.get(f"responses/{final['id']}?stream=true")).body == answer.body


@pytest.mark.shows("A.41")
async def test_later_requests_go_on_from_the_compaction() -> None:
    async with api() as server:
        told = [USERS, SUMMARY, ("user", "And now?"), ("assistant", "You said: And now?"), ("user", "Then?")]
        first = await compacting(server)
        await server.create(input="Then?", previous_response_id=first["id"])
        assert heard(server.engine) == told
        unkept = await compacting(server, store=False)
        for before in ([], LONG, [*LONG, QUESTION]):
            await server.create(input=[*before, *unkept["output"], user("Then?")])
            assert heard(server.engine) == told
        conversation = await server.made("conversations", {"items": LONG})
        await compacting(server, input=[QUESTION], conversation=conversation["id"])
        await server.create(input="Then?", conversation=conversation["id"])
        assert heard(server.engine) == told
        check_conversation_items((await server.get(f"conversations/{conversation['id']}/items?limit=100")).json())


async def test_what_is_compacted_again_keeps_every_message() -> None:
    async with api() as server:
        first = await compacting(server)
        server.engine.says(Text("Much more was said."))
        body = {"input": [*LONG, QUESTION], "previous_response_id": first["id"], **COMPACTS}
        second = await server.create(**body)
        assert kinds(second) == ["compaction", "message"]
        (_, users), (_, summary), *_ = heard(server.engine)
        assert users == f"{USERS[1]}\n\nAnd now?\n\n{USERS[1]}"
        assert summary.endswith("Much more was said.")
        assert heard(server.engine)[2:] == [("user", "And now?")]


async def test_a_context_below_the_threshold_is_left_alone() -> None:
    async with api() as server:
        for threshold in (3000, None):
            management = [{"type": "compaction", "compact_threshold": threshold}]
            response = await server.create(input=[*LONG, QUESTION], context_management=management)
            assert kinds(response) == ["message"]
        assert server.engine.requests == 2


async def test_of_several_thresholds_the_lowest_counts() -> None:
    async with api() as server:
        management = [{"type": "compaction", "compact_threshold": count} for count in (90_000, 1000)]
        assert kinds(await compacting(server, context_management=management)) == ["compaction", "message"]


async def test_without_a_threshold_it_is_a_share_of_the_context() -> None:
    async with api(engine=FakeEngine(FakeSettings(context=2000))) as server:
        size = await tokens(server, [*LONG, QUESTION])
        assert 1500 < size < 2000
        response = await compacting(server, context_management=[{"type": "compaction"}])
        assert kinds(response) == ["compaction", "message"]


class Boundless(FakeEngine):
    async def capabilities(self, model: str) -> Capabilities:
        return Capabilities(prompt="chat", honours=frozenset(), counts=True)


async def test_without_a_threshold_the_context_has_to_be_known() -> None:
    async with api(engine=Boundless()) as server:
        body = {"model": "fake", "input": "hi", "context_management": [{"type": "compaction"}]}
        error = (await server.post("responses", body)).error
        assert (error["code"], error["param"]) == (
            "missing_required_parameter",
            "context_management[0].compact_threshold",
        )


async def test_where_nobody_counts_the_threshold_is_held_against_the_estimate() -> None:
    async with api(engine=Untold()) as server:
        assert kinds(await compacting(server)) == ["compaction", "message"]
        management = [{"type": "compaction", "compact_threshold": 5000}]
        assert kinds(await server.create(input=[*LONG, QUESTION], context_management=management)) == ["message"]


@pytest.mark.shows("A.41")
async def test_a_context_longer_than_the_model_s_is_rescued() -> None:
    async with api(engine=FakeEngine(FakeSettings(context=1500))) as server:
        management = [{"type": "compaction", "compact_threshold": 100_000}]
        response = await compacting(server, context_management=management)
        assert kinds(response) == ["compaction", "message"]
        refused = await server.post("responses", {"model": "fake", "input": [*LONG, QUESTION]})
        assert refused.error["code"] == "context_length_exceeded"


@pytest.mark.shows("A.41")
async def test_calls_that_the_model_waits_for_are_told_as_they_are() -> None:
    async with api() as server:
        server.engine.says(CallStarted(0, "look"), CallDelta(0, "{}"), CallDone(0))
        first = await server.create(input=[*LONG, user("Look!")], tools=[TOOL])
        output = {"type": "function_call_output", "call_id": first["output"][0]["call_id"], "output": "a tree"}
        fields = {"tools": [TOOL], "previous_response_id": first["id"]}
        second = await compacting(server, input=[output], **fields)
        assert kinds(second) == ["compaction", "message"]
        roles = [role for role, _ in heard(server.engine)]
        assert roles == ["user", "assistant", "tool"]
        assert heard(server.engine)[0][1].endswith("Look!")
        assert heard(server.engine)[-1] == ("tool", "a tree")
        await server.create(input="Thanks.", tools=[TOOL], previous_response_id=second["id"], tool_choice="none")
        assert [role for role, _ in heard(server.engine)] == [*roles, "assistant", "user"]


async def test_a_single_long_question_is_not_compacted() -> None:
    async with api() as server:
        response = await server.create(input="a long question " * 400, **COMPACTS)
        assert kinds(response) == ["message"]
        assert server.engine.requests == 1


async def test_instructions_are_told_as_before() -> None:
    async with api() as server:
        developer = {"role": "developer", "content": "Be kind."}
        response = await compacting(server, instructions="Be brief.", input=[developer, *LONG, QUESTION])
        assert heard(server.engine)[:2] == [("system", "Be brief."), ("developer", "Be kind.")]
        await server.create(input="Then?", previous_response_id=response["id"])
        assert heard(server.engine)[0] == ("developer", "Be kind.")


async def test_a_response_goes_on_without_a_compaction_that_failed_if_it_fits() -> None:
    async with api() as server:
        server.engine.fails(EngineFailed("It died."))
        response = await server.create(input=[*LONG, QUESTION], **COMPACTS)
        check_response(response)
        assert (response["status"], kinds(response)) == ("completed", ["message"])
    async with api(engine=FakeEngine(FakeSettings(context=1500))) as server:
        server.engine.fails(EngineFailed("It died."))
        refused = await server.post("responses", {"model": "fake", "input": [*LONG, QUESTION], **COMPACTS})
        assert (refused.status, refused.error["code"]) == (400, "context_length_exceeded")
        server.engine.fails(EngineFailed("It died."))
        body = {"model": "fake", "input": [*LONG, QUESTION], "stream": True, **COMPACTS}
        events = events_in(await server.post("responses", body))
        assert [event["type"] for event in events][-2:] == ["error", "response.failed"]
        assert events[-1]["response"]["error"]["code"] == "context_length_exceeded"
        assert server.engine.running == 0


async def test_one_place_at_the_model_is_enough() -> None:
    async with api(engine=FakeEngine(FakeSettings(at_once=1))) as server, asyncio.timeout(30):
        assert kinds(await compacting(server)) == ["compaction", "message"]
        _, events = await streamed(server, background=True)
        assert events[-1]["type"] == "response.completed"


async def test_a_summary_takes_nothing_of_max_output_tokens() -> None:
    async with api() as server:
        server.engine.says(Text("Much was said."), counts=Counts(input_tokens=2000, output_tokens=400))
        response = await server.create(input=[*LONG, QUESTION], max_output_tokens=100, **COMPACTS)
        assert response["status"] == "completed"
        assert server.engine.seen[-1].sampling.max_tokens == 100


@pytest.mark.shows("A.41")
async def test_a_trigger_gives_the_compaction_and_no_answer() -> None:
    async with api() as server:
        first = await server.create(input="I am Ada.")
        server.engine.says(Text("Ada was greeted."))
        response = await server.create(input=[TRIGGER], previous_response_id=first["id"])
        check_response(response)
        assert (response["status"], kinds(response)) == ("completed", ["compaction"])
        assert server.engine.requests == 2
        told = [("user", "I am Ada."), ("assistant", "[Summary of the conversation so far]\nAda was greeted.")]
        await server.create(input="Who am I?", previous_response_id=response["id"])
        assert heard(server.engine) == [*told, ("user", "Who am I?")]
        await server.create(input=[user("I am Ada."), TRIGGER, *response["output"], user("Who am I?")])
        assert heard(server.engine) == [*told, ("user", "Who am I?")]
        page = (await server.get(f"responses/{response['id']}/input_items")).json()
        check_input_items(page)
        assert page["data"] == []


@pytest.mark.parametrize("fields", [{}, {"background": True}, {"store": False}])
async def test_a_trigger_is_streamed_as_anything_else(fields: dict[str, Any]) -> None:
    async with api() as server, asyncio.timeout(30):
        answer, events = await streamed(server, input=[*LONG, TRIGGER], context_management=None, **fields)
        final: Any = accumulate(events).to_dict()
        assert kinds(final) == ["compaction"]
        assert [event["type"] for event in events if "delta" in event["type"]] == []
        if fields.get("store") is not False:
            assert (await server.get(f"responses/{final['id']}?stream=true")).body == answer.body


async def test_a_trigger_in_a_conversation_leaves_its_compaction_there() -> None:
    async with api() as server:
        conversation = await server.made("conversations", {"items": [user("I am Ada."), assistant("Hello!")]})
        await server.create(input=[TRIGGER], conversation=conversation["id"])
        page = (await server.get(f"conversations/{conversation['id']}/items?order=asc")).json()
        check_conversation_items(page)
        assert [item["type"] for item in page["data"]] == ["message", "message", "compaction"]
        answer = await server.post(f"conversations/{conversation['id']}/items", {"items": [TRIGGER]})
        assert (answer.status, answer.error["param"]) == (400, "items[0]")


async def test_a_trigger_must_be_last_and_have_something_before_it() -> None:
    async with api() as server:
        for items, param in (
            ([TRIGGER, user("hi")], "input[0]"),
            ([user("hi"), TRIGGER, TRIGGER], "input[1]"),
            ([TRIGGER], "input"),
        ):
            answer = await server.post("responses", {"model": "fake", "input": items})
            assert (answer.status, answer.error["param"]) == (400, param)
        assert server.engine.requests == 0


async def test_a_trigger_whose_summary_fails_fails() -> None:
    async with api() as server:
        server.engine.fails(EngineFailed("It died."))
        refused = await server.post("responses", {"model": "fake", "input": [user("hi"), TRIGGER]})
        assert (refused.status, refused.error["message"]) == (500, "It died.")
        server.engine.fails(EngineFailed("It died."))
        body = {"model": "fake", "input": [user("hi"), TRIGGER], "stream": True}
        events = events_in(await server.post("responses", body))
        assert [event["type"].removeprefix("response.") for event in events] == [
            "created",
            "in_progress",
            "error",
            "failed",
        ]


async def test_a_compaction_of_a_response_can_be_compacted_by_itself() -> None:
    async with api() as server:
        response = await compacting(server)
        compacted = await compact(server, previous_response_id=response["id"])
        said = [item["content"][0]["text"] for item in compacted["output"][:-1]]
        assert said == [*[f"Question {turn}?" for turn in range(8)], "And now?"]


async def test_counting_is_of_the_prompt_that_is_not_compacted_yet() -> None:
    async with api() as server:
        items = [*LONG, QUESTION]
        assert await tokens(server, items, **COMPACTS) == await tokens(server, items)
