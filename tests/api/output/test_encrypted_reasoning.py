"""`reasoning.encrypted_content` over HTTP: reasoning that a client sends back reaches the model as plain text."""

import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from antiphon.core.deltas import CallDelta, CallDone, CallStarted, ReasoningDelta, Text
from antiphon.core.encrypted_reasoning import VERSION_PREFIX
from antiphon.core.prompt import ChatPrompt
from antiphon.engines.fake import FakeEngine
from antiphon.service.keyring import Keyring
from antiphon.stores.sqlite import SqliteStore
from tests.api.app import ApiServer, parse_events, run_api
from tests.oracles.responses import (
    accumulate,
    check_conversation_item,
    check_conversation_items,
    check_event,
    check_input_items,
    check_response,
)

pytestmark = pytest.mark.anyio

ENCRYPTED = "reasoning.encrypted_content"
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}
KEY = bytes(range(32))
KEYRING = Keyring([KEY])
SETTINGS: dict[str, Any] = {"reasoning_key": (b64encode(KEY).decode(),)}
USER = {"role": "user", "content": "hi"}


def decrypt_reasoning(encrypted: str) -> str:
    assert encrypted.startswith(VERSION_PREFIX)
    return KEYRING.decrypt("default", encrypted)


def select_reasoning(output: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [item for item in output if item["type"] == "reasoning"]


def get_last_reasoning(engine: FakeEngine) -> list[Any]:
    """Return the reasoning texts of the last prompt."""
    prompt = engine.seen[-1].prompt
    assert isinstance(prompt, ChatPrompt)
    return [message["reasoning_content"] for message in prompt.messages if "reasoning_content" in message]


def queue_call(engine: FakeEngine, *reasoning: str) -> None:
    engine.says(*[ReasoningDelta(text) for text in reasoning], CallStarted(0, "f"), CallDelta(0, "{}"), CallDone(0))


async def create_call(server: ApiServer, *reasoning: str, **fields: Any) -> dict[str, Any]:
    queue_call(server.engine, *reasoning)
    response: dict[str, Any] = await server.create(tools=[TOOL], include=[ENCRYPTED], **fields)
    check_response(response)
    return response


def build_next_input(output: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Build the input of the next turn, as a client does that does not use the server's store."""
    (call,) = [item for item in output if item["type"] == "function_call"]
    return [USER, *output, {"type": "function_call_output", "call_id": call["call_id"], "output": "done"}]


@pytest.mark.shows("A.39", "A4.5")
async def test_included_reasoning_is_encrypted_in_the_body_and_in_the_stream() -> None:
    async with run_api(**SETTINGS) as server:
        body = {"model": "fake", "input": "hi", "include": [ENCRYPTED], "store": False}
        server.engine.says(ReasoningDelta("h"), ReasoningDelta("m"), Text("Hello"))
        response = await server.post_ok("responses", body)
        server.engine.says(ReasoningDelta("h"), ReasoningDelta("m"), Text("Hello"))
        events = parse_events(await server.post("responses", {**body, "stream": True}))
    check_response(response)
    for event in events:
        check_event(event)
    folded: Any = accumulate(events).to_dict()
    for output in (response["output"], folded["output"], events[-1]["response"]["output"]):
        assert [item["type"] for item in output] == ["reasoning", "message"]
        assert decrypt_reasoning(output[0]["encrypted_content"]) == "hm"
        assert output[0]["content"] == [{"type": "reasoning_text", "text": "hm"}]
    done = next(event for event in events if event["type"] == "response.output_item.done")
    assert decrypt_reasoning(done["item"]["encrypted_content"]) == "hm"
    assert sum("encrypted_content" in json.dumps(event) for event in events) == 2, "in output_item.done and at the end"


@pytest.mark.shows("A4.5")
async def test_reasoning_is_not_encrypted_unless_included() -> None:
    async with run_api(**SETTINGS) as server:
        server.engine.says(ReasoningDelta("hm"), Text("Hello"))
        answer = await server.post("responses", {"model": "fake", "input": "hi"})
        assert b"encrypted_content" not in answer.body
        server.engine.says(Text("Hello"))
        answer = await server.post("responses", {"model": "fake", "input": "hi", "include": [ENCRYPTED]})
        assert b"encrypted_content" not in answer.body
        assert answer.header(b"x-antiphon-ignored") is None


@pytest.mark.shows("A.37", "A4.5")
@pytest.mark.parametrize("options", [{"summary": "auto"}, {"summary": "concise"}, {"generate_summary": "detailed"}])
async def test_a_summary_and_encrypted_reasoning_can_be_combined(options: dict[str, str]) -> None:
    async with run_api(**SETTINGS) as server:
        server.engine.says(ReasoningDelta("h"), ReasoningDelta("m"), Text("Hello"))
        body = {"model": "fake", "input": "hi", "include": [ENCRYPTED], "stream": True, "reasoning": options}
        events = parse_events(await server.post("responses", body))
    for event in events:
        check_event(event)
    assert [event["type"].removeprefix("response.") for event in events[2:9]] == [
        "output_item.added",
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "output_item.done",
    ]
    folded: Any = accumulate(events).to_dict()
    item = folded["output"][0]
    assert (item["summary"], item.get("content")) == ([{"type": "summary_text", "text": "hm"}], None)
    assert decrypt_reasoning(item["encrypted_content"]) == "hm"


@pytest.mark.shows("A.39")
async def test_a_stateless_client_returns_encrypted_reasoning_to_the_model() -> None:
    async with run_api(**SETTINGS) as server:
        first = await create_call(server, "I must ", "call f.", store=False)
        (reasoning,) = select_reasoning(first["output"])
        # The forms that the AI SDK, pydantic-ai and Codex send: without its text, without an id, or complete.
        for sent in (
            {
                "type": "reasoning",
                "id": reasoning["id"],
                "summary": [],
                "encrypted_content": reasoning["encrypted_content"],
            },
            {"type": "reasoning", "summary": [], "encrypted_content": reasoning["encrypted_content"]},
            {**reasoning, "content": [{"type": "reasoning_text", "text": "forged"}]},
            {**reasoning, "content": None, "summary": [{"type": "summary_text", "text": "forged"}]},
            reasoning,
        ):
            items = [sent if item["type"] == "reasoning" else item for item in first["output"]]
            server.engine.says(Text("Done."))
            second = await server.create(input=build_next_input(items), tools=[TOOL], include=[ENCRYPTED], store=False)
            assert second["status"] == "completed"
            assert get_last_reasoning(server.engine) == ["I must call f."], sent


async def test_encrypted_reasoning_has_as_many_tokens_as_its_text() -> None:
    async with run_api(**SETTINGS) as server:
        first = await create_call(server, "I must call f.", store=False)
        plain = [
            {name: value for name, value in item.items() if name != "encrypted_content"} for item in first["output"]
        ]
        encrypted = [{**item, "content": None} if item["type"] == "reasoning" else item for item in first["output"]]
        counted = [
            (
                await server.post_ok(
                    "responses/input_tokens", {"model": "fake", "input": build_next_input(items), "tools": [TOOL]}
                )
            )
            for items in (plain, encrypted)
        ]
        assert counted[0] == counted[1]


@pytest.mark.shows("A.40")
async def test_encrypted_reasoning_that_was_altered_or_has_a_wrong_key_or_tenant_is_rejected() -> None:
    good = KEYRING.encrypt("default", "hm")
    middle = len(good) // 2
    bad = {
        "changed": good[:middle] + ("A" if good[middle] != "A" else "B") + good[middle + 1 :],
        "cut": good[:-1],
        "another tenant's": KEYRING.encrypt("other", "hm"),
        "another key's": Keyring([bytes(32)]).encrypt("default", "hm"),
        "a future version": good.replace("sealed-1", "sealed-2"),
        "only the prefix": VERSION_PREFIX,
    }
    async with run_api(**SETTINGS) as server:
        for name, encrypted in bad.items():
            items = [USER, {"type": "reasoning", "summary": [], "encrypted_content": encrypted}]
            for path, body in (
                ("responses", {"input": items}),
                ("responses", {"input": items, "store": False, "stream": True}),
                ("responses", {"input": items, "background": True}),
                ("responses/input_tokens", {"input": items}),
            ):
                answer = await server.post(path, {"model": "fake", **body})
                assert answer.status == 400, (name, path)
                assert answer.error["code"] == "invalid_encrypted_content"
                assert answer.error["param"] == "input[1].encrypted_content"
            answer = await server.post("conversations", {"items": items})
            assert answer.error["param"] == "items[1].encrypted_content"
        assert server.engine.requests == 0


@pytest.mark.shows("A.40")
async def test_encrypted_reasoning_of_another_provider_is_ignored_and_reported() -> None:
    async with run_api(**SETTINGS) as server:
        foreign = {"type": "reasoning", "id": "rs_1", "encrypted_content": "gAAAAABo0x"}
        summed = {**foreign, "summary": [{"type": "summary_text", "text": "in short"}]}
        call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
        output = {"type": "function_call_output", "call_id": "c", "output": "done"}
        body = {"model": "fake", "tools": [TOOL], "input": [USER, {**foreign, "summary": []}, summed, call, output]}
        answer = await server.post("responses", body)
        assert answer.status == 200, answer.body
        assert answer.header(b"x-antiphon-ignored") == b"input[*].encrypted_content"
        assert get_last_reasoning(server.engine) == ["in short"]


@pytest.mark.parametrize("empty", [None, ""])
async def test_empty_encrypted_content_is_accepted(empty: str | None) -> None:
    async with run_api(**SETTINGS) as server:
        item: dict[str, Any] = {"type": "reasoning", "summary": [], "encrypted_content": empty}
        answer = await server.post("responses", {"model": "fake", "input": [USER, item, USER]})
        assert answer.status == 200
        assert answer.header(b"x-antiphon-ignored") is None


@pytest.mark.shows("A4.5")
async def test_a_stored_response_shows_encrypted_reasoning_only_if_included() -> None:
    async with run_api(**SETTINGS) as server:
        first = await create_call(server, "hm")
        path = f"responses/{first['id']}"
        plain, full = (await server.get(path)).json(), (await server.get(f"{path}?include[]={ENCRYPTED}")).json()
        check_response(plain)
        assert full == first
        assert "encrypted_content" not in select_reasoning(plain["output"])[0]
        del first["output"][0]["encrypted_content"]
        assert plain == first


async def test_stored_reasoning_can_be_encrypted_when_it_is_read() -> None:
    async with run_api(**SETTINGS) as server:
        server.engine.says(ReasoningDelta("hm"), Text("Hello"))
        made = await server.create(reasoning={"summary": "auto"})
        found = (await server.get(f"responses/{made['id']}?include={ENCRYPTED}")).json()
        check_response(found)
        assert decrypt_reasoning(found["output"][0].pop("encrypted_content")) == "hm"
        assert found == made


async def test_input_items_show_encrypted_reasoning_only_if_included() -> None:
    async with run_api(**SETTINGS) as server:
        encrypted = KEYRING.encrypt("default", "hm")
        items = [USER, {"type": "reasoning", "summary": [], "encrypted_content": encrypted}, USER]
        made = await server.create(input=items)
        for query, expected in (("", None), (f"?include[]={ENCRYPTED}", encrypted)):
            page = (await server.get(f"responses/{made['id']}/input_items{query}")).json()
            check_input_items(page)
            assert page["data"][1].get("encrypted_content") == expected


@pytest.mark.shows("A.39")
async def test_a_conversation_accepts_encrypted_reasoning_and_passes_it_to_the_model() -> None:
    async with run_api(**SETTINGS) as server:
        encrypted = KEYRING.encrypt("default", "I must call f.")
        reasoning = {"type": "reasoning", "summary": [], "encrypted_content": encrypted}
        call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
        conversation = await server.post_ok("conversations", {"items": [USER, reasoning, call]})
        path = f"conversations/{conversation['id']}/items"
        for query, expected in (("", None), (f"?include[]={ENCRYPTED}", encrypted)):
            page = (await server.get(f"{path}{query}")).json()
            check_conversation_items(page)
            assert page["data"][1].get("encrypted_content") == expected
            item = (await server.get(f"{path}/{page['data'][1]['id']}{query}")).json()
            check_conversation_item(item)
            assert item.get("encrypted_content") == expected
            added = await server.post_ok(f"{path}{query}", {"items": [reasoning]})
            assert added["data"][0].get("encrypted_content") == expected
            await server.delete(f"{path}/{added['data'][0]['id']}")
        output = {"type": "function_call_output", "call_id": "c", "output": "done"}
        await server.create(input=[output], conversation=conversation["id"], tools=[TOOL])
        assert get_last_reasoning(server.engine) == ["I must call f."]


async def test_stored_encrypted_reasoning_reaches_later_turns_after_its_key_is_gone() -> None:
    store = SqliteStore(":memory:", 3600.0)
    async with run_api(store, **SETTINGS) as server:
        encrypted = KEYRING.encrypt("default", "I must call f.")
        reasoning = {"type": "reasoning", "summary": [], "encrypted_content": encrypted}
        call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
        first = await server.create(input=[USER, reasoning, call])
        for key in [*server.app.lifecycle.components.keyring._keys]:  # type: ignore[attr-defined]  # set by `build_app`
            del server.app.lifecycle.components.keyring._keys[key]  # type: ignore[attr-defined]
        output = {"type": "function_call_output", "call_id": "c", "output": "done"}
        await server.create(input=[output], previous_response_id=first["id"], tools=[TOOL])
        assert "I must call f." in str(get_last_reasoning(server.engine))


@pytest.mark.parametrize("fields", [{}, {"background": True}])
async def test_a_replayed_stream_is_byte_identical(fields: dict[str, Any]) -> None:
    async with run_api(**SETTINGS) as server:
        queue_call(server.engine, "h", "m")
        body = {"model": "fake", "input": "hi", "tools": [TOOL], "include": [ENCRYPTED], "stream": True, **fields}
        original = await server.post("responses", body)
        response = parse_events(original)[-1]["response"]
        again = await server.get(f"responses/{response['id']}?stream=true")
        assert again.body == original.body
        assert decrypt_reasoning(response["output"][0]["encrypted_content"]) == "hm"


async def test_each_reasoning_item_is_encrypted_separately() -> None:
    async with run_api(**SETTINGS) as server:
        server.engine.says(
            ReasoningDelta("one"),
            CallStarted(0, "unknown"),
            CallDone(0),
            ReasoningDelta(" more"),
            Text("a"),
            ReasoningDelta("two"),
            CallStarted(1, "f"),
            CallDelta(1, "{}"),
            CallDone(1),
            ReasoningDelta("three"),
        )
        response = await server.create(tools=[TOOL], include=[ENCRYPTED])
        check_response(response)
        decrypted = [decrypt_reasoning(item["encrypted_content"]) for item in select_reasoning(response["output"])]
        assert decrypted == ["one more", "two", "three"]


async def test_truncated_reasoning_is_encrypted_as_far_as_it_was_generated() -> None:
    async with run_api(**SETTINGS) as server:
        effort = {"effort": "high"}
        response = await server.create(include=[ENCRYPTED], store=False, reasoning=effort, max_output_tokens=2)
        check_response(response)
        (item,) = response["output"]
        assert (response["status"], item["status"]) == ("incomplete", "incomplete")
        assert decrypt_reasoning(item["encrypted_content"]) == item["content"][0]["text"] != ""


@pytest.mark.shows("A.39")
async def test_a_new_key_replaces_an_old_one(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"{b64encode(bytes(32)).decode()}\n{b64encode(KEY).decode()}\n")
    async with run_api(**SETTINGS) as before:
        old = (await create_call(before, "then", store=False))["output"]
    async with run_api(reasoning_key=(f"@{file}",), disable_store=True) as server:
        await server.create(input=build_next_input(old), tools=[TOOL])
        assert get_last_reasoning(server.engine) == ["then"]
        new = (await create_call(server, "now"))["output"]
    async with run_api(reasoning_key=(b64encode(bytes(32)).decode(),)) as after:
        await after.create(input=build_next_input(new), tools=[TOOL])
        assert get_last_reasoning(after.engine) == ["now"]
        answer = await after.post("responses", {"model": "fake", "input": build_next_input(old), "tools": [TOOL]})
        assert answer.status == 400
        assert "a key that this server does not have" in answer.error["message"]


@pytest.mark.shows("A6.1", "A6.2")
async def test_a_generated_key_is_shared_through_the_store() -> None:
    store = SqliteStore(":memory:", 3600.0)
    async with run_api(store) as server:
        (encrypted,) = [
            item["encrypted_content"] for item in select_reasoning((await create_call(server, "hm"))["output"])
        ]
        key = await store.shared("reasoning_key", b"never")
    assert len(key) == 32
    assert Keyring([key]).decrypt("default", encrypted) == "hm"


async def test_anthropic_clients_return_reasoning_that_was_omitted_from_display() -> None:
    async with run_api(**SETTINGS) as server:
        queue_call(server.engine, "I must ", "call f.")
        body: dict[str, Any] = {
            "model": "fake",
            "max_tokens": 64,
            "thinking": {"type": "enabled", "budget_tokens": 2000, "display": "omitted"},
            "tools": [{"name": "f", "input_schema": {"type": "object"}}],
        }
        first = await server.post_ok("messages", {**body, "messages": [USER]})
        thinking, use = first["content"]
        assert thinking["thinking"] == ""
        assert decrypt_reasoning(thinking["signature"]) == "I must call f."
        result = {"type": "tool_result", "tool_use_id": use["id"], "content": "done"}
        messages = [USER, {"role": "assistant", "content": first["content"]}, {"role": "user", "content": [result]}]
        await server.post_ok("messages", {**body, "messages": messages})
        assert get_last_reasoning(server.engine) == ["I must call f."]
        thinking["signature"] = thinking["signature"][:-2] + "xx"
        answer = await server.post("messages", {**body, "messages": messages})
        assert answer.status == 400
        assert "messages[1].content[0]" in answer.body.decode()
