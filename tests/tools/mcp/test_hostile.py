"""Hostile servers: whatever they do, a list or a call ends in time with a word about it. The drill has all of them."""

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

from antiphon.egress import Egress
from antiphon.errors import McpFailed
from antiphon.protocol.types.builtin_items import McpHttpError, McpProtocolError
from antiphon.protocol.types.tools import McpTool
from tests.egress.hosts import hosting, saying
from tests.tools.mcp.hostile_server import Hostile, serving
from tests.tools.mcp.mcp_response import HASTY, PATIENT, called, client, tools

pytestmark = pytest.mark.anyio

SECRET = "canary-8d1f"
GREETED = ["garbage", "half_json", "silent", "gone", "wrong_id", "page", "null", "nothing", "deep", "asks_back"]


@pytest.fixture
async def hostile() -> AsyncIterator[Hostile]:
    async with asyncio.timeout(200), serving() as server:
        yield server


@pytest.mark.parametrize("stage", ["greet", "list", "call"])
async def test_every_stage_ends_in_time_with_an_error(hostile: Hostile, stage: str) -> None:
    settings = replace(HASTY, list_seconds=1.0)
    async with client(settings) as mcp:
        labels = [f"{name}.{stage}" for name in GREETED]
        some = mcp.begin("t", [McpTool(server_label=label, server_url=hostile.url(label)) for label in labels])
        await called(mcp.begin("t", [McpTool(server_label="s", server_url=hostile.url("good"))]), message="warm")
        async with asyncio.timeout(100):  # the drill has a stopwatch
            items = await asyncio.gather(*(called(some, label=label, message="hi") for label in labels))
    for item in items:
        assert item.status == "failed"
        assert isinstance(item.error, McpProtocolError | McpHttpError)
        assert item.error.message.startswith("The MCP server '")
    assert all(times == 1 for times in hostile.calls.values())


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("a_million_tools", "too many pieces"),
        ("many_properties", "too many pieces"),
        ("pages_without_end", "more than 100 pages"),
        ("pages_full_of_tools", "more than 512 tools"),
        ("no_schema", "the protocol does not know"),
    ],
)
async def test_a_list_that_is_too_much_is_refused_and_says_so(hostile: Hostile, name: str, reason: str) -> None:
    async with tools(hostile.url(f"{name}.list")) as some:
        with pytest.raises(McpFailed, match=reason):
            await some.list("s")


@pytest.mark.parametrize("name", ["huge_schema", "schema_in_circles", "schema_elsewhere"])
async def test_a_tool_with_an_unfit_schema_is_left_out_and_logged(
    hostile: Hostile, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with tools(hostile.url(f"{name}.list")) as some:
        assert (await some.list("s")).tools == []
    assert "is left out" in caplog.text


async def test_a_tool_that_was_renamed_since_it_was_listed_is_not_called(hostile: Hostile) -> None:
    async with tools(hostile.url("renames_its_tools.list")) as some:
        name = (await some.list("s")).tools[0].name
        item = await called(some, name)
        assert item.status == "failed"
        assert not hostile.calls


async def test_of_two_tools_with_one_name_the_first_counts(hostile: Hostile) -> None:
    async with tools(hostile.url("one_name_twice.list")) as some:
        assert [[*tool.input_schema["properties"]] for tool in (await some.list("s")).tools] == [["message"]]


async def test_progress_keeps_a_call_alive_but_not_for_ever(hostile: Hostile) -> None:
    async with tools(hostile.url("progresses_forever.call"), replace(HASTY, call_seconds=2, longest_seconds=3)) as some:
        await some.list("s")
        began = asyncio.get_running_loop().time()
        item = await called(some, message="hi")
        assert item.status == "failed"
        assert asyncio.get_running_loop().time() - began > 2.4


async def test_an_output_that_is_too_long_is_cut_and_says_so(hostile: Hostile) -> None:
    async with tools(hostile.url("long_text.call"), replace(PATIENT, output_bytes=100)) as some:
        output = (await called(some, message="hi")).output or ""
    assert output.startswith("long long ")
    assert output.endswith("[The output is cut off here: it has 5,000,000 bytes, and at most 100 are passed on.]")


async def test_a_call_that_is_redirected_is_not_sent_again(hostile: Hostile) -> None:
    async with tools(hostile.url("redirect_in_circles.call")) as some:
        item = await called(some, message="once")
        assert item.error == McpHttpError(code=307, message="The MCP server 's' answered with the HTTP status 307.")
    assert list(hostile.calls.values()) == [1]


@pytest.mark.parametrize("name", ["redirect_elsewhere", "redirect_found", "unauthorized"])
@pytest.mark.parametrize("stage", ["greet", "list", "call"])
async def test_a_redirect_or_a_hint_to_another_origin_is_not_followed(stage: str, name: str) -> None:
    async with hosting(saying(b"{}")) as canary, serving(Hostile(f"http://127.0.0.1:{canary.port}")) as hostile:
        async with tools(hostile.url(f"{name}.{stage}"), authorization=SECRET) as some:
            item = await called(some, message="hi")
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
async def test_secrets_that_a_server_repeats_are_shown_nowhere(
    hostile: Hostile, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    headers = {"X-Api-Key": f"{SECRET}-key"}
    async with tools(hostile.url(name), authorization=f"Bearer {SECRET}", headers=headers) as some:
        item = await called(some, message="hi")
        assert SECRET not in repr(item)
        assert SECRET not in repr(some._servers)
    assert SECRET not in caplog.text


async def test_a_name_that_leads_to_a_private_address_is_not_connected_to(hostile: Hostile) -> None:
    async def resolve(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    async with client(PATIENT, Egress(resolve=resolve)) as mcp:
        declared = McpTool(server_label="s", server_url=f"http://mcp.example:{hostile.port}/good")
        mcp.check(declared, "tools[0]")  # which asks nobody
        with pytest.raises(McpFailed, match=r"leads to a loopback address.*--allow-egress mcp\.example"):
            await mcp.begin("t", [declared]).list("s")


async def test_a_name_that_changes_its_mind_is_vetted_for_every_connection(hostile: Hostile) -> None:
    answers = iter([["93.184.215.14"], ["127.0.0.1"]])

    async def resolve(host: str, port: int) -> list[str]:
        return next(answers)

    settings = replace(HASTY, at_home=False, list_seconds=0.5)
    async with client(settings, Egress(resolve=resolve)) as mcp:
        declared = McpTool(server_label="s", server_url=f"http://mcp.example:{hostile.port}/good")
        for _ in range(2):
            with pytest.raises(McpFailed):
                await mcp.begin("t", [declared]).list("s")


async def test_proxies_of_the_environment_are_left_alone(hostile: Hostile, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with tools(hostile.url("good")) as some:
        assert (await called(some, message="hi")).output == "hi"
