"""Tests /v1/antiphon/mcp: an MCP server is tried without a model, under the rules of responses that declare it.

Covers `service/operations/mcp_trials.py`, `transport/operating/mcp.py` and `protocol/bodies/mcp.py`.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from antiphon.config.rate_limits import QuotaSettings
from antiphon.config.tool_settings import McpServerSpec
from tests.api.app import ApiServer, Client, run_api
from tests.support.asgi_client import DEADLINE, AsgiResponse, Header, call
from tests.tools.mcp.hostile_server import run_hostile_server
from tests.tools.mcp.sum_server import ORIGINAL_DESCRIPTION, SumServer, run_sum_server
from tests.transport.middleware.test_rate_limiting import run_limited

pytestmark = pytest.mark.anyio

ADD = {"name": "add", "arguments": {"a": 2, "b": 40}}
SECRET = "a-long-secret-of-the-client"


@pytest.fixture
def sums() -> Iterator[SumServer]:
    with run_sum_server() as sums:
        yield sums


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with run_api() as server:
        yield server


def declare(url: str, **fields: Any) -> dict[str, Any]:
    return {"type": "mcp", "server_label": "s", "server_url": url, **fields}


async def list_tools(server: ApiServer, declared: dict[str, Any], *headers: Header) -> AsgiResponse:
    return await server.post("antiphon/mcp/tools", {"server": declared}, *headers)


async def call_tool(server: ApiServer, declared: dict[str, Any], **fields: Any) -> AsgiResponse:
    return await server.post("antiphon/mcp/call", {"server": declared, **ADD, **fields})


@pytest.mark.parametrize(("rule", "asked"), [
    ("always", ["add"]), ("never", []), (None, []), ({"never": {"tool_names": ["add"]}}, []),
    ({"always": {"tool_names": ["add"]}}, ["add"]), ({"never": {"tool_names": ["other"]}}, ["add"]),
])  # fmt: skip
@pytest.mark.shows("H7.23")
async def test_tools_are_listed_with_approvals_and_bounds(
    server: ApiServer, sums: SumServer, rule: Any, asked: list[str]
) -> None:
    body = (await list_tools(server, declare(sums.url, require_approval=rule))).json()
    assert (body["object"], body["server_label"], body["needs_approval"]) == ("mcp.tools", "s", asked)
    [tool] = body["tools"]
    assert (tool["name"], tool["description"]) == ("add", ORIGINAL_DESCRIPTION)
    assert tool["input_schema"]["required"] == ["a", "b"]
    assert body["bounds"] == {
        "list_seconds": 30.0, "call_seconds": 60.0, "longest_seconds": 600.0, "tools": 512, "list_bytes": 4 << 20,
        "answer_bytes": 8 << 20, "output_bytes": 1 << 20, "calls_at_once": 16,
    }  # fmt: skip


async def test_a_list_is_never_old(server: ApiServer, sums: SumServer) -> None:
    await list_tools(server, declare(sums.url))
    sums.describe("Adds more.")
    assert (await list_tools(server, declare(sums.url))).json()["tools"][0]["description"] == "Adds more."


@pytest.mark.shows("H7.23")
async def test_a_call_gives_the_item_of_a_response(server: ApiServer, sums: SumServer) -> None:
    item = (await call_tool(server, declare(sums.url))).json()
    assert item.pop("id").startswith("mcp_")
    assert item == {
        "type": "mcp_call", "status": "completed", "server_label": "s", "name": "add", "arguments": '{"a":2,"b":40}',
        "output": "2 + 40 = 42", "error": None, "approval_request_id": None,
    }  # fmt: skip
    assert sums.calls == [(2, 40)]
    metrics = (await call(server.app, "GET", "/metrics")).body.decode()
    assert 'antiphon_tool_calls_total{tool="mcp",outcome="completed"} 1' in metrics


async def test_an_error_of_the_tool_is_in_the_item(server: ApiServer, sums: SumServer) -> None:
    item = (await call_tool(server, declare(sums.url), arguments={"a": "no number"})).json()
    assert (item["status"], item["output"]) == ("failed", None)
    assert item["error"]["type"] == "mcp_tool_execution_error"


@pytest.mark.shows("H7.23")
async def test_a_call_that_needs_an_approval_is_not_made_without_it(server: ApiServer, sums: SumServer) -> None:
    declared = declare(sums.url, require_approval="always")
    answer = await call_tool(server, declared)
    assert (answer.status, answer.error["param"]) == (400, "approve")
    assert sums.calls == []
    assert (await call_tool(server, declared, approve=True)).json()["status"] == "completed"


async def test_the_rules_of_the_operator_apply(sums: SumServer) -> None:
    spec = McpServerSpec(label="s", url=sums.url, require_approval="always")
    async with run_api(mcp=(spec,)) as server:
        declared = {"type": "mcp", "server_label": "s", "require_approval": "never"}
        assert (await list_tools(server, declared)).json()["needs_approval"] == ["add"]
        assert (await call_tool(server, declared)).error["param"] == "approve"


@pytest.mark.parametrize(("fields", "param"), [
    ({"server": {"type": "mcp", "server_label": "s"}}, "server.server_url"),
    ({"server": {"type": "mcp", "server_url": "https://example.com/mcp"}}, "server.server_label"),
    ({"server": declare("http://10.0.0.1/mcp")}, "server.server_url"),
    ({"server": declare("http://169.254.169.254/latest")}, "server.server_url"),
    ({"server": declare("file:///etc/passwd")}, "server.server_url"),
    ({"server": declare("https://example.com/mcp", headers={"Host": "x"})}, "server.headers"),
    ({"server": declare("https://example.com/mcp", connector_id="c")}, "server.connector_id"),
    ({"server": {"type": "function", "name": "f"}}, "server.type"),
    ({}, "server"),
])  # fmt: skip
@pytest.mark.shows("H7.23")
async def test_a_declaration_is_checked_as_in_a_response(server: ApiServer, fields: Any, param: str) -> None:
    for path in ("tools", "call"):
        answer = await server.post(f"antiphon/mcp/{path}", {**ADD, **fields} if path == "call" else fields)
        assert (answer.status, answer.error["param"]) == (400, param), answer.body


@pytest.mark.parametrize(("fields", "param"), [
    ({"name": "subtract"}, "name"), ({"name": ""}, "name"), ({"name": None}, "name"),
    ({"arguments": [1, 2]}, "arguments"), ({"arguments": "{}"}, "arguments"), ({"approve": "yes"}, "approve"),
])  # fmt: skip
async def test_a_bad_call_is_rejected(server: ApiServer, sums: SumServer, fields: Any, param: str) -> None:
    answer = await call_tool(server, declare(sums.url), **fields)
    assert (answer.status, answer.error["param"]) == (400, param)
    assert sums.calls == []


async def test_tools_that_are_not_allowed_are_neither_listed_nor_called(server: ApiServer, sums: SumServer) -> None:
    declared = declare(sums.url, allowed_tools=["other"])
    assert (await list_tools(server, declared)).json()["tools"] == []
    assert (await call_tool(server, declared)).error["param"] == "name"


@pytest.mark.shows("H7.23")
async def test_failures_of_the_server_are_typed(server: ApiServer) -> None:
    async with run_hostile_server() as hostile:
        declared = declare(hostile.url("unauthorized.list"), authorization=SECRET)
        answer = await list_tools(server, declared)
        assert (answer.status, answer.error["type"]) == (424, "external_connector_error")
        assert SECRET not in answer.body.decode()
        declared = declare(hostile.url("repeats_secrets_in_a_failure.call"), authorization=SECRET)
        item = (await call_tool(server, declared, name="echo", arguments={"message": "hi"})).json()
        assert item["status"] == "failed"
        assert SECRET not in str(item)


async def test_a_key_is_needed_and_loopback_is_refused_where_there_are_keys(sums: SumServer) -> None:
    async with run_api(api_key=["sk-one"]) as server:
        for path in ("tools", "call"):
            assert (await server.post(f"antiphon/mcp/{path}", {"server": declare(sums.url)})).status == 401
        answer = await list_tools(server, declare(sums.url), (b"authorization", b"Bearer sk-one"))
        assert (answer.status, answer.error["param"]) == (400, "server.server_url")


async def test_requests_are_charged(sums: SumServer) -> None:
    async with run_limited(quota=QuotaSettings(requests_per_minute=2)) as server:
        assert (await list_tools(server, declare(sums.url))).status == 200
        assert (await call_tool(server, declare(sums.url))).status == 200
        answer = await list_tools(server, declare(sums.url))
        assert (answer.status, answer.error["code"]) == (429, "rate_limit_exceeded")


async def test_a_call_ends_when_its_client_disconnects(server: ApiServer, sums: SumServer) -> None:
    sums.released.clear()
    client = Client(server.app, "POST", "antiphon/mcp/call", server=declare(sums.url), **ADD)
    assert await asyncio.to_thread(sums.called.wait, DEADLINE)
    client.disconnect()
    async with asyncio.timeout(DEADLINE):
        await client.request
    assert client.messages.empty()
    assert sums.calls == [(2, 40)]
