"""Tests the requests that /v1/responses/compact rejects, and the compactions that are rejected as input."""

from base64 import b64encode
from typing import Any

import pytest

from antiphon.core.deltas import Text
from antiphon.core.encrypted_reasoning import VERSION_PREFIX
from antiphon.service.encryption.keyring import Keyring
from tests.api.app import run_api
from tests.api.compaction import compact, get_last_messages, user_message

pytestmark = pytest.mark.anyio

KEY = bytes(range(32))
OTHER = bytes(range(1, 33))


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
