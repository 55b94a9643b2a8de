"""Hostile MCP servers: every list and every call ends in time with an error. The drill covers all behaviours.

Covers `egress/mcp_transport.py` and `tools/mcp/transports.py`.
"""

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

from antiphon.egress import EgressClient
from antiphon.errors import McpFailed
from antiphon.protocol.types.items import McpHttpError, McpProtocolError
from antiphon.protocol.types.tools import McpTool
from tests.egress.hosts import respond_with, run_host
from tests.tools.mcp.hostile_server import HostileServer, run_hostile_server
from tests.tools.mcp.mcp_response import LONG_TIMEOUTS, SHORT_TIMEOUTS, call_tool, open_client, open_tools

pytestmark = pytest.mark.anyio

SECRET = "canary-8d1f"
BEHAVIOURS = ["garbage", "half_json", "silent", "gone", "wrong_id", "page", "null", "nothing", "deep", "asks_back"]


@pytest.fixture
async def hostile_server() -> AsyncIterator[HostileServer]:
    async with asyncio.timeout(200), run_hostile_server() as server:
        yield server


@pytest.mark.parametrize("stage", ["greet", "list", "call"])
async def test_hostile_behaviour_at_every_stage_ends_in_time_with_an_error(
    hostile_server: HostileServer, stage: str
) -> None:
    settings = replace(SHORT_TIMEOUTS, list_seconds=1.0)
    async with open_client(settings) as mcp:
        labels = [f"{name}.{stage}" for name in BEHAVIOURS]
        mcp_tools = mcp.begin(
            "t", [McpTool(server_label=label, server_url=hostile_server.url(label)) for label in labels]
        )
        await call_tool(
            mcp.begin("t", [McpTool(server_label="s", server_url=hostile_server.url("good"))]), message="warm"
        )
        async with asyncio.timeout(100):  # the drill measures the exact time
            items = await asyncio.gather(*(call_tool(mcp_tools, label=label, message="hi") for label in labels))
    for item in items:
        assert item.status == "failed"
        assert isinstance(item.error, McpProtocolError | McpHttpError)
        assert item.error.message.startswith("The MCP server '")
    assert all(times == 1 for times in hostile_server.calls.values())


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("a_million_tools", "too many pieces"),
        ("many_properties", "too many pieces"),
        ("half_body", "closed the connection in the middle of its response"),
        ("pages_without_end", "more than 100 pages"),
        ("pages_full_of_tools", "more than 512 tools"),
        ("no_schema", "the protocol does not know"),
    ],
)
async def test_an_oversized_or_invalid_list_is_rejected_with_a_reason(
    hostile_server: HostileServer, name: str, reason: str
) -> None:
    async with open_tools(hostile_server.url(f"{name}.list")) as mcp_tools:
        with pytest.raises(McpFailed, match=reason):
            await mcp_tools.list_tools("s")


