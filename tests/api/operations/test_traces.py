"""Tests GET /v1/responses/{id}/trace: the content of a trace, the access to it, and the bounds on retained traces.

Covers `service/operations/traces.py`.
"""

import json
from time import monotonic, time
from typing import Any

import pytest

import antiphon.tools.mcp.session  # noqa: F401 - imported here because it takes seconds
from antiphon.core.deltas import CallDelta, CallDone, CallStarted, ReasoningDelta, Text
from antiphon.engines.fake import FakeEngine
from antiphon.engines.fake.engine import FakeSettings
from antiphon.errors import EngineFailed
from antiphon.protocol.types.traces import ResponseTrace
from antiphon.service.access.api_keys import issue
from tests.api.app import ApiServer, run_api
from tests.support.asgi_client import JSON, call
from tests.tools.mcp.hostile_server import run_hostile_server as mcp_server

pytestmark = pytest.mark.anyio


async def get_trace(server: ApiServer, response_id: str) -> dict[str, Any]:
    answer = await server.get(f"responses/{response_id}/trace")
    assert answer.status == 200, answer.body
    record: dict[str, Any] = answer.json()
    assert record["object"] == "response.trace"
    assert {*record} == {*ResponseTrace.__struct_fields__}
    return record


async def test_a_trace_shows_prompt_output_and_durations() -> None:
    began = monotonic()
    async with run_api(keep_traces=10) as server:
        server.engine.says(ReasoningDelta("hm"), Text("An "), Text("answer."))
        response = await server.create(input="A question.", instructions="Be brief.", max_output_tokens=50)
        record = await get_trace(server, response["id"])
    [turn] = record["turns"]
    assert (record["id"], record["status"], record["error"], record["whole"]) == (
        response["id"],
        "completed",
        None,
        True,
    )
    assert turn["prompt"]["kind"] == "chat"
    assert [message["content"] for message in turn["prompt"]["messages"]] == ["Be brief.", "A question."]
    assert turn["sampling"]["max_tokens"] == 50
    assert turn["output"]["text"] == "An answer."
    assert turn["output"]["thought"] == "hm"
    assert turn["finish"] == "stop"
    assert turn["usage"]["output_tokens"] == response["usage"]["output_tokens"]
    assert 0 <= turn["waited"] <= turn["first_token"] <= turn["seconds"] <= record["seconds"]
    assert record["seconds"] <= monotonic() - began + 0.001  # it is rounded


@pytest.mark.parametrize(("level", "kind"), [("text", "text"), ("tokens", "text"), ("harmony", "tokens")])
async def test_a_rendered_prompt_is_shown_as_sent_to_the_engine(level: Any, kind: str) -> None:
    async with run_api(engine=FakeEngine(FakeSettings(level=level)), keep_traces=10) as server:
        response = await server.create(input="A question.")
        [turn] = (await get_trace(server, response["id"]))["turns"]
    assert turn["prompt"]["kind"] == kind
    assert "A question." in turn["prompt"]["text"] if kind == "text" else len(turn["prompt"]["tokens"]) > 10
    assert bool(turn["output"].get("tokens")) is (level != "text")


async def test_every_turn_and_tool_call_has_its_own_timing() -> None:
    async with mcp_server() as mcp, run_api(keep_traces=10) as server:
        server.engine.says(CallStarted(0, "s__echo"), CallDelta(0, '{"message": "hey"}'), CallDone(0))
        server.engine.says(Text("Done."))
        tools = [{"type": "mcp", "server_label": "s", "server_url": mcp.url("good"), "require_approval": "never"}]
        response = await server.create(tools=tools)
        record = await get_trace(server, response["id"])
    first, second = record["turns"]
    [tool] = record["tools"]
    assert first["output"]["calls"][0]["arguments"] == '{"message": "hey"}'
    assert "hey" in json.dumps(second["prompt"])
    assert (tool["kind"], tool["name"], tool["server"], tool["outcome"]) == ("mcp", "echo", "s", "completed")
    assert tool["arguments"] == '{"message": "hey"}'
    assert first["began"] <= tool["began"] <= second["began"]
    assert tool["seconds"] >= 0


