"""Tests POST /v1/responses/compact: the output is short, retains the user's messages, and can be continued; and the
requests and compactions that are rejected.

Covers `protocol/bodies/compact.py`, `service/compact.py`, `service/keyring.py` and
`service/tool_loop/compaction.py`.
"""

import asyncio
from base64 import b64encode
from typing import Any

import pytest

from antiphon.core.deltas import ReasoningDelta, Text
from antiphon.core.encrypted_reasoning import VERSION_PREFIX
from antiphon.core.history.compaction import USER_PREFIX_CHARS
from antiphon.core.prompt import ChatPrompt, TokenCounts
from antiphon.engines.fake import FakeEngine, FakeSettings
from antiphon.engines.fake.tokens import Level
from antiphon.errors import BadRequest, ContextTooLong, EngineFailed, Unavailable
from antiphon.service.keyring import Keyring
from antiphon.service.prompting.prepared_request import estimate_tokens
from antiphon.service.tool_loop.compaction import MIN_SUMMARY_TOKENS
from tests.api.app import ApiServer, Client, run_api
from tests.api.compaction import (
    NonCountingEngine,
    assistant_message,
    compact,
    count_input_tokens,
    get_last_messages,
    list_retained_texts,
    list_user_texts,
    make_conversation,
    user_message,
)
from tests.oracles.responses import check_response

pytestmark = pytest.mark.anyio

KEY = bytes(range(32))
OTHER = bytes(range(1, 33))


@pytest.mark.shows("A.11")
async def test_a_conversation_is_compacted_to_user_messages_and_one_compaction() -> None:
    async with run_api() as server:
        server.engine.says(Text("They spoke "), Text("of the weather."))
        compacted = await compact(
            server, input=[user_message("I am Ada."), assistant_message("Hello Ada!"), user_message("Is it warm?")]
        )
        assert [item["type"] for item in compacted["output"]] == ["message", "message", "compaction"]
        assert list_retained_texts(compacted) == ["I am Ada.", "Is it warm?"]
        assert compacted["object"] == "response.compaction"
        assert compacted["usage"]["output_tokens"] > 0
        assert "weather" not in str(compacted)
        assert (await server.get(f"responses/{compacted['id']}")).status == 404, "nothing is stored"


async def test_tools_from_input_items_are_not_called_for_the_summary() -> None:
    found = {"type": "tool_search_output", "tools": [{"type": "function", "name": "look"}]}
    async with run_api() as server:
        compacted = await compact(server, input=[user_message("I am Ada."), found])
        assert compacted["output"][-1]["type"] == "compaction"


@pytest.mark.shows("A.11")
async def test_a_compaction_as_input_restores_the_context_without_duplicates() -> None:
    async with run_api() as server:
        server.engine.says(Text("Ada was greeted."))
        items = [
            {"role": "developer", "content": "Be kind."},
            user_message("I am Ada."),
            assistant_message("Hello Ada!"),
        ]
        compacted = await compact(server, input=items)
        for before in ([], items, [items[0], assistant_message("made up")]):
            response = await server.create(input=[*before, *compacted["output"], user_message("Who am I?")])
            check_response(response)
            instructions = [("developer", "Be kind.")] if before else []
            assert get_last_messages(server.engine) == [
                *instructions,
                ("user", "I am Ada."),
                ("assistant", "[Summary of the conversation so far]\nAda was greeted."),
                ("user", "Who am I?"),
            ]


