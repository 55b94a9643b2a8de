"""Tests /v1/messages, Anthropic's API, on the fake engine; the anthropic package checks every reply.

Covers `protocol/types/anthropic/events.py` and `service/completions.py`.
"""

import asyncio
import json
from typing import Any

import pytest

from antiphon.core.deltas import CallDelta, CallDone, CallStarted, ReasoningDelta, Text
from antiphon.core.prompt import ChatPrompt, Chunk, EngineExtras, TokenCounts
from antiphon.engines.fake import FakeEngine, FakeSettings
from tests.api.anthropic_requests import (
    HI,
    PNG_BASE64,
    WEATHER,
    create_message,
    parse_message_events,
    start_client,
    stream_message,
    strip_ids,
)
from tests.api.app import run_api
from tests.oracles.anthropic import accumulate, check_count, parse_message
from tests.support.asgi_client import call

pytestmark = pytest.mark.anyio


@pytest.mark.shows("G.7")
async def test_a_json_reply_equals_the_fold_of_its_stream() -> None:
    async with run_api() as server:
        for body in (
            {},
            {"thinking": {"type": "enabled", "budget_tokens": 2000}},
            {"tools": [WEATHER], "tool_choice": {"type": "any"}},
            {"max_tokens": 2},
            {"output_config": {"format": {"type": "json_schema", "schema": WEATHER["input_schema"]}}},
        ):
            await create_message(server, **body)  # fill the prefix cache, so that both report the same cached tokens
            message, events = await create_message(server, **body), await stream_message(server, **body)
            assert strip_ids(accumulate(events)) == strip_ids(parse_message(message))
            assert message["id"].startswith("msg_")


@pytest.mark.shows("G.7")
async def test_reasoning_text_and_tool_calls_become_content_blocks() -> None:
    async with run_api() as server:
        server.engine.says(
            ReasoningDelta("hm"),
            Text("I look."),
            CallStarted(0, "get_weather"),
            CallDelta(0, '{"city": "Oslo"}'),
            CallDone(0),
        )
        message = await create_message(server, tools=[WEATHER])
        assert [block["type"] for block in message["content"]] == ["thinking", "text", "tool_use"]
        assert message["content"][2]["id"].startswith("toolu_")
        assert message["content"][2]["input"] == {"city": "Oslo"}
        assert message["stop_reason"] == "tool_use"


async def test_a_conversation_continues_after_a_tool_result() -> None:
    async with run_api() as server:
        first = await create_message(server, tools=[WEATHER], tool_choice={"type": "tool", "name": "get_weather"})
        (use,) = first["content"]
        result = {"type": "tool_result", "tool_use_id": use["id"], "content": [{"type": "text", "text": "Rain."}]}
        messages = [
            *HI["messages"],  # type: ignore[misc]  # a list
            {"role": "assistant", "content": first["content"]},
            {"role": "user", "content": [result, {"type": "text", "text": "So?"}]},
        ]
        second = await create_message(server, messages=messages, tools=[WEATHER], tool_choice={"type": "none"})
        assert second["stop_reason"] == "end_turn"
        prompt = server.engine.seen[-1].prompt
        assert isinstance(prompt, ChatPrompt)
        assert [message["role"] for message in prompt.messages] == ["user", "assistant", "tool", "user"]
        assert prompt.messages[1]["tool_calls"][0]["id"] == prompt.messages[2]["tool_call_id"] == use["id"]


async def test_a_claude_code_request_is_accepted() -> None:
    cached = {"cache_control": {"type": "ephemeral"}}
    tools = [{**WEATHER, "name": f"tool_{number}", "eager_input_streaming": True} for number in range(40)]
    use = {"type": "tool_use", "id": "toolu_01", "name": "tool_3", "input": {"city": "x"}}
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG_BASE64}}
    results = [{"type": "text", "text": "done", **cached}, image]
    body = {
        "model": "claude-sonnet-4-5",
        "max_tokens": 32_000,
        "stream": True,
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.100; cch=00000;"},
            {"type": "text", "text": "You are Claude Code.", **cached},
            {"type": "text", "text": "Rules: …", **cached},
        ],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "<system-reminder>…</system-reminder>"}]},
            {
                "role": "assistant",
                "content": [{"type": "thinking", "thinking": "hm", "signature": "Er8B"}, use],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "toolu_01", "content": results, "is_error": True, **cached},
                    {"type": "text", "text": "Go on.", **cached},
                ],
            },
            {"role": "system", "content": "The user opened a file."},
        ],
        "tools": [*tools[:-1], {**tools[-1], **cached}],
        "metadata": {"user_id": json.dumps({"device_id": "d" * 64, "session_id": "s" * 36})},
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "high"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "temperature": 1,
    }
    headers = [(b"anthropic-version", b"2023-06-01"), (b"anthropic-beta", b"claude-code-20250219"), (b"x-app", b"cli")]
    async with run_api() as server:
        answer = await server.post("messages?beta=true", body, *headers)
        assert answer.status == 200, answer.body
        parse_message_events(answer)
        ignored = (answer.header(b"x-antiphon-ignored") or b"").decode().split(", ")
        assert {"context_management", "system[0]", "system[1].cache_control", "tools[39].cache_control"} <= {*ignored}
        prompt = server.engine.seen[-1].prompt
        assert isinstance(prompt, ChatPrompt)
        assert prompt.messages[0]["content"].startswith("You are Claude Code.")
        assert len(prompt.tools) == 40
        assert server.engine.seen[-1].effort == "high"
        counted = await server.post("messages/count_tokens?beta=true", body, *headers)
        assert counted.status == 200, counted.body


