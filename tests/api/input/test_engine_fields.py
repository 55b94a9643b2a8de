"""Request fields that engines know and the OpenAI API does not: rejected by name, and accepted with --compat off.

Covers `service/completions.py` and `service/prompting/engine_fields.py`.
"""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from antiphon.config import Config
from antiphon.core.deltas import CallDelta, CallStarted, ReasoningDelta, Text
from antiphon.core.prompt import ChatPrompt
from antiphon.service.access.api_keys import DEFAULT_TENANT
from antiphon.service.planning.planner import PlannerSettings
from antiphon.service.planning.request_policy import RequestPolicy
from antiphon.service.prompting.engine_fields import FIELDS, make_salt
from antiphon.wiring import build_app
from tests.api.app import ApiServer, parse_events, run_api
from tests.engines.http.stubs.generation import open_engine
from tests.oracles.responses import check_event, check_response
from tests.service.prompting.test_cache_salt import RecordingEngineServer
from tests.service.requests import decode_request, start_service, wait_for_response
from tests.support.asgi_client import AsgiResponse
from tests.support.local_servers import serve_tcp

pytestmark = pytest.mark.anyio

EXAMPLES: dict[str, Any] = {
    "request_id": "mine-1",
    "priority": 3,
    "cache_salt": "salty",
    "mm_processor_kwargs": {"num_crops": 4},
    "previous_input_messages": [{"role": "user", "content": "before"}],
    "enable_response_messages": True,
}
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}


@asynccontextmanager
async def run_before_engine(kind: str, **settings: Any) -> AsyncIterator[tuple[ApiServer, RecordingEngineServer]]:
    """Run the whole server in front of an engine stub that records the requests it receives."""
    engine = RecordingEngineServer()
    async with serve_tcp(engine.serve) as port, open_engine(f"{kind}://127.0.0.1:{port}") as client:
        app = build_app(Config.from_settings(**{"store": "memory", "compat": "off", **settings}), client)
        await app.lifecycle.open()
        try:
            yield ApiServer(app, client), engine  # type: ignore[arg-type]  # not a FakeEngine
        finally:
            await app.lifecycle.close()


async def create_response(server: ApiServer, **fields: Any) -> AsgiResponse:
    answer = await server.post("responses", {"model": "m", "input": "hi", "stream": True, **fields})
    assert answer.status == 200, answer.body
    return answer


def test_the_examples_cover_every_engine_field() -> None:
    assert FIELDS.keys() == EXAMPLES.keys()


@pytest.mark.shows("A5.1")
@pytest.mark.parametrize("name", EXAMPLES)
async def test_each_engine_field_is_rejected_by_default(name: str) -> None:
    async with run_api() as server:
        for path in ("responses", "responses/input_tokens"):
            answer = await server.post(path, {"model": "fake", "input": "hi", name: EXAMPLES[name]})
            assert (answer.status, answer.error["param"], answer.error["code"]) == (400, name, "unsupported_parameter")
            assert "--compat off" in answer.error["message"]
        assert server.engine.requests == 0


@pytest.mark.shows("A5.1")
@pytest.mark.parametrize("name", ["request_id", "priority", "cache_salt", "mm_processor_kwargs"])
async def test_a_field_that_the_engine_does_not_support_is_rejected(name: str) -> None:
    async with run_api(compat="off") as server:
        answer = await server.post("responses", {"model": "fake", "input": "hi", name: EXAMPLES[name]})
        assert (answer.status, answer.error["param"]) == (400, name)
        assert server.engine.requests == 0


@pytest.mark.shows("A5.2")
@pytest.mark.parametrize(("kind", "field"), [("vllm", "request_id"), ("sglang", "rid")])
async def test_request_id_reaches_the_engine_and_the_header_but_is_not_the_response_id(kind: str, field: str) -> None:
    async with run_before_engine(kind) as (server, engine):
        answer = await create_response(server, request_id="mine-1")
        assert engine.get_last(field) == "mine-1"
        assert answer.header(b"x-request-id") == b"mine-1"
        assert parse_events(answer)[0]["response"]["id"].startswith("resp_")