@pytest.mark.shows("A.11")
async def test_a_compaction_continues_by_previous_response_id_and_in_a_conversation() -> None:
    async with run_api() as server:
        server.engine.says(Text("Ada was greeted."))
        output = (await compact(server, input=[user_message("I am Ada."), assistant_message("Hello Ada!")]))["output"]
        first = await server.create(input=[*output, user_message("Who am I?")])
        await server.create(input="And you?", previous_response_id=first["id"])
        restored = get_last_messages(server.engine)
        assert [text for _, text in restored] == [
            "I am Ada.",
            "[Summary of the conversation so far]\nAda was greeted.",
            "Who am I?",
            "You said: Who am I?",
            "And you?",
        ]
        page = (await server.get(f"responses/{first['id']}/input_items?order=asc")).json()
        assert page["data"][1]["encrypted_content"] == output[-1]["encrypted_content"], "it is stored unchanged"
        made = await server.post_ok("conversations", {"items": [*output, user_message("Who am I?")]})
        await server.create(input="And you?", conversation=made["id"])
        assert get_last_messages(server.engine) == [*restored[:3], restored[4]]


@pytest.mark.shows("A.11")
async def test_a_history_is_compacted_by_previous_response_id_alone() -> None:
    async with run_api() as server:
        first = await server.create(input="I am Ada.")
        second = await server.create(input="Say more.", previous_response_id=first["id"])
        compacted = await compact(server, previous_response_id=second["id"])
        assert list_retained_texts(compacted) == ["I am Ada.", "Say more."]
        order = get_last_messages(server.engine)[-1]
        assert order[0] == "user"
        assert "summary" in order[1]
        assert ("assistant", "You said: I am Ada.") in get_last_messages(server.engine)


async def assert_at_most_a_quarter(server: ApiServer, items: list[Any], compacted: Any) -> None:
    """The first characters of user messages and a short summary always remain, which may be more than a quarter."""
    shortest = [user_message(text[:USER_PREFIX_CHARS]) for text in list_retained_texts(compacted)]
    minimum = await count_input_tokens(server, shortest) + 2 * MIN_SUMMARY_TOKENS
    before, after = await count_input_tokens(server, items), await count_input_tokens(server, compacted["output"])
    assert after <= max(before / 4, minimum)


@pytest.mark.shows("A.11")
@pytest.mark.seeds(12)
async def test_a_compaction_has_at_most_a_quarter_of_the_tokens_it_replaces(seed: int) -> None:
    async with run_api() as server:
        items = make_conversation(seed)
        server.engine.says(Text("It was said and done. " * 400))
        compacted = await compact(server, input=items)
        await assert_at_most_a_quarter(server, items, compacted)
        retained = list_retained_texts(compacted)
        for original, text in zip(list_user_texts(items), retained, strict=True):
            assert text in (original, original[:USER_PREFIX_CHARS])
        unshortened = [
            text == original
            for original, text in zip(list_user_texts(items), retained, strict=True)
            if len(original) > USER_PREFIX_CHARS
        ]
        assert any(unshortened)
        again = [*compacted["output"], *make_conversation(seed + 100, 3)]
        server.engine.says(Text("And on it went. " * 400))
        twice = await compact(server, input=again)
        await assert_at_most_a_quarter(server, again, twice)
        assert [text[:USER_PREFIX_CHARS] for text in list_retained_texts(twice)] == [
            text[:USER_PREFIX_CHARS] for text in [*retained, *list_user_texts(again)[len(retained) :]]
        ]


@pytest.mark.parametrize("level", ["chat", "text", "tokens", "harmony"])
async def test_the_size_limit_holds_for_every_prompt_level(level: Level) -> None:
    async with run_api(engine=FakeEngine(FakeSettings(level=level, context=60_000))) as server:
        items = [
            item for turn in range(40) for item in (user_message(f"{turn} ?"), assistant_message("so it is " * 60))
        ]
        compacted = await compact(server, input=items)
        assert await count_input_tokens(server, compacted["output"]) <= await count_input_tokens(server, items) / 4
        assert list_retained_texts(compacted) == list_user_texts(items)


async def test_the_size_limit_holds_by_estimate_without_token_counts() -> None:
    async with run_api(engine=NonCountingEngine()) as server:
        items = make_conversation(3)
        server.engine.says(Text("It was said and done. " * 400))
        compacted = await compact(server, input=items)
        sizes = []
        for context in (items, compacted["output"]):
            await server.create(input=context)
            sizes.append(estimate_tokens(server.engine.seen[-1].prompt))
        assert sizes[1] <= sizes[0] / 4


