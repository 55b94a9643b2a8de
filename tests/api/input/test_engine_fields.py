"""Fields that engines know and OpenAI's API does not: refused by name, and taken with --compat off."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from antiphon.config import Config
from antiphon.core.deltas import CallDelta, CallStarted, Text, Thought
from antiphon.core.prompt import ChatPrompt
from antiphon.service.encryption.cache_salt import TENANT, salt
from antiphon.service.planning.planner import Terms
from antiphon.service.planning.request_policy import Meaning
from antiphon.service.prompting.engine_fields import FIELDS
from antiphon.wiring import build_app
from tests.api.app import Api, api, events_in
from tests.engines.http.stubs.chat_stub import tcp
from tests.engines.http.stubs.generation import opened
from tests.oracles.responses import check_event, check_response
from tests.service.encryption.test_cache_salt import Recording
from tests.service.requests import decoded, result, serving
from tests.support.asgi_client import Answer

pytestmark = pytest.mark.anyio

SENT: dict[str, Any] = {
    "request_id": "mine-1",
    "priority": 3,
    "cache_salt": "salty",
    "mm_processor_kwargs": {"num_crops": 4},
    "previous_input_messages": [{"role": "user", "content": "before"}],
    "enable_response_messages": True,
}
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}


@asynccontextmanager
async def before(kind: str, **settings: Any) -> AsyncIterator[tuple[Api, Recording]]:
    """A whole server in front of an engine's, which remembers what it was asked."""
    engine = Recording()
    async with tcp(engine.serve) as port, opened(f"{kind}://127.0.0.1:{port}") as client:
        app = build_app(Config(**{"store": "memory", "compat": "off", **settings}), client)
        await app.lifecycle.open()
        try:
            yield Api(app, client), engine  # type: ignore[arg-type]  # what is asked of it is the same
        finally:
            await app.lifecycle.close()


async def asked(server: Api, **fields: Any) -> Answer:
    answer = await server.post("responses", {"model": "m", "input": "hi", "stream": True, **fields})
    assert answer.status == 200, answer.body
    return answer


def test_every_such_field_is_here() -> None:
    assert FIELDS.keys() == SENT.keys()


@pytest.mark.shows("A5.1")
@pytest.mark.parametrize("name", SENT)
async def test_by_default_each_is_refused_by_name(name: str) -> None:
    async with api() as server:
        for path in ("responses", "responses/input_tokens"):
            answer = await server.post(path, {"model": "fake", "input": "hi", name: SENT[name]})
            assert (answer.status, answer.error["param"], answer.error["code"]) == (400, name, "unsupported_parameter")
            assert "--compat off" in answer.error["message"]
        assert server.engine.requests == 0


@pytest.mark.shows("A5.1")
@pytest.mark.parametrize("name", ["request_id", "priority", "cache_salt", "mm_processor_kwargs"])
async def test_an_engine_that_has_no_name_for_it_is_not_asked(name: str) -> None:
    async with api(compat="off") as server:
        answer = await server.post("responses", {"model": "fake", "input": "hi", name: SENT[name]})
        assert (answer.status, answer.error["param"]) == (400, name)
        assert server.engine.requests == 0


@pytest.mark.shows("A5.2")
@pytest.mark.parametrize(("kind", "wire"), [("vllm", "request_id"), ("sglang", "rid")])
async def test_a_name_of_a_request_goes_to_the_engine_and_into_the_header_but_is_not_the_responses(
    kind: str, wire: str
) -> None:
    async with before(kind) as (server, engine):
        answer = await asked(server, request_id="mine-1")
        assert engine.last(wire) == "mine-1"
        assert answer.header(b"x-request-id") == b"mine-1"
        assert events_in(answer)[0]["response"]["id"].startswith("resp_")


@pytest.mark.shows("A5.2")
@pytest.mark.parametrize("name", ["", "a b", "é", "x" * 129, "a\nb"])
async def test_an_ill_formed_name_of_a_request_is_refused(name: str) -> None:
    async with before("vllm") as (server, engine):
        answer = await server.post("responses", {"model": "m", "input": "hi", "request_id": name})
        assert (answer.status, answer.error["param"]) == (400, "request_id")
        assert not engine.seen


@pytest.mark.shows("A5.3")
async def test_priority_and_what_reads_pictures_go_to_the_engine() -> None:
    async with before("vllm") as (server, engine):
        await asked(server, priority=-3, mm_processor_kwargs={"num_crops": 4})
        assert (engine.last("priority"), engine.last("mm_processor_kwargs")) == (-3, {"num_crops": 4})
        await asked(server)
        assert not {"priority", "mm_processor_kwargs", "request_id", "cache_salt"} & engine.seen[-1].keys()


@pytest.mark.shows("A5.4", "A5.8", "A.42")
async def test_a_salt_goes_to_the_engine_and_wins_over_the_cache_key_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with before("vllm") as (server, engine):
        await asked(server, cache_salt="salty")
        assert engine.last("cache_salt") == salt(TENANT, "salty") != "salty"
        assert not caplog.records
        with caplog.at_level(logging.WARNING):
            await asked(server, cache_salt="salty", prompt_cache_key="key")
        assert engine.last("cache_salt") == salt(TENANT, "salty")
        assert [record.message for record in caplog.records] == [
            "A request has both cache_salt and prompt_cache_key: the salt counts."
        ]
        answer = await server.post("responses", {"model": "m", "input": "hi", "cache_salt": ""})
        assert (answer.status, answer.error["param"]) == (400, "cache_salt")