async def test_the_trace_of_a_failed_response_shows_the_error() -> None:
    async with run_api(keep_traces=10) as server:
        server.engine.says(Text("An "), Text("ans"))
        server.engine.fails(EngineFailed("It died."), after=1)
        events = (await server.post("responses", {"model": "fake", "input": "hi", "stream": True})).body
        response = json.loads(events.split(b"data: ")[1].split(b"\n")[0])["response"]
        record = await get_trace(server, response["id"])
    assert record["status"] == "failed"
    assert record["turns"][0]["error"] == record["error"] is not None
    assert record["turns"][0]["output"]["text"] == "An "


async def test_traces_are_disabled_by_default_and_the_error_names_the_flag() -> None:
    async with run_api() as server:
        response = await server.create()
        answer = await server.get(f"responses/{response['id']}/trace")
    assert answer.status == 404
    assert "--keep-traces" in answer.error["message"]


async def test_only_the_latest_traces_are_retained_and_deleted_ones_removed() -> None:
    async with run_api(keep_traces=3) as server:
        response_ids = [(await server.create())["id"] for _ in range(5)]
        statuses = [(await server.get(f"responses/{response_id}/trace")).status for response_id in response_ids]
        assert statuses == [404, 404, 200, 200, 200]
        assert (await server.delete(f"responses/{response_ids[-1]}")).status == 200
        gone = await server.get(f"responses/{response_ids[-1]}/trace")
        unknown = await server.get("responses/resp_nothing/trace")
    assert gone.status == 404
    assert gone.error["message"].replace(response_ids[-1], "X") == unknown.error["message"].replace("resp_nothing", "X")


async def test_trace_bytes_are_bounded_and_oversized_traces_omit_their_text() -> None:
    async with run_api(keep_traces=1000) as server:
        traces = server.app.lifecycle.components.observability.traces  # type: ignore[attr-defined]  # set by build_app
        traces._max_bytes = 100_000
        record = await get_trace(server, (await server.create(input="x" * 13_000))["id"])
        assert record["whole"] is False
        assert record["turns"][0]["prompt"] is None
        assert record["turns"][0]["usage"]["input_tokens"] > 0
        for _ in range(30):
            await server.create(input="x" * 5000)
        assert 5 < len(traces._bodies) < 20
        assert traces._bytes == sum(map(len, traces._bodies.values())) <= 100_000


async def issue_key_header(server: ApiServer, tenant: str, *scopes: str) -> tuple[bytes, bytes]:
    """Issue an API key and return its `Authorization` header."""
    row, key = issue(tenant, "", scopes, time(), None)
    await server.app.lifecycle.components.store.add_api_key(row)  # type: ignore[attr-defined]  # set by build_app
    return b"authorization", f"Bearer {key}".encode()


async def test_traces_are_limited_to_the_own_tenant_and_the_admin_scope() -> None:
    async with run_api(keep_traces=10) as server:
        operator = await issue_key_header(server, "one", "inference", "admin")
        client = await issue_key_header(server, "one", "inference")
        other = await issue_key_header(server, "two", "inference", "admin")
        body = [b'{"model": "fake", "input": "hi"}']
        response_id = (await call(server.app, "POST", "/v1/responses", JSON, client, body=body)).json()["id"]
        path = f"/v1/responses/{response_id}/trace"
        assert (await call(server.app, "GET", path, operator)).status == 200
        assert (await call(server.app, "GET", path, client)).status == 403
        assert (await call(server.app, "GET", path)).status == 401
        foreign = await call(server.app, "GET", path, other)
        unknown = await call(server.app, "GET", "/v1/responses/resp_nothing/trace", other)
    assert (foreign.status, unknown.status) == (404, 404)
    assert foreign.error["message"].replace(response_id, "X") == unknown.error["message"].replace("resp_nothing", "X")
