"""`reasoning.encrypted_content` over HTTP: what goes out sealed comes back, and the model hears it again."""

import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from antiphon.core.deltas import CallDelta, CallDone, CallStarted, Text, Thought
from antiphon.core.encrypted_reasoning import FORM
from antiphon.core.prompt import ChatPrompt
from antiphon.engines.fake import FakeEngine
from antiphon.service.encryption.keyring import Keyring
from antiphon.stores.sqlite import SqliteStore
from tests.api.app import Api, api, events_in
from tests.oracles.responses import (
    accumulate,
    check_conversation_item,
    check_conversation_items,
    check_event,
    check_input_items,
    check_response,
)

pytestmark = pytest.mark.anyio

SEALED = "reasoning.encrypted_content"
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}
KEY = bytes(range(32))
RING = Keyring([KEY])
SETTINGS: dict[str, Any] = {"reasoning_key": (b64encode(KEY).decode(),)}
USER = {"role": "user", "content": "hi"}


def thought_in(sealed: str) -> str:
    assert sealed.startswith(FORM)
    return RING.open("default", sealed)


def reasoning_in(output: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [item for item in output if item["type"] == "reasoning"]


def heard_by(engine: FakeEngine) -> list[Any]:
    """The thoughts that the model was told last."""
    prompt = engine.seen[-1].prompt
    assert isinstance(prompt, ChatPrompt)
    return [message["reasoning_content"] for message in prompt.messages if "reasoning_content" in message]


def calls(engine: FakeEngine, *thoughts: str) -> None:
    engine.says(*[Thought(text) for text in thoughts], CallStarted(0, "f"), CallDelta(0, "{}"), CallDone(0))


async def called(server: Api, *thoughts: str, **fields: Any) -> dict[str, Any]:
    calls(server.engine, *thoughts)
    response: dict[str, Any] = await server.create(tools=[TOOL], include=[SEALED], **fields)
    check_response(response)
    return response


def answered(output: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The input of the next turn, as a client makes it that keeps everything itself."""
    (call,) = [item for item in output if item["type"] == "function_call"]
    return [USER, *output, {"type": "function_call_output", "call_id": call["call_id"], "output": "done"}]


@pytest.mark.shows("A.39", "A4.5")
async def test_reasoning_goes_out_sealed_if_it_is_included_and_the_stream_says_the_same() -> None:
    async with api(**SETTINGS) as server:
        body = {"model": "fake", "input": "hi", "include": [SEALED], "store": False}
        server.engine.says(Thought("h"), Thought("m"), Text("Hello"))
        whole = await server.made("responses", body)
        server.engine.says(Thought("h"), Thought("m"), Text("Hello"))
        events = events_in(await server.post("responses", {**body, "stream": True}))
    check_response(whole)
    for event in events:
        check_event(event)
    folded: Any = accumulate(events).to_dict()
    for output in (whole["output"], folded["output"], events[-1]["response"]["output"]):
        assert [item["type"] for item in output] == ["reasoning", "message"]
        assert thought_in(output[0]["encrypted_content"]) == "hm"
        assert output[0]["content"] == [{"type": "reasoning_text", "text": "hm"}]
    done = next(event for event in events if event["type"] == "response.output_item.done")
    assert thought_in(done["item"]["encrypted_content"]) == "hm"
    assert sum("encrypted_content" in json.dumps(event) for event in events) == 2, "when it is done, and at the end"


@pytest.mark.shows("A4.5")
async def test_reasoning_is_not_sealed_unless_that_is_asked_for() -> None:
    async with api(**SETTINGS) as server:
        server.engine.says(Thought("hm"), Text("Hello"))
        answer = await server.post("responses", {"model": "fake", "input": "hi"})
        assert b"encrypted_content" not in answer.body
        server.engine.says(Text("Hello"))
        answer = await server.post("responses", {"model": "fake", "input": "hi", "include": [SEALED]})
        assert b"encrypted_content" not in answer.body
        assert answer.header(b"x-antiphon-ignored") is None


@pytest.mark.shows("A.37", "A4.5")
@pytest.mark.parametrize("asked", [{"summary": "auto"}, {"summary": "concise"}, {"generate_summary": "detailed"}])
async def test_a_summary_and_what_is_sealed_go_together(asked: dict[str, str]) -> None:
    async with api(**SETTINGS) as server:
        server.engine.says(Thought("h"), Thought("m"), Text("Hello"))
        body = {"model": "fake", "input": "hi", "include": [SEALED], "stream": True, "reasoning": asked}
        events = events_in(await server.post("responses", body))
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
    assert thought_in(item["encrypted_content"]) == "hm"


@pytest.mark.shows("A.39")
async def test_a_client_that_keeps_everything_itself_brings_the_thoughts_back() -> None:
    async with api(**SETTINGS) as server:
        first = await called(server, "I must ", "call f.", store=False)
        (thought,) = reasoning_in(first["output"])
        # As the AI SDK, pydantic-ai and Codex send it: without its text, without an id, or all of it.
        for sent in (
            {
                "type": "reasoning",
                "id": thought["id"],
                "summary": [],
                "encrypted_content": thought["encrypted_content"],
            },
            {"type": "reasoning", "summary": [], "encrypted_content": thought["encrypted_content"]},
            {**thought, "content": [{"type": "reasoning_text", "text": "forged"}]},
            {**thought, "content": None, "summary": [{"type": "summary_text", "text": "forged"}]},
            thought,
        ):
            items = [sent if item["type"] == "reasoning" else item for item in first["output"]]
            server.engine.says(Text("Done."))
            second = await server.create(input=answered(items), tools=[TOOL], include=[SEALED], store=False)
            assert second["status"] == "completed"
            assert heard_by(server.engine) == ["I must call f."], sent


async def test_a_thought_with_nothing_but_what_is_sealed_in_it_counts_as_its_words_do() -> None:
    async with api(**SETTINGS) as server:
        first = await called(server, "I must call f.", store=False)
        plain = [
            {name: value for name, value in item.items() if name != "encrypted_content"} for item in first["output"]
        ]
        sealed = [{**item, "content": None} if item["type"] == "reasoning" else item for item in first["output"]]
        counted = [
            (await server.made("responses/input_tokens", {"model": "fake", "input": answered(items), "tools": [TOOL]}))
            for items in (plain, sealed)
        ]
        assert counted[0] == counted[1]


@pytest.mark.shows("A.40")
async def test_what_was_changed_or_sealed_with_another_key_or_for_another_tenant_is_refused() -> None:
    good = RING.seal("default", "hm")
    middle = len(good) // 2
    bad = {
        "changed": good[:middle] + ("A" if good[middle] != "A" else "B") + good[middle + 1 :],
        "cut": good[:-1],
        "another tenant's": RING.seal("other", "hm"),
        "another key's": Keyring([bytes(32)]).seal("default", "hm"),
        "of a version to come": good.replace("sealed-1", "sealed-2"),
        "nothing": FORM,
    }
    async with api(**SETTINGS) as server:
        for name, sealed in bad.items():
            items = [USER, {"type": "reasoning", "summary": [], "encrypted_content": sealed}]
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
async def test_what_was_sealed_elsewhere_is_not_read_and_named() -> None:
    async with api(**SETTINGS) as server:
        foreign = {"type": "reasoning", "id": "rs_1", "encrypted_content": "gAAAAABo0x"}
        summed = {**foreign, "summary": [{"type": "summary_text", "text": "in short"}]}
        call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
        output = {"type": "function_call_output", "call_id": "c", "output": "done"}
        body = {"model": "fake", "tools": [TOOL], "input": [USER, {**foreign, "summary": []}, summed, call, output]}
        answer = await server.post("responses", body)
        assert answer.status == 200, answer.body
        assert answer.header(b"x-antiphon-ignored") == b"input[*].encrypted_content"
        assert heard_by(server.engine) == ["in short"]


@pytest.mark.parametrize("nothing", [None, ""])
async def test_nothing_sealed_is_no_trouble(nothing: str | None) -> None:
    async with api(**SETTINGS) as server:
        item: dict[str, Any] = {"type": "reasoning", "summary": [], "encrypted_content": nothing}
        answer = await server.post("responses", {"model": "fake", "input": [USER, item, USER]})
        assert answer.status == 200
        assert answer.header(b"x-antiphon-ignored") is None


@pytest.mark.shows("A4.5")
async def test_what_is_stored_shows_what_is_sealed_only_if_it_is_included() -> None:
    async with api(**SETTINGS) as server:
        first = await called(server, "hm")
        path = f"responses/{first['id']}"
        plain, full = (await server.get(path)).json(), (await server.get(f"{path}?include[]={SEALED}")).json()
        check_response(plain)
        assert full == first
        assert "encrypted_content" not in reasoning_in(plain["output"])[0]
        del first["output"][0]["encrypted_content"]
        assert plain == first


async def test_what_was_not_sealed_when_it_was_made_is_sealed_when_it_is_read() -> None:
    async with api(**SETTINGS) as server:
        server.engine.says(Thought("hm"), Text("Hello"))
        made = await server.create(reasoning={"summary": "auto"})
        found = (await server.get(f"responses/{made['id']}?include={SEALED}")).json()
        check_response(found)
        assert thought_in(found["output"][0].pop("encrypted_content")) == "hm"
        assert found == made


async def test_the_items_of_an_input_show_it_only_if_it_is_included() -> None:
    async with api(**SETTINGS) as server:
        sealed = RING.seal("default", "hm")
        items = [USER, {"type": "reasoning", "summary": [], "encrypted_content": sealed}, USER]
        made = await server.create(input=items)
        for query, expected in (("", None), (f"?include[]={SEALED}", sealed)):
            page = (await server.get(f"responses/{made['id']}/input_items{query}")).json()
            check_input_items(page)
            assert page["data"][1].get("encrypted_content") == expected


@pytest.mark.shows("A.39")
async def test_a_conversation_takes_what_is_sealed_and_the_model_hears_it() -> None:
    async with api(**SETTINGS) as server:
        sealed = RING.seal("default", "I must call f.")
        thought = {"type": "reasoning", "summary": [], "encrypted_content": sealed}
        call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
        conversation = await server.made("conversations", {"items": [USER, thought, call]})
        place = f"conversations/{conversation['id']}/items"
        for query, expected in (("", None), (f"?include[]={SEALED}", sealed)):
            page = (await server.get(f"{place}{query}")).json()
            check_conversation_items(page)
            assert page["data"][1].get("encrypted_content") == expected
            item = (await server.get(f"{place}/{page['data'][1]['id']}{query}")).json()
            check_conversation_item(item)
            assert item.get("encrypted_content") == expected
            added = await server.made(f"{place}{query}", {"items": [thought]})
            assert added["data"][0].get("encrypted_content") == expected
            await server.delete(f"{place}/{added['data'][0]['id']}")
        output = {"type": "function_call_output", "call_id": "c", "output": "done"}
        await server.create(input=[output], conversation=conversation["id"], tools=[TOOL])
        assert heard_by(server.engine) == ["I must call f."]


async def test_what_was_sealed_and_kept_is_heard_by_later_turns_though_its_key_is_gone() -> None:
    store = SqliteStore(":memory:", 3600.0)
    async with api(store, **SETTINGS) as server:
        sealed = RING.seal("default", "I must call f.")
        thought = {"type": "reasoning", "summary": [], "encrypted_content": sealed}
        call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
        first = await server.create(input=[USER, thought, call])
        for key in [*server.app.lifecycle.parts.keyring._keys]:  # type: ignore[attr-defined]  # as build_app makes it
            del server.app.lifecycle.parts.keyring._keys[key]  # type: ignore[attr-defined]
        output = {"type": "function_call_output", "call_id": "c", "output": "done"}
        await server.create(input=[output], previous_response_id=first["id"], tools=[TOOL])
        assert "I must call f." in str(heard_by(server.engine))


@pytest.mark.parametrize("fields", [{}, {"background": True}])
async def test_a_stream_that_is_told_again_is_the_same_to_the_byte(fields: dict[str, Any]) -> None:
    async with api(**SETTINGS) as server:
        calls(server.engine, "h", "m")
        body = {"model": "fake", "input": "hi", "tools": [TOOL], "include": [SEALED], "stream": True, **fields}
        told = await server.post("responses", body)
        response = events_in(told)[-1]["response"]
        again = await server.get(f"responses/{response['id']}?stream=true")
        assert again.body == told.body
        assert thought_in(response["output"][0]["encrypted_content"]) == "hm"


async def test_each_of_several_thoughts_is_sealed_by_itself() -> None:
    async with api(**SETTINGS) as server:
        server.engine.says(
            Thought("one"), CallStarted(0, "unknown"), CallDone(0), Thought(" more"), Text("a"), Thought("two"),
            CallStarted(1, "f"), CallDelta(1, "{}"), CallDone(1), Thought("three"),
        )  # fmt: skip
        response = await server.create(tools=[TOOL], include=[SEALED])
        check_response(response)
        sealed = [thought_in(item["encrypted_content"]) for item in reasoning_in(response["output"])]
        assert sealed == ["one more", "two", "three"]


async def test_a_thought_that_was_cut_is_sealed_as_far_as_it_went() -> None:
    async with api(**SETTINGS) as server:
        effort = {"effort": "high"}
        response = await server.create(include=[SEALED], store=False, reasoning=effort, max_output_tokens=2)
        check_response(response)
        (item,) = response["output"]
        assert (response["status"], item["status"]) == ("incomplete", "incomplete")
        assert thought_in(item["encrypted_content"]) == item["content"][0]["text"] != ""


@pytest.mark.shows("A.39")
async def test_a_new_key_takes_over_from_an_old_one(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"{b64encode(bytes(32)).decode()}\n{b64encode(KEY).decode()}\n")
    async with api(**SETTINGS) as before:
        old = (await called(before, "then", store=False))["output"]
    async with api(reasoning_key=(f"@{file}",), disable_store=True) as server:
        await server.create(input=answered(old), tools=[TOOL])
        assert heard_by(server.engine) == ["then"]
        new = (await called(server, "now"))["output"]
    async with api(reasoning_key=(b64encode(bytes(32)).decode(),)) as after:
        await after.create(input=answered(new), tools=[TOOL])
        assert heard_by(after.engine) == ["now"]
        answer = await after.post("responses", {"model": "fake", "input": answered(old), "tools": [TOOL]})
        assert answer.status == 400
        assert "a key that this server does not have" in answer.error["message"]


@pytest.mark.shows("A6.1", "A6.2")
async def test_a_key_is_made_and_kept_in_the_store_for_all_who_share_it() -> None:
    store = SqliteStore(":memory:", 3600.0)
    async with api(store) as server:
        (sealed,) = [item["encrypted_content"] for item in reasoning_in((await called(server, "hm"))["output"])]
        key = await store.shared("reasoning_key", b"never")
    assert len(key) == 32
    assert Keyring([key]).open("default", sealed) == "hm"


async def test_anthropics_clients_bring_back_a_thought_that_they_were_not_shown() -> None:
    async with api(**SETTINGS) as server:
        calls(server.engine, "I must ", "call f.")
        ask: dict[str, Any] = {
            "model": "fake",
            "max_tokens": 64,
            "thinking": {"type": "enabled", "budget_tokens": 2000, "display": "omitted"},
            "tools": [{"name": "f", "input_schema": {"type": "object"}}],
        }
        first = await server.made("messages", {**ask, "messages": [USER]})
        thinking, use = first["content"]
        assert thinking["thinking"] == ""
        assert thought_in(thinking["signature"]) == "I must call f."
        result = {"type": "tool_result", "tool_use_id": use["id"], "content": "done"}
        said = [USER, {"role": "assistant", "content": first["content"]}, {"role": "user", "content": [result]}]
        await server.made("messages", {**ask, "messages": said})
        assert heard_by(server.engine) == ["I must call f."]
        thinking["signature"] = thinking["signature"][:-2] + "xx"
        answer = await server.post("messages", {**ask, "messages": said})
        assert answer.status == 400
        assert "messages[1].content[0]" in answer.body.decode()