async def test_the_size_limit_holds_when_user_text_has_more_tokens_per_character() -> None:
    async with run_api(engine=NonCountingEngine()) as server:
        items = [
            item for turn in range(9) for item in (user_message("春夏秋冬" * 100), assistant_message("so it is " * 900))
        ]
        server.engine.says(Text("It was said and done. " * 900))
        output = (await compact(server, input=items))["output"]
        sizes = []
        for context in (items, output):
            await server.create(input=context)
            sizes.append(estimate_tokens(server.engine.seen[-1].prompt))
        assert sizes[0] / 5 < sizes[1] <= sizes[0] / 4


async def test_only_the_last_of_several_compactions_is_used() -> None:
    async with run_api() as server:
        server.engine.says(Text("Ada was greeted."))
        first = (await compact(server, input="I am Ada."))["output"]
        server.engine.says(Text("Ada was greeted twice."))
        second = (await compact(server, input=[*first, user_message("Hello?")]))["output"]
        await server.create(input=[*first, *second, user_message("Who am I?")])
        texts = [text for _, text in get_last_messages(server.engine)]
        assert texts == [
            "I am Ada.\n\nHello?",
            "[Summary of the conversation so far]\nAda was greeted twice.",
            "Who am I?",
        ]


async def test_a_short_conversation_retains_its_messages_with_a_short_summary() -> None:
    async with run_api() as server:
        server.engine.says(Text("blah " * 400))
        compacted = await compact(server, input="hi")
        assert list_retained_texts(compacted) == ["hi"]
        assert server.engine.seen[-1].sampling.max_tokens == 64
        assert await count_input_tokens(server, compacted["output"]) <= 64 + 36


async def test_user_messages_beyond_the_size_limit_are_shortened_to_their_beginning() -> None:
    async with run_api() as server:
        texts = [f"{n} " + "long words of a user " * 50 for n in range(20)]
        server.engine.says(Text("blah " * 400))
        compacted = await compact(server, input=[user_message(text) for text in texts])
        assert list_retained_texts(compacted) == [text[:USER_PREFIX_CHARS] for text in texts]
        await server.create(input=compacted["output"])
        assert "first 200 characters" in get_last_messages(server.engine)[1][1]


async def test_a_history_longer_than_the_context_is_compacted() -> None:
    async with run_api(engine=FakeEngine(FakeSettings(context=4000))) as server:
        items = make_conversation(1, 30)
        refused = await server.post("responses", {"model": "fake", "input": items})
        assert refused.error["code"] == "context_length_exceeded"
        compacted = await compact(server, input=items)
        assert len(list_retained_texts(compacted)) == 30
        assert await count_input_tokens(server, compacted["output"]) < 4000


async def test_room_is_reserved_for_the_summary_in_a_full_context() -> None:
    items = [item for turn in range(20) for item in (user_message(f"{turn}?"), assistant_message("so it is " * 30))]
    async with run_api() as server:
        size = await count_input_tokens(server, items)
    async with run_api(engine=FakeEngine(FakeSettings(context=size + 20))) as server:
        server.engine.says(Text("Much was said."))
        await compact(server, input=items)
        assert (server.engine.seen[-1].sampling.max_tokens or 0) > 100
        assert "19?" in str(get_last_messages(server.engine))


async def test_the_summary_request_has_no_tools_and_no_reasoning() -> None:
    async with run_api() as server:
        items = [{"type": "additional_tools", "tools": [{"type": "function", "name": "f"}]}, *make_conversation(2, 2)]
        await compact(server, input=items, instructions="Speak French.")
        generation = server.engine.seen[-1]
        assert isinstance(generation.prompt, ChatPrompt)
        assert (generation.prompt.tools, generation.effort) == ((), "none")
        assert get_last_messages(server.engine)[0] == ("system", "Speak French.")


