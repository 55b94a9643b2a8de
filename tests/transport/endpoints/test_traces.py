"""GET /v1/responses/{id}/trace: what operators see of a response, who sees it, and how much is kept."""

import json
from time import time
from typing import Any

import pytest

import antiphon.tools.mcp.session  # noqa: F401 - here, since that takes seconds
from antiphon.core.deltas import CallDelta, CallDone, CallStarted, Text, Thought
from antiphon.engines.fake import FakeEngine
from antiphon.engines.fake.engine import FakeSettings
from antiphon.errors import EngineFailed
from antiphon.protocol.types.traces import ResponseTrace
from antiphon.service.access.api_key_format import issue
from tests.api.app import Api, api
from tests.support.asgi_client import JSON, call
from tests.tools.mcp.hostile_server import serving as mcp_server

pytestmark = pytest.mark.anyio


async def trace(server: Api, response_id: str) -> dict[str, Any]:
    answer = await server.get(f"responses/{response_id}/trace")
    assert answer.status == 200, answer.body
    told: dict[str, Any] = answer.json()
    assert told["object"] == "response.trace"
    assert {*told} == {*ResponseTrace.__struct_fields__}
    return told


async def test_it_shows_what_the_engine_got_and_said_and_how_long_that_took() -> None:
    async with api(keep_traces=10) as server:
        server.engine.says(Thought("hm"), Text("An "), Text("answer."))
        made = await server.create(input="A question.", instructions="Be brief.", max_output_tokens=50)
        told = await trace(server, made["id"])
    [turn] = told["turns"]
    assert (told["id"], told["status"], told["error"], told["whole"]) == (made["id"], "completed", None, True)
    assert turn["prompt"]["kind"] == "chat"
    assert [message["content"] for message in turn["prompt"]["messages"]] == ["Be brief.", "A question."]
    assert turn["sampling"]["max_tokens"] == 50
    assert turn["output"]["text"] == "An answer."
    assert turn["output"]["thought"] == "hm"
    assert turn["finish"] == "stop"
    assert turn["usage"]["output_tokens"] == made["usage"]["output_tokens"]
    assert 0 <= turn["waited"] <= turn["first_token"] <= turn["seconds"] <= told["seconds"] < 10


@pytest.mark.parametrize(("level", "kind"), [("text", "text"), ("tokens", "text"), ("harmony", "tokens")])
async def test_a_prompt_that_we_render_is_shown_as_it_went_out(level: Any, kind: str) -> None:
    async with api(engine=FakeEngine(FakeSettings(level=level)), keep_traces=10) as server:
        made = await server.create(input="A question.")
        [turn] = (await trace(server, made["id"]))["turns"]
    assert turn["prompt"]["kind"] == kind
    assert "A question." in turn["prompt"]["text"] if kind == "text" else len(turn["prompt"]["tokens"]) > 10
    assert bool(turn["output"].get("tokens")) is (level != "text")


async def test_each_turn_and_each_tool_has_its_own_times() -> None:
    async with mcp_server() as mcp, api(keep_traces=10) as server:
        server.engine.says(CallStarted(0, "s__echo"), CallDelta(0, '{"message": "hey"}'), CallDone(0))
        server.engine.says(Text("Done."))
        tools = [{"type": "mcp", "server_label": "s", "server_url": mcp.url("good"), "require_approval": "never"}]
        made = await server.create(tools=tools)
        told = await trace(server, made["id"])
    first, second = told["turns"]
    [tool] = told["tools"]
    assert first["output"]["calls"][0]["arguments"] == '{"message": "hey"}'
    assert "hey" in json.dumps(second["prompt"])
    assert (tool["kind"], tool["name"], tool["server"], tool["outcome"]) == ("mcp", "echo", "s", "completed")
    assert tool["arguments"] == '{"message": "hey"}'
    assert first["began"] <= tool["began"] <= second["began"]
    assert tool["seconds"] >= 0


async def test_one_that_failed_says_where() -> None:
    async with api(keep_traces=10) as server:
        server.engine.says(Text("An "), Text("ans"))
        server.engine.fails(EngineFailed("It died."), after=1)
        events = (await server.post("responses", {"model": "fake", "input": "hi", "stream": True})).body
        made = json.loads(events.split(b"data: ")[1].split(b"\n")[0])["response"]
        told = await trace(server, made["id"])
    assert told["status"] == "failed"
    assert told["turns"][0]["error"] == told["error"] is not None
    assert told["turns"][0]["output"]["text"] == "An "


async def test_without_the_switch_nothing_is_kept_and_that_is_said() -> None:
    async with api() as server:
        made = await server.create()
        answer = await server.get(f"responses/{made['id']}/trace")
    assert answer.status == 404
    assert "--keep-traces" in answer.error["message"]


async def test_the_last_ones_are_kept_and_a_deleted_one_is_not() -> None:
    async with api(keep_traces=3) as server:
        made = [(await server.create())["id"] for _ in range(5)]
        found = [(await server.get(f"responses/{one}/trace")).status for one in made]
        assert found == [404, 404, 200, 200, 200]
        assert (await server.delete(f"responses/{made[-1]}")).status == 200
        gone = await server.get(f"responses/{made[-1]}/trace")
        unknown = await server.get("responses/resp_nothing/trace")
    assert gone.status == 404
    assert gone.error["message"].replace(made[-1], "X") == unknown.error["message"].replace("resp_nothing", "X")


async def test_bytes_are_bounded_and_of_what_is_too_long_the_words_are_left_out() -> None:
    async with api(keep_traces=1000) as server:
        bounded = server.app.lifecycle.parts.observing.traces  # type: ignore[attr-defined]  # as build_app makes it
        bounded._most_bytes = 100_000
        told = await trace(server, (await server.create(input="x" * 13_000))["id"])
        assert told["whole"] is False
        assert told["turns"][0]["prompt"] is None
        assert told["turns"][0]["usage"]["input_tokens"] > 0
        for _ in range(30):
            await server.create(input="x" * 5000)
        assert 5 < len(bounded._kept) < 20
        assert bounded._bytes == sum(map(len, bounded._kept.values())) <= 100_000


async def issued(server: Api, tenant: str, *scopes: str) -> tuple[bytes, bytes]:
    """A header with a key."""
    row, key = issue(tenant, "", scopes, time(), None)
    await server.app.lifecycle.parts.store.add_api_key(row)  # type: ignore[attr-defined]  # as build_app makes it
    return b"authorization", f"Bearer {key}".encode()


async def test_a_tenant_sees_its_own_alone_and_a_key_without_the_scope_nothing() -> None:
    async with api(keep_traces=10) as server:
        operator = await issued(server, "one", "inference", "admin")
        client = await issued(server, "one", "inference")
        other = await issued(server, "two", "inference", "admin")
        body = [b'{"model": "fake", "input": "hi"}']
        made = (await call(server.app, "POST", "/v1/responses", JSON, client, body=body)).json()["id"]
        path = f"/v1/responses/{made}/trace"
        assert (await call(server.app, "GET", path, operator)).status == 200
        assert (await call(server.app, "GET", path, client)).status == 403
        assert (await call(server.app, "GET", path)).status == 401
        foreign = await call(server.app, "GET", path, other)
        unknown = await call(server.app, "GET", "/v1/responses/resp_nothing/trace", other)
    assert (foreign.status, unknown.status) == (404, 404)
    assert foreign.error["message"].replace(made, "X") == unknown.error["message"].replace("resp_nothing", "X")
