"""Tests the errors of /v1/messages, Anthropic's API: their format, status codes, and place in a stream."""

import asyncio
from typing import Any

import pytest

from antiphon.core.deltas import CallDelta, CallDone, CallStarted, Text
from antiphon.engines.base import Capabilities
from antiphon.engines.fake import FakeEngine, FakeSettings
from antiphon.errors import ContextTooLong, EngineFailed, Unavailable
from tests.api.anthropic_requests import HI, WEATHER, create_message, parse_error, parse_message_events, stream_message
from tests.api.app import run_api
from tests.support.asgi_client import Header, call

pytestmark = pytest.mark.anyio


class NoReasoningEngine(FakeEngine):
    async def capabilities(self, model: str) -> Capabilities:
        return Capabilities(level="chat", supported_fields=frozenset(), can_count_tokens=True)


async def test_thinking_is_rejected_when_the_engine_does_not_support_it() -> None:
    async with run_api(engine=NoReasoningEngine()) as server:
        answer = await server.post("messages", {**HI, "thinking": {"type": "enabled", "budget_tokens": 2000}})
        assert answer.status == 400
        assert "'thinking'" in parse_error(answer)["message"]
        for optional in ({"type": "adaptive"}, {"type": "disabled"}):
            await create_message(server, thinking=optional)
        hinted = await server.post("messages", {**HI, "output_config": {"effort": "high"}})
        assert (hinted.status, hinted.header(b"x-antiphon-ignored")) == (200, b"output_config.effort")


@pytest.mark.parametrize(
    ("body", "status", "kind", "field"),
    [
        ({"max_tokens": None}, 400, "invalid_request_error", "max_tokens"),
        ({"messages": "hi"}, 400, "invalid_request_error", "messages"),
        ({"top_k": 1.5}, 400, "invalid_request_error", "top_k"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, 400, "invalid_request_error", "tools[0].type"),
        ({"tool_choice": {"type": "any"}}, 400, "invalid_request_error", "tool_choice"),
    ],
)
async def test_invalid_requests_are_rejected_in_anthropic_format(body: Any, status: int, kind: str, field: str) -> None:
    async with run_api() as server:
        answer = await server.post("messages", {**HI, **body})
        error = parse_error(answer)
        assert (answer.status, error["type"]) == (status, kind)
        assert field in error["message"]


async def test_other_errors_use_anthropic_format_on_messages_paths_only() -> None:
    async with run_api() as server:
        assert parse_error(await server.post("messages", b"{"))["type"] == "invalid_request_error"
        assert parse_error(await server.post("messages", b"x" * (21 * 1024 * 1024)))["type"] == "request_too_large"
        assert parse_error(await server.get("messages"))["type"] == "invalid_request_error"
        assert parse_error(await call(server.app, "POST", "/messages/count_tokens"))["type"] == "invalid_request_error"
        forbidden = await call(server.app, "POST", "/v1/messages", host=[(b"host", b"evil.example")])
        assert (forbidden.status, parse_error(forbidden)["type"]) == (403, "permission_error")
        assert (await server.post("responses", b"{")).error["type"] == "invalid_request_error"
        assert (await server.post("threads/1/messages", {})).error["code"] is None
    async with run_api(default_output_tokens=9) as server:
        server.app.authenticator.close()
        answer = await server.post("messages", HI)
        assert (answer.status, parse_error(answer)["type"]) == (503, "overloaded_error")
        assert answer.header(b"retry-after") == b"2"


async def test_an_unknown_model_is_not_found() -> None:
    class SingleModelEngine(FakeEngine):
        def serves(self, model: str) -> bool:
            return model == "fake"

    async with run_api(engine=SingleModelEngine()) as server:
        answer = await server.post("messages", {**HI, "model": "claude"})
        assert (answer.status, parse_error(answer)["type"]) == (404, "not_found_error")


async def test_a_full_server_returns_retry_after() -> None:
    async with run_api(engine=FakeEngine(FakeSettings(at_once=1)), queue=1) as server, asyncio.timeout(30):
        gate = server.engine.holds()
        waiting = [asyncio.ensure_future(server.post("messages", HI)) for _ in range(3)]
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        (refused,) = [task.result() for task in done]
        assert (refused.status, parse_error(refused)["type"]) == (429, "rate_limit_error")
        assert refused.header(b"retry-after") is not None
        gate.open()
        assert sorted([(await task).status for task in waiting]) == [200, 200, 429]


KEYS: list[tuple[list[Header], int]] = [
    ([(b"x-api-key", b"sesame")], 200),
    ([(b"authorization", b"Bearer sesame")], 200),
    ([(b"x-api-key", b"wrong"), (b"authorization", b"Bearer sesame")], 200),
    ([(b"x-api-key", b"sesame"), (b"authorization", b"Bearer wrong")], 200),
    ([(b"x-api-key", b"Bearer sesame")], 401),
    ([(b"x-api-key", b"sesame"), (b"x-api-key", b"sesame")], 401),
    ([(b"x-api-key", b"")], 401),
    ([(b"x-api-key", b"x" * 5000)], 401),
    ([], 401),
]


@pytest.mark.parametrize(("headers", "status"), KEYS)
async def test_an_api_key_is_accepted_in_x_api_key(headers: list[Header], status: int) -> None:
    async with run_api(api_key=("sesame",)) as server:
        answer = await server.post("messages", HI, *headers)
        assert answer.status == status
        if status == 401:
            assert parse_error(answer)["type"] == "authentication_error"


async def test_a_failure_before_the_first_output_is_a_plain_error() -> None:
    async with run_api() as server:
        server.engine.says(Text("x"))
        server.engine.fails(Unavailable("Away.", retry_after=1.0))
        answer = await server.post("messages", {**HI, "stream": True})
        assert (answer.status, parse_error(answer)["type"]) == (503, "overloaded_error")


@pytest.mark.parametrize("stream", [True, False])
async def test_an_engine_rejection_names_the_field_of_this_api(stream: bool) -> None:
    async with run_api() as server:
        server.engine.fails(ContextTooLong("The input is too long.", param="input"))
        answer = await server.post("messages", {**HI, "stream": stream})
        assert (answer.status, parse_error(answer)["message"]) == (400, "messages: The input is too long.")


async def test_a_later_failure_ends_the_stream_with_an_error_event() -> None:
    async with run_api() as server:
        server.engine.says(Text("a"), Text("b"))
        server.engine.fails(EngineFailed("It died."), after=1)
        events = await stream_message(server)
        assert [event["type"] for event in events][-1] == "error"
        assert events[-1]["error"] == {"type": "api_error", "message": "It died."}
        assert "message_stop" not in [event["type"] for event in events]
        server.engine.repeats()
        server.engine.fails(EngineFailed("It died."), after=1)
        answer = await server.post("messages", HI)
        assert (answer.status, parse_error(answer)["message"]) == (500, "It died.")


@pytest.mark.parametrize("stream", [True, False])
async def test_tool_input_that_is_not_an_object_is_an_error(stream: bool) -> None:
    async with run_api() as server:
        server.engine.says(Text("so"), CallStarted(0, "get_weather"), CallDelta(0, "[1]"), CallDone(0))
        answer = await server.post("messages", {**HI, "tools": [WEATHER], "stream": stream})
        if stream:
            assert parse_message_events(answer)[-1]["error"]["type"] == "api_error"
        else:
            assert (answer.status, parse_error(answer)["type"]) == (500, "api_error")