async def test_a_call_without_output_can_be_answered_after_the_compaction() -> None:
    async with run_api() as server:
        call = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
        compacted = await compact(server, input=[user_message("Look!"), call])
        output = {"type": "function_call_output", "call_id": "c", "output": "a tree"}
        await server.create(input=[*compacted["output"], output])
        assert get_last_messages(server.engine)[-1] == ("tool", "a tree")


async def test_a_failed_or_empty_summary_is_an_error() -> None:
    async with run_api() as server:
        for error, status in ((EngineFailed("It died."), 500), (Unavailable("It is not there."), 503)):
            server.engine.fails(error)
            answer = await server.post("responses/compact", {"model": "fake", "input": "hi"})
            assert (answer.status, answer.error["message"]) == (status, error.message)
        server.engine.says(ReasoningDelta("hm"), finish="length")
        server.engine.says(Text("  "))
        answer = await server.post("responses/compact", {"model": "fake", "input": "hi"})
        assert (answer.status, answer.error["code"]) == (500, "server_error")
        assert server.engine.running == 0


async def test_a_summary_cut_off_while_reasoning_is_retried_with_more_tokens() -> None:
    async with run_api() as server:
        server.engine.says(ReasoningDelta("hm"), finish="length", counts=TokenCounts(input_tokens=5, output_tokens=64))
        server.engine.says(ReasoningDelta("hm"), Text("Fine."), counts=TokenCounts(input_tokens=5, output_tokens=70))
        compacted = await compact(server, input="hi")
        assert [generation.sampling.max_tokens for generation in server.engine.seen] == [64, 64 + 1024]
        assert compacted["usage"]["output_tokens"] == 134


async def test_a_summary_is_retried_without_a_rejected_reasoning_effort() -> None:
    async with run_api() as server:
        server.engine.fails(BadRequest("It refuses this request: reasoning_effort"))
        server.engine.says(Text("Fine."))
        await compact(server, input="hi")
        assert [generation.effort for generation in server.engine.seen] == ["none", None]
        server.engine.fails(ContextTooLong("It is too long."))
        answer = await server.post("responses/compact", {"model": "fake", "input": "hi"})
        assert answer.error["code"] == "context_length_exceeded"


async def test_a_disconnected_client_cancels_the_summary() -> None:
    async with run_api() as server:
        gate = server.engine.holds()
        client = Client(server.app, "POST", "responses/compact", model="fake", input="hi")
        async with asyncio.timeout(30):
            await gate.reached.wait()
            client.disconnect()
            await client.request
        assert (server.engine.running, server.engine.cancelled) == (0, 1)


def encode_key(raw: bytes) -> str:
    return b64encode(raw).decode()


@pytest.mark.shows("A.11", "A.40")
async def test_a_modified_or_foreign_compaction_is_rejected() -> None:
    async with run_api(reasoning_key=(encode_key(KEY),)) as server:
        compaction = (await compact(server, input="hi"))["output"][-1]
        good = compaction["encrypted_content"]
        middle = len(good) // 2
        keyring = Keyring([KEY])
        bad = {
            "changed": good[:middle] + ("A" if good[middle] != "A" else "B") + good[middle + 1 :],
            "cut": good[:-1],
            "another tenant's": keyring.encrypt_bytes(
                "other", keyring.decrypt_bytes("default", good, b"compaction"), b"compaction"
            ),
            "another key's": Keyring([OTHER]).encrypt_bytes("default", b"x", b"compaction"),
            "encrypted reasoning": keyring.encrypt("default", "hm"),
            "OpenAI's": "gAAAAABo0x",
            "empty": "",
            "a future version": VERSION_PREFIX.replace("1", "2") + good.removeprefix(VERSION_PREFIX),
        }
        requests = server.engine.requests
        for name, encrypted in bad.items():
            items = [user_message("hi"), {**compaction, "encrypted_content": encrypted}, user_message("so?")]
            for path, body in (
                ("responses", {"input": items}),
                ("responses", {"input": [*items, compaction]}),
                ("responses", {"input": items, "stream": True, "store": False}),
                ("responses", {"input": items, "background": True}),
                ("responses/input_tokens", {"input": items}),
                ("responses/compact", {"input": items}),
            ):
                answer = await server.post(path, {"model": "fake", **body})
                assert answer.status == 400, (name, path)
                assert answer.error["code"] == "invalid_encrypted_content"
                assert answer.error["param"] == "input[1].encrypted_content"
            answer = await server.post("conversations", {"items": items})
            assert answer.error["param"] == "items[1].encrypted_content", name
        reasoning = {"type": "reasoning", "summary": [], "encrypted_content": good}
        answer = await server.post("responses", {"model": "fake", "input": [user_message("hi"), reasoning]})
        assert answer.error["code"] == "invalid_encrypted_content"
        assert server.engine.requests == requests


