"""Requests recorded from real clients decode without errors, loss or unknown fields."""

import json
from typing import Any

import pytest

from antiphon.limits import Limits
from antiphon.protocol.decoding.codec import decode_create, encode
from antiphon.protocol.types.items import AdditionalTools, CustomToolCall, ItemReference
from antiphon.protocol.types.tools import McpTool, NamespaceTool
from tests.protocol.decoding.recorded_requests import iter_create_requests
from tests.support.cpu import cpu_timer

RECORDED = dict(iter_create_requests())
LIMITS = Limits()


def test_every_client_has_recordings() -> None:
    clients = {name.split("-")[0].split(".")[0] for name in RECORDED}
    assert clients == {"agents", "ai", "codex", "openai", "opencode"}


@pytest.mark.parametrize("name", RECORDED)
@pytest.mark.shows("I.12")
def test_recorded_requests_are_accepted_without_unknown_fields(name: str) -> None:
    decoded = decode_create(json.dumps(RECORDED[name]).encode(), LIMITS)
    only_on_websockets = {"type", "generate"} if name.endswith("frame") else set()
    assert set(decoded.ignored) <= only_on_websockets


@pytest.mark.parametrize("name", RECORDED)
@pytest.mark.shows("I.12")
def test_decoding_loses_no_field(name: str) -> None:
    sent = RECORDED[name]
    request = decode_create(json.dumps(sent).encode(), LIMITS).request
    items = json.loads(encode(request.input))
    if isinstance(sent["input"], list):
        assert len(items) == len(sent["input"])
        for item, original in zip(items, sent["input"], strict=True):
            assert_contains(item, original)
    for tool, original in zip(json.loads(encode(request.tools)), sent.get("tools", []), strict=True):
        assert_contains(tool, original)


def assert_contains(actual: Any, sent: Any) -> None:
    """Assert that `actual` has every field of `sent`, except nulls, secrets, and strings that became parts."""
    if isinstance(sent, dict):
        for key, value in sent.items():
            if value is None or key in ("headers", "authorization"):
                continue
            if key == "content" and isinstance(value, str):
                assert [part["text"] for part in actual[key]] == [value]
            else:
                assert_contains(actual[key], value)
    elif isinstance(sent, list):
        assert len(actual) == len(sent)
        for one, other in zip(actual, sent, strict=True):
            assert_contains(one, other)
    else:
        assert actual == sent


def test_codex_items_and_tools_are_decoded() -> None:
    request = decode_create(json.dumps(RECORDED["codex-gpt-6.1-sol.custom-1"]).encode(), LIMITS).request
    declared = next(item for item in request.input if isinstance(item, AdditionalTools))
    assert any(isinstance(tool, NamespaceTool) for tool in declared.tools)
    assert any(isinstance(item, CustomToolCall) and item.namespace == "functions" for item in request.input)


def test_item_references_of_the_ai_sdk_are_decoded() -> None:
    names = [name for name in RECORDED if name.startswith("ai-sdk7")]
    inputs = [decode_create(json.dumps(RECORDED[name]).encode(), LIMITS).request.input for name in names]
    assert any(isinstance(item, ItemReference) for items in inputs for item in items)


def test_secrets_of_a_recorded_mcp_tool_are_decoded_and_never_encoded() -> None:
    request = decode_create(json.dumps(RECORDED["openai-py.mcp-0"]).encode(), LIMITS).request
    tool = request.tools[0]
    assert isinstance(tool, McpTool)
    assert tool.credentials.headers == {"X-A": "b"}
    assert tool.credentials.authorization == "tok"
    assert b"tok" not in encode(request.tools)


def test_a_large_request_of_a_coding_agent_is_decoded_in_milliseconds() -> None:
    body = json.dumps(RECORDED["codex-gpt-6.1-sol.custom-1"]).encode()
    assert len(body) > 50_000
    decode_create(body, LIMITS)
    with cpu_timer() as spent:
        for _ in range(10):
            decode_create(body, LIMITS)
    assert spent.seconds / 10 < 0.010  # 0.8 ms on an idle machine