@pytest.mark.shows("A5.2")
@pytest.mark.parametrize("name", ["", "a b", "é", "x" * 129, "a\nb"])
async def test_an_invalid_request_id_is_rejected(name: str) -> None:
    async with run_before_engine("vllm") as (server, engine):
        answer = await server.post("responses", {"model": "m", "input": "hi", "request_id": name})
        assert (answer.status, answer.error["param"]) == (400, "request_id")
        assert not engine.seen


@pytest.mark.shows("A5.3")
async def test_priority_and_mm_processor_kwargs_reach_the_engine() -> None:
    async with run_before_engine("vllm") as (server, engine):
        await create_response(server, priority=-3, mm_processor_kwargs={"num_crops": 4})
        assert (engine.get_last("priority"), engine.get_last("mm_processor_kwargs")) == (-3, {"num_crops": 4})
        await create_response(server)
        assert not {"priority", "mm_processor_kwargs", "request_id", "cache_salt"} & engine.seen[-1].keys()


@pytest.mark.shows("A5.4", "A5.8", "A.42")
async def test_cache_salt_reaches_the_engine_and_overrides_prompt_cache_key_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with run_before_engine("vllm") as (server, engine):
        await create_response(server, cache_salt="salty")
        assert engine.get_last("cache_salt") == make_salt(DEFAULT_TENANT, "salty") != "salty"
        assert not caplog.records
        with caplog.at_level(logging.WARNING):
            await create_response(server, cache_salt="salty", prompt_cache_key="key")
        assert engine.get_last("cache_salt") == make_salt(DEFAULT_TENANT, "salty")
        assert [record.message for record in caplog.records] == [
            "A request has both cache_salt and prompt_cache_key: cache_salt is used."
        ]
        answer = await server.post("responses", {"model": "m", "input": "hi", "cache_salt": ""})
        assert (answer.status, answer.error["param"]) == (400, "cache_salt")


@pytest.mark.shows("A5.5")
async def test_previous_input_messages_precede_the_input() -> None:
    history = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "what is f?"}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "7"},
    ]
    async with run_before_engine("vllm") as (server, engine):
        made = parse_events(await create_response(server, previous_input_messages=history, tools=[TOOL]))[-1][
            "response"
        ]
        messages = engine.get_last("messages")
        assert [message["role"] for message in messages] == ["system", "user", "assistant", "tool", "user"]
        assert messages[-1]["content"] == "hi"
        stored = (await server.get(f"responses/{made['id']}/input_items?order=asc")).json()["data"]
        kinds = ["message", "message", "function_call", "function_call_output", "message"]
        assert [item["type"] for item in stored] == kinds
        await create_response(server, previous_response_id=made["id"], tools=[TOOL])
        assert [message["role"] for message in engine.get_last("messages")[:5]] == [m["role"] for m in messages]


@pytest.mark.shows("A5.5")
@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([{"role": "user"}], "previous_input_messages[0].content"),
        ([{"role": "ghost", "content": "x"}], "previous_input_messages[0].role"),
        ([{"role": "user", "content": "x"}, {"content": "x"}], "previous_input_messages[1].role"),
        ([{"role": "assistant", "channel": "analysis", "content": "x"}], "previous_input_messages[0].channel"),
        ([{"role": "tool", "content": "x"}], "previous_input_messages[0].tool_call_id"),
    ],
)
async def test_invalid_previous_input_messages_are_rejected(messages: Any, param: str) -> None:
    async with run_api(compat="off") as server:
        answer = await server.post("responses", {"model": "fake", "input": "hi", "previous_input_messages": messages})
        assert (answer.status, answer.error["param"]) == (400, param), answer.body