@pytest.mark.shows("A.40")
async def test_keys_can_be_rotated() -> None:
    async with run_api(reasoning_key=(encode_key(KEY),)) as server:
        server.engine.says(Text("Ada was greeted."))
        output = (await compact(server, input="I am Ada."))["output"]
    async with run_api(reasoning_key=(encode_key(OTHER), encode_key(KEY))) as server:
        await server.create(input=output)
        assert "Ada was greeted." in str(get_last_messages(server.engine))
        renewed = (await compact(server, input=output))["output"]
    async with run_api(reasoning_key=(encode_key(OTHER),)) as server:
        await server.create(input=renewed)
        answer = await server.post("responses", {"model": "fake", "input": output})
        assert answer.error["code"] == "invalid_encrypted_content"


async def test_a_compaction_in_the_history_is_rejected_when_its_key_was_removed() -> None:
    async with run_api() as server:
        output = (await compact(server, input="I am Ada."))["output"]
        first = await server.create(input=[*output, user_message("hi")])
        server.app.lifecycle.components.keyring._keys = {bytes(8): bytes(32)}  # type: ignore[attr-defined]  # set by build_app
        answer = await server.post("responses", {"model": "fake", "input": "x", "previous_response_id": first["id"]})
        assert (answer.error["code"], answer.error["param"]) == ("invalid_encrypted_content", "previous_response_id")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"model": None, "input": "hi"}, "model"),
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": 7}, "input"),
        ({"input": [{"type": "compaction_trigger"}]}, "input"),
        ({"input": [{"type": "nonsense"}]}, "input[0].type"),
        ({"input": [{"type": "item_reference", "id": "msg_x"}]}, "input[0].id"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, "input[0].call_id"),
        ({"input": [{"type": "compaction"}]}, "input[0].encrypted_content"),
        ({"previous_response_id": "resp_x"}, "previous_response_id"),
        ({"input": "hi", "instructions": 7}, "instructions"),
        ({"input": "hi", "prompt_cache_key": ""}, "prompt_cache_key"),
        ({"input": "hi", "service_tier": "fastest"}, "service_tier"),
    ],
)
async def test_invalid_requests_are_rejected_with_their_field(body: dict[str, Any], param: str) -> None:
    async with run_api() as server:
        answer = await server.post("responses/compact", {"model": "fake", **body})
        assert (answer.status, answer.error["param"]) == (400, param)
        assert server.engine.requests == 0


async def test_ignored_response_fields_are_listed_in_a_header() -> None:
    """Codex sends these fields."""
    async with run_api() as server:
        body = {"model": "fake", "input": "hi", "tools": [], "parallel_tool_calls": True, "service_tier": "flex"}
        answer = await server.post("responses/compact", body)
        assert answer.status == 200, answer.body
        assert answer.header(b"x-antiphon-ignored") == b"tools, parallel_tool_calls"
