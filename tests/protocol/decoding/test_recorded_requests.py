"""What real clients send is taken as it is."""

import json
from typing import Any

import pytest

from antiphon.limits import Limits
from antiphon.protocol.decoding.codec import decode_create, encode
from antiphon.protocol.types.items import AdditionalTools, CustomToolCall, ItemReference
from antiphon.protocol.types.tools import McpTool, NamespaceTool
from tests.protocol.decoding.recorded_requests import creates
from tests.support.cpu import cpu_time

RECORDED = dict(creates())
LIMITS = Limits()


def test_there_is_something_recorded_of_every_client() -> None:
    clients = {name.split("-")[0].split(".")[0] for name in RECORDED}
    assert clients == {"agents", "ai", "codex", "openai", "opencode"}


@pytest.mark.parametrize("name", RECORDED)
@pytest.mark.shows("I.12")
def test_no_recorded_request_is_refused_or_holds_a_field_we_do_not_know(name: str) -> None:
    decoded = decode_create(json.dumps(RECORDED[name]).encode(), LIMITS)
    only_on_websockets = {"type", "generate"} if name.endswith("frame") else set()
    assert set(decoded.ignored) <= only_on_websockets


@pytest.mark.parametrize("name", RECORDED)
@pytest.mark.shows("I.12")
def test_nothing_that_was_sent_is_lost(name: str) -> None:
    sent = RECORDED[name]
    request = decode_create(json.dumps(sent).encode(), LIMITS).request
    items = json.loads(encode(request.input))
    if isinstance(sent["input"], list):
        assert len(items) == len(sent["input"])
        for item, original in zip(items, sent["input"], strict=True):
            assert_held(item, original)
    for tool, original in zip(json.loads(encode(request.tools)), sent.get("tools", []), strict=True):
        assert_held(tool, original)


def assert_held(held: Any, sent: Any) -> None:
    """Every field of `sent` is in `held`, but for nulls, secrets, and strings that became parts."""
    if isinstance(sent, dict):
        for key, value in sent.items():
            if value is None or key in ("headers", "authorization"):
                continue
            if key == "content" and isinstance(value, str):
                assert [part["text"] for part in held[key]] == [value]
            else:
                assert_held(held[key], value)
    elif isinstance(sent, list):
        assert len(held) == len(sent)
        for one, other in zip(held, sent, strict=True):
            assert_held(one, other)
    else:
        assert held == sent


def test_codex_s_shapes_are_understood() -> None:
    request = decode_create(json.dumps(RECORDED["codex-gpt-6.1-sol.custom-1"]).encode(), LIMITS).request
    declared = next(item for item in request.input if isinstance(item, AdditionalTools))
    assert any(isinstance(tool, NamespaceTool) for tool in declared.tools)
    assert any(isinstance(item, CustomToolCall) and item.namespace == "functions" for item in request.input)


def test_the_ai_sdk_s_references_are_understood() -> None:
    names = [name for name in RECORDED if name.startswith("ai-sdk7")]
    inputs = [decode_create(json.dumps(RECORDED[name]).encode(), LIMITS).request.input for name in names]
    assert any(isinstance(item, ItemReference) for items in inputs for item in items)


def test_secrets_of_a_recorded_mcp_tool_are_kept_for_the_tool_alone() -> None:
    request = decode_create(json.dumps(RECORDED["openai-py.mcp-0"]).encode(), LIMITS).request
    tool = request.tools[0]
    assert isinstance(tool, McpTool)
    assert tool.credentials.headers == {"X-A": "b"}
    assert tool.credentials.authorization == "tok"
    assert b"tok" not in encode(request.tools)


def test_a_large_request_of_a_coding_agent_is_read_in_a_moment() -> None:
    body = json.dumps(RECORDED["codex-gpt-6.1-sol.custom-1"]).encode()
    assert len(body) > 50_000
    decode_create(body, LIMITS)
    with cpu_time() as spent:
        for _ in range(10):
            decode_create(body, LIMITS)
    assert spent.seconds / 10 < 0.010  # 0.8 ms on a quiet machine
