import asyncio
from typing import Any

import pytest

from antiphon.core.deltas import CallDelta, CallDone, CallStarted, Text
from antiphon.engines.base import Capabilities
from antiphon.engines.fake import FakeEngine, FakeSettings
from antiphon.errors import ContextTooLong, EngineFailed, Unavailable
from tests.api.anthropic_requests import HI, WEATHER, events_in, made, problem_in, streamed
from tests.api.app import api
from tests.support.asgi_client import Header, call

pytestmark = pytest.mark.anyio


class Thoughtless(FakeEngine):
    async def capabilities(self, model: str) -> Capabilities:
        return Capabilities(prompt="chat", honours=frozenset(), counts=True)


async def test_thinking_is_refused_by_name_where_nobody_can_be_told_to() -> None:
    async with api(engine=Thoughtless()) as server:
        answer = await server.post("messages", {**HI, "thinking": {"type": "enabled", "budget_tokens": 2000}})
        assert answer.status == 400
        assert "'thinking'" in problem_in(answer)["message"]
        for mild in ({"type": "adaptive"}, {"type": "disabled"}):
            await made(server, thinking=mild)
        hinted = await server.post("messages", {**HI, "output_config": {"effort": "high"}})
        assert (hinted.status, hinted.header(b"x-antiphon-ignored")) == (200, b"output_config.effort")


@pytest.mark.parametrize(
    ("body", "status", "kind", "named"),
    [
        ({"max_tokens": None}, 400, "invalid_request_error", "max_tokens"),
        ({"messages": "hi"}, 400, "invalid_request_error", "messages"),
        ({"top_k": 1.5}, 400, "invalid_request_error", "top_k"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, 400, "invalid_request_error", "tools[0].type"),
        ({"tool_choice": {"type": "any"}}, 400, "invalid_request_error", "tool_choice"),
    ],
)
async def test_bad_requests_have_the_shape_of_this_api(body: Any, status: int, kind: str, named: str) -> None:
    async with api() as server:
        answer = await server.post("messages", {**HI, **body})
        error = problem_in(answer)
        assert (answer.status, error["type"]) == (status, kind)
        assert named in error["message"]


async def test_other_refusals_have_it_too_and_other_paths_keep_theirs() -> None:
    async with api() as server:
        assert problem_in(await server.post("messages", b"{"))["type"] == "invalid_request_error"
        assert problem_in(await server.post("messages", b"x" * (21 * 1024 * 1024)))["type"] == "request_too_large"
        assert problem_in(await server.get("messages"))["type"] == "invalid_request_error"
        assert problem_in(await call(server.app, "POST", "/messages/count_tokens"))["type"] == "invalid_request_error"
        forbidden = await call(server.app, "POST", "/v1/messages", host=[(b"host", b"evil.example")])
        assert (forbidden.status, problem_in(forbidden)["type"]) == (403, "permission_error")
        assert (await server.post("responses", b"{")).error["type"] == "invalid_request_error"
        assert (await server.post("threads/1/messages", {})).error["code"] is None
    async with api(default_output_tokens=9) as server:
        server.app.guard.close()
        answer = await server.post("messages", HI)
        assert (answer.status, problem_in(answer)["type"]) == (503, "overloaded_error")
        assert answer.header(b"retry-after") == b"2"


async def test_an_unknown_model_is_not_found() -> None:
    class Choosy(FakeEngine):
        def serves(self, model: str) -> bool:
            return model == "fake"

    async with api(engine=Choosy()) as server:
        answer = await server.post("messages", {**HI, "model": "claude"})
        assert (answer.status, problem_in(answer)["type"]) == (404, "not_found_error")


async def test_a_full_server_says_when_to_come_back() -> None:
    async with api(engine=FakeEngine(FakeSettings(at_once=1)), queue=1) as server, asyncio.timeout(30):
        gate = server.engine.holds()
        waiting = [asyncio.ensure_future(server.post("messages", HI)) for _ in range(3)]
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        (refused,) = [task.result() for task in done]
        assert (refused.status, problem_in(refused)["type"]) == (429, "rate_limit_error")
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
async def test_a_key_may_come_as_x_api_key(headers: list[Header], status: int) -> None:
    async with api(api_key=("sesame",)) as server:
        answer = await server.post("messages", HI, *headers)
        assert answer.status == status
        if status == 401:
            assert problem_in(answer)["type"] == "authentication_error"


async def test_what_fails_before_the_first_word_is_a_plain_error() -> None:
    async with api() as server:
        server.engine.says(Text("x"))
        server.engine.fails(Unavailable("Away.", retry_after=1.0))
        answer = await server.post("messages", {**HI, "stream": True})
        assert (answer.status, problem_in(answer)["type"]) == (503, "overloaded_error")


@pytest.mark.parametrize("stream", [True, False])
async def test_what_an_engine_refuses_is_named_as_this_api_names_it(stream: bool) -> None:
    async with api() as server:
        server.engine.fails(ContextTooLong("The input is too long.", param="input"))
        answer = await server.post("messages", {**HI, "stream": stream})
        assert (answer.status, problem_in(answer)["message"]) == (400, "messages: The input is too long.")


async def test_what_fails_later_ends_the_stream_with_an_error_event() -> None:
    async with api() as server:
        server.engine.says(Text("a"), Text("b"))
        server.engine.fails(EngineFailed("It died."), after=1)
        events = await streamed(server)
        assert [event["type"] for event in events][-1] == "error"
        assert events[-1]["error"] == {"type": "api_error", "message": "It died."}
        assert "message_stop" not in [event["type"] for event in events]
        server.engine.repeats()
        server.engine.fails(EngineFailed("It died."), after=1)
        answer = await server.post("messages", HI)
        assert (answer.status, problem_in(answer)["message"]) == (500, "It died.")


@pytest.mark.parametrize("stream", [True, False])
async def test_an_input_that_is_no_object_is_an_error_and_never_a_call(stream: bool) -> None:
    async with api() as server:
        server.engine.says(Text("so"), CallStarted(0, "get_weather"), CallDelta(0, "[1]"), CallDone(0))
        answer = await server.post("messages", {**HI, "tools": [WEATHER], "stream": stream})
        if stream:
            assert events_in(answer)[-1]["error"]["type"] == "api_error"
        else:
            assert (answer.status, problem_in(answer)["type"]) == (500, "api_error")