@pytest.mark.shows("A.10")
@pytest.mark.parametrize("level", ["chat", "text", "tokens"])
async def test_the_token_count_equals_the_usage_of_the_same_message(level: Any) -> None:
    bodies: list[dict[str, Any]] = [
        {},
        {"system": "Be brief.", "thinking": {"type": "enabled", "budget_tokens": 9000}},
        {"thinking": {"type": "disabled"}},
        {"output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}}},
    ]
    if level == "chat":
        bodies += [{"tools": [WEATHER]}, {"tools": [WEATHER], "tool_choice": {"type": "none"}}]
    async with run_api(engine=FakeEngine(FakeSettings(level=level))) as server:
        for body in bodies:
            answer = await server.post("messages/count_tokens", {**HI, **body})
            assert answer.status == 200, answer.body
            check_count(answer.json())
            usage = (await create_message(server, **body))["usage"]
            assert answer.json()["input_tokens"] == usage["input_tokens"] + usage["cache_read_input_tokens"]


async def test_the_matched_stop_sequence_is_reported() -> None:
    async with run_api() as server:
        stopped = Chunk(
            text="a", finish="stop", counts=TokenCounts(output_tokens=1), extras=EngineExtras(stop_reason="END")
        )
        server.engine.says([stopped], finish=None)
        message = await create_message(server, stop_sequences=["END", "FIN"])
        assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "END")


@pytest.mark.parametrize("display", ["summarized", "omitted"])
async def test_thinking_is_shown_or_omitted_as_requested(display: str) -> None:
    async with run_api() as server:
        server.engine.says(ReasoningDelta("a secret"), Text("ok"))
        thinking = {"type": "adaptive", "display": display}
        message = await create_message(server, thinking=thinking)
        assert ("secret" in json.dumps(message)) is (display == "summarized")
        history = [*HI["messages"], {"role": "assistant", "content": message["content"]}, *HI["messages"]]  # type: ignore[misc]  # lists
        await create_message(server, messages=history, thinking=thinking)


async def test_an_idle_stream_sends_pings() -> None:
    async with run_api(ping_interval=0.02) as server:
        server.engine.says(Text("a"), Text("b"))
        gate = server.engine.holds(after=1)
        client = start_client(server, stream=True)
        types = []
        async for event in client.events():
            types.append(event["type"])
            if types.count("ping") == 2:
                gate.open()
            if event["type"] == "message_stop":
                break
        assert types.index("ping") > types.index("message_start")
        await client.request


async def test_a_stream_without_output_starts_with_pings() -> None:
    async with run_api(ping_interval=0.02) as server:
        server.engine.says(Text("a"))
        gate = server.engine.holds()
        client = start_client(server, stream=True)
        async for event in client.events():
            if event["type"] == "ping":
                gate.open()
            if event["type"] == "message_stop":
                break
        await client.request


async def test_a_disconnected_client_frees_the_engine() -> None:
    async with run_api(engine=FakeEngine(FakeSettings(at_once=1))) as server, asyncio.timeout(30):
        server.engine.says(Text("a"), Text("b"))
        server.engine.holds(after=1)
        client = start_client(server, stream=True)
        async for event in client.events():
            if event["type"] == "content_block_delta":
                break
        client.disconnect()
        await client.request
        assert (server.engine.running, server.engine.cancelled) == (0, 1)
        await create_message(server)


async def test_messages_are_not_stored() -> None:
    async with run_api() as server:
        message = await create_message(server)
        assert (await server.get(f"responses/{message['id'].replace('msg', 'resp')}")).status == 404


async def test_models_are_listed_for_anthropic_clients() -> None:
    async with run_api() as server:
        answer = await call(server.app, "GET", "/v1/models", (b"anthropic-version", b"2023-06-01"))
        assert [model["id"] for model in answer.json()["data"]] == ["fake"]