@pytest.mark.parametrize("name", ["huge_schema", "schema_in_circles", "schema_elsewhere"])
async def test_a_tool_with_an_unsuitable_schema_is_omitted_and_logged(
    hostile_server: HostileServer, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_tools(hostile_server.url(f"{name}.list")) as mcp_tools:
        assert (await mcp_tools.list_tools("s")).tools == []
    assert "is left out" in caplog.text


async def test_a_tool_that_was_renamed_since_it_was_listed_is_not_called(hostile_server: HostileServer) -> None:
    async with open_tools(hostile_server.url("renames_its_tools.list")) as mcp_tools:
        name = (await mcp_tools.list_tools("s")).tools[0].name
        item = await call_tool(mcp_tools, name)
        assert item.status == "failed"
        assert not hostile_server.calls


async def test_the_first_of_two_tools_with_one_name_is_used(hostile_server: HostileServer) -> None:
    async with open_tools(hostile_server.url("one_name_twice.list")) as mcp_tools:
        assert [[*tool.input_schema["properties"]] for tool in (await mcp_tools.list_tools("s")).tools] == [["message"]]


async def test_progress_extends_a_call_up_to_a_limit(hostile_server: HostileServer) -> None:
    async with open_tools(
        hostile_server.url("progresses_forever.call"), replace(SHORT_TIMEOUTS, call_seconds=2, longest_seconds=3)
    ) as mcp_tools:
        await mcp_tools.list_tools("s")
        began = asyncio.get_running_loop().time()
        item = await call_tool(mcp_tools, message="hi")
        assert item.status == "failed"
        assert asyncio.get_running_loop().time() - began > 2.4


async def test_a_long_output_is_truncated_with_a_notice(hostile_server: HostileServer) -> None:
    async with open_tools(hostile_server.url("long_text.call"), replace(LONG_TIMEOUTS, output_bytes=100)) as mcp_tools:
        output = (await call_tool(mcp_tools, message="hi")).output or ""
    assert output.startswith("long long ")
    assert output.endswith("[The output is cut off here: it has 5,000,000 bytes, and at most 100 are passed on.]")


async def test_a_redirected_call_is_not_sent_again(hostile_server: HostileServer) -> None:
    async with open_tools(hostile_server.url("redirect_in_circles.call")) as mcp_tools:
        item = await call_tool(mcp_tools, message="once")
        assert item.error == McpHttpError(code=307, message="The MCP server 's' answered with the HTTP status 307.")
    assert list(hostile_server.calls.values()) == [1]


@pytest.mark.parametrize("name", ["redirect_elsewhere", "redirect_found", "unauthorized"])
@pytest.mark.parametrize("stage", ["greet", "list", "call"])
async def test_a_redirect_or_auth_hint_to_another_origin_is_not_followed(stage: str, name: str) -> None:
    async with (
        run_host(respond_with(b"{}")) as canary,
        run_hostile_server(HostileServer(f"http://127.0.0.1:{canary.port}")) as hostile_server,
    ):
        async with open_tools(hostile_server.url(f"{name}.{stage}"), authorization=SECRET) as mcp_tools:
            item = await call_tool(mcp_tools, message="hi")
        assert isinstance(item.error, McpHttpError)
        assert item.error.code in (401, 302, 308)
        assert canary.connects == 0


@pytest.mark.shows("E.8")
@pytest.mark.parametrize(
    "name",
    [
        "repeats_secrets.greet", "repeats_secrets_in_rpc.greet", "repeats_secrets_in_rpc.list", "repeats_secrets.call",
        "repeats_secrets_in_rpc.call", "repeats_secrets_in_a_result.call", "repeats_secrets_in_a_failure.call",
    ],
)  # fmt: skip
async def test_secrets_that_a_server_echoes_are_not_shown(
    hostile_server: HostileServer, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    headers = {"X-Api-Key": f"{SECRET}-key"}
    async with open_tools(hostile_server.url(name), authorization=f"Bearer {SECRET}", headers=headers) as mcp_tools:
        item = await call_tool(mcp_tools, message="hi")
        assert SECRET not in repr(item)
        assert SECRET not in repr(mcp_tools._servers)
    assert SECRET not in caplog.text


async def test_a_name_that_resolves_to_a_private_address_is_rejected(hostile_server: HostileServer) -> None:
    async def resolve(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    async with open_client(LONG_TIMEOUTS, EgressClient(resolve=resolve)) as mcp:
        declared = McpTool(server_label="s", server_url=f"http://mcp.example:{hostile_server.port}/good")
        mcp.check(declared, "tools[0]")  # resolves no name
        with pytest.raises(McpFailed, match=r"leads to a loopback address.*--allow-egress mcp\.example"):
            await mcp.begin("t", [declared]).list_tools("s")


async def test_a_name_is_resolved_and_checked_for_every_connection(hostile_server: HostileServer) -> None:
    answers = iter([["93.184.215.14"], ["127.0.0.1"]])

    async def resolve(host: str, port: int) -> list[str]:
        return next(answers)

    settings = replace(SHORT_TIMEOUTS, at_home=False, list_seconds=0.5)
    async with open_client(settings, EgressClient(resolve=resolve)) as mcp:
        declared = McpTool(server_label="s", server_url=f"http://mcp.example:{hostile_server.port}/good")
        for _ in range(2):
            with pytest.raises(McpFailed):
                await mcp.begin("t", [declared]).list_tools("s")


async def test_proxy_environment_variables_are_ignored(
    hostile_server: HostileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with open_tools(hostile_server.url("good")) as mcp_tools:
        assert (await call_tool(mcp_tools, message="hi")).output == "hi"