@pytest.mark.shows("A5.6")
async def test_enable_response_messages_returns_the_prompt_and_output_messages() -> None:
    async with run_api(compat="off") as server:
        server.engine.says(ReasoningDelta("hm"), Text("so"), CallStarted(0, "f"), CallDelta(0, "{}"))
        fields: dict[str, Any] = {"enable_response_messages": True, "instructions": "Be brief.", "tools": [TOOL]}
        made = await server.create(**fields)
        call = next(item for item in made["output"] if item["type"] == "function_call")
        assert made["input_messages"] == [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "hi"},
        ]
        called = {"id": call["call_id"], "type": "function", "function": {"name": "f", "arguments": "{}"}}
        assert made["output_messages"] == [
            {"role": "assistant", "content": "so", "reasoning_content": "hm", "tool_calls": [called]}
        ]
        assert (await server.get(f"responses/{made['id']}")).json() == made
        messages = [*made["input_messages"], *made["output_messages"]]
        messages.append({"role": "tool", "tool_call_id": call["call_id"], "content": "7"})
        await server.create(previous_input_messages=messages, tools=[TOOL])
        prompt = server.engine.seen[-1].prompt
        assert isinstance(prompt, ChatPrompt)
        assert len(prompt.messages) == 5
        check_response(made)


@pytest.mark.shows("A5.6")
async def test_response_messages_are_in_a_stream_and_its_replay_only_if_enabled() -> None:
    async with run_api(compat="off") as server:
        body = {"model": "fake", "input": "hi", "stream": True, "enable_response_messages": True}
        events = parse_events(await server.post("responses", body))
        last = events[-1]["response"]
        assert last["output_messages"] == [{"role": "assistant", "content": "You said: hi"}]
        assert "output_messages" not in events[0]["response"]
        assert events[0]["response"]["input_messages"] == last["input_messages"]
        assert parse_events(await server.get(f"responses/{last['id']}?stream=true")) == events
        plain = parse_events(await server.post("responses", {**body, "enable_response_messages": False}))
        for event in plain:
            check_event(event)


@pytest.mark.shows("A5.3")
async def test_chat_accepts_mm_processor_kwargs_and_capabilities_list_the_engine_fields() -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}
    async with run_before_engine("vllm") as (server, engine):
        await server.post("chat/completions", {**body, "mm_processor_kwargs": {"a": 1}})
        assert engine.get_last("mm_processor_kwargs") == {"a": 1}
        (capabilities,) = (await server.get("capabilities")).json()["data"]
        assert {"request_id", "mm_processor_kwargs", "priority", "cache_salt"} <= {*capabilities["honours"]}
    async with run_before_engine("vllm", compat="on") as (server, engine):
        answer = await server.post("chat/completions", {**body, "mm_processor_kwargs": {"a": 1}})
        assert (answer.status, answer.error["param"]) == (400, "mm_processor_kwargs")
        (capabilities,) = (await server.get("capabilities")).json()["data"]
        assert not {"request_id", "mm_processor_kwargs"} & {*capabilities["honours"]}
        assert "--compat off" in capabilities["lacks"]["request_id"]


@pytest.mark.shows("A.42")
@pytest.mark.parametrize(("client_salt", "key"), [(None, "key"), ("salty", None)])
async def test_affinity_follows_the_cache_key_unless_a_salt_is_set(client_salt: str | None, key: str | None) -> None:
    engine = RecordingEngineServer()
    settings = PlannerSettings(policy=RequestPolicy(compat=False))
    async with (
        serve_tcp(engine.serve) as port,
        open_engine(f"vllm://127.0.0.1:{port}") as client,
        start_service(client, terms=settings) as service,
    ):
        request = decode_request(
            model="m", prompt_cache_key="key", **({} if client_salt is None else {"cache_salt": client_salt})
        )
        generation = (await service.planner.plan(DEFAULT_TENANT, request)).prepared.generation
    assert (generation.cache_key, generation.affinity) == (key, key or make_salt(DEFAULT_TENANT, "salty"))


@pytest.mark.shows("A5.2")
async def test_request_ids_of_different_tenants_do_not_collide() -> None:
    engine = RecordingEngineServer()
    settings = PlannerSettings(policy=RequestPolicy(compat=False))
    async with (
        serve_tcp(engine.serve) as port,
        open_engine(f"vllm://127.0.0.1:{port}") as client,
        start_service(client, terms=settings) as service,
    ):
        for tenant in ("a", "b", "a", DEFAULT_TENANT):
            await wait_for_response(
                await service.responses.create(tenant, decode_request(model="m", request_id="mine"))
            )
    one, other, again, shared = [body["request_id"] for body in engine.seen]
    assert one == again != other
    assert one.startswith("mine-")
    assert shared == "mine"