@pytest.mark.shows("A5.5")
async def test_earlier_messages_come_before_the_input() -> None:
    said = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "what is f?"}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "7"},
    ]
    async with before("vllm") as (server, engine):
        made = events_in(await asked(server, previous_input_messages=said, tools=[TOOL]))[-1]["response"]
        messages = engine.last("messages")
        assert [message["role"] for message in messages] == ["system", "user", "assistant", "tool", "user"]
        assert messages[-1]["content"] == "hi"
        kept = (await server.get(f"responses/{made['id']}/input_items?order=asc")).json()["data"]
        kinds = ["message", "message", "function_call", "function_call_output", "message"]
        assert [item["type"] for item in kept] == kinds
        await asked(server, previous_response_id=made["id"], tools=[TOOL])
        assert [message["role"] for message in engine.last("messages")[:5]] == [m["role"] for m in messages]


@pytest.mark.shows("A5.5")
@pytest.mark.parametrize(
    ("given", "param"),
    [
        ([{"role": "user"}], "previous_input_messages[0].content"),
        ([{"role": "ghost", "content": "x"}], "previous_input_messages[0].role"),
        ([{"role": "user", "content": "x"}, {"content": "x"}], "previous_input_messages[1].role"),
        ([{"role": "assistant", "channel": "analysis", "content": "x"}], "previous_input_messages[0].channel"),
        ([{"role": "tool", "content": "x"}], "previous_input_messages[0].tool_call_id"),
    ],
)
async def test_earlier_messages_that_are_ill_formed_are_refused(given: Any, param: str) -> None:
    async with api(compat="off") as server:
        answer = await server.post("responses", {"model": "fake", "input": "hi", "previous_input_messages": given})
        assert (answer.status, answer.error["param"]) == (400, param), answer.body


@pytest.mark.shows("A5.6")
async def test_messages_of_the_prompt_and_of_the_answer_are_given_to_who_asks_for_them() -> None:
    async with api(compat="off") as server:
        server.engine.says(Thought("hm"), Text("so"), CallStarted(0, "f"), CallDelta(0, "{}"))
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
        told = [*made["input_messages"], *made["output_messages"]]
        told.append({"role": "tool", "tool_call_id": call["call_id"], "content": "7"})
        await server.create(previous_input_messages=told, tools=[TOOL])
        prompt = server.engine.seen[-1].prompt
        assert isinstance(prompt, ChatPrompt)
        assert len(prompt.messages) == 5
        check_response(made)


@pytest.mark.shows("A5.6")
async def test_they_are_in_a_stream_and_its_replay_alike_and_in_no_other() -> None:
    async with api(compat="off") as server:
        body = {"model": "fake", "input": "hi", "stream": True, "enable_response_messages": True}
        events = events_in(await server.post("responses", body))
        last = events[-1]["response"]
        assert last["output_messages"] == [{"role": "assistant", "content": "You said: hi"}]
        assert "output_messages" not in events[0]["response"]
        assert events[0]["response"]["input_messages"] == last["input_messages"]
        assert events_in(await server.get(f"responses/{last['id']}?stream=true")) == events
        plain = events_in(await server.post("responses", {**body, "enable_response_messages": False}))
        for event in plain:
            check_event(event)


@pytest.mark.shows("A5.3")
async def test_chat_takes_what_reads_pictures_too_and_all_of_it_is_among_the_capabilities() -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}
    async with before("vllm") as (server, engine):
        await server.post("chat/completions", {**body, "mm_processor_kwargs": {"a": 1}})
        assert engine.last("mm_processor_kwargs") == {"a": 1}
        (able,) = (await server.get("capabilities")).json()["data"]
        assert {"request_id", "mm_processor_kwargs", "priority", "cache_salt"} <= {*able["honours"]}
    async with before("vllm", compat="on") as (server, engine):
        answer = await server.post("chat/completions", {**body, "mm_processor_kwargs": {"a": 1}})
        assert (answer.status, answer.error["param"]) == (400, "mm_processor_kwargs")
        (able,) = (await server.get("capabilities")).json()["data"]
        assert not {"request_id", "mm_processor_kwargs"} & {*able["honours"]}
        assert "--compat off" in able["lacks"]["request_id"]


@pytest.mark.shows("A.42")
@pytest.mark.parametrize(("own", "key"), [(None, "key"), ("salty", None)])
async def test_the_cache_key_says_where_a_prompt_is_warm_unless_a_salt_does(own: str | None, key: str | None) -> None:
    engine = Recording()
    terms = Terms(meaning=Meaning(compat=False))
    async with (
        tcp(engine.serve) as port,
        opened(f"vllm://127.0.0.1:{port}") as client,
        serving(client, terms=terms) as service,
    ):
        asked = decoded(model="m", prompt_cache_key="key", **({} if own is None else {"cache_salt": own}))
        work = (await service.planner.settle(TENANT, asked)).prepared.work
    assert (work.cache_key, work.affinity) == (key, key or salt(TENANT, "salty"))


@pytest.mark.shows("A5.2")
async def test_a_tenant_cannot_take_the_name_of_anothers_request() -> None:
    engine = Recording()
    terms = Terms(meaning=Meaning(compat=False))
    async with (
        tcp(engine.serve) as port,
        opened(f"vllm://127.0.0.1:{port}") as client,
        serving(client, terms=terms) as service,
    ):
        for tenant in ("a", "b", "a", TENANT):
            await result(await service.responses.create(tenant, decoded(model="m", request_id="mine")))
    one, other, again, shared = [body["request_id"] for body in engine.seen]
    assert one == again != other
    assert one.startswith("mine-")
    assert shared == "mine"
