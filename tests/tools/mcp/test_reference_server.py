"""The MCP client against the MCP reference server, over every transport.

Covers `tools/mcp/response_tools.py` and `tools/mcp/servers.py`.
"""

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest
from msgspec import UNSET
from msgspec.structs import replace
from openai.types.responses.response_output_item import McpCall as OpenAiMcpCall
from openai.types.responses.response_output_item import McpListTools as OpenAiMcpListTools

from antiphon.core.deltas import Delta, Progress
from antiphon.protocol.types.items import McpCall, McpProtocolError, McpToolError
from antiphon.protocol.types.parts import InputImage, InputText
from antiphon.protocol.types.tools import McpTool, ToolNames
from antiphon.tools.mcp.response_tools import McpTools
from antiphon.tools.mcp.servers import McpSettings
from tests.tools.mcp.mcp_response import LONG_TIMEOUTS, call_tool, make_call, open_client, run_call
from tests.tools.mcp.reference_server import make_server_spec, run_reference_server

pytestmark = [pytest.mark.anyio, pytest.mark.needs("node")]

EXPECTED_TOOLS = [
    "echo", "get-annotated-message", "get-env", "get-resource-links", "get-resource-reference",
    "get-structured-content", "get-sum", "get-tiny-image", "gzip-file-as-resource",
    "toggle-simulated-logging", "toggle-subscriber-updates", "trigger-long-running-operation",
]  # fmt: skip


@pytest.fixture(scope="session", params=["streamableHttp", "sse", "stdio"])
def server_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of the server, or "" for a program over stdio."""
    if request.param == "stdio":
        yield ""
        return
    with run_reference_server(request.param, tmp_path_factory.mktemp("everything")) as url:
        yield url


@pytest.fixture
async def everything(server_url: str) -> AsyncIterator[McpTools]:
    async with open_reference_tools(server_url, LONG_TIMEOUTS) as mcp_tools:
        yield mcp_tools


@contextlib.asynccontextmanager
async def open_reference_tools(url: str, settings: McpSettings) -> AsyncIterator[McpTools]:
    async with open_client(replace(settings, servers={} if url else {"s": make_server_spec("s")})) as mcp:
        declared = McpTool(server_label="s", server_url=url or UNSET)
        mcp.check(declared, "tools[0]")
        yield mcp.begin("tenant", [declared])


def _validate(item: McpCall) -> None:
    OpenAiMcpCall.model_validate(msgspec.to_builtins(replace(item, id="mcp_1")), strict=True)


async def test_its_tools_are_listed_unchanged(everything: McpTools) -> None:
    listed = await everything.list_tools("s")
    assert {*EXPECTED_TOOLS} <= {tool.name for tool in listed.tools}
    total = next(tool for tool in listed.tools if tool.name == "get-sum")
    assert total.input_schema["required"] == ["a", "b"]
    assert total.description
    OpenAiMcpListTools.model_validate(msgspec.to_builtins(replace(listed, id="mcpl_1")), strict=True)


@pytest.mark.shows("E.4", "E.5")
async def test_a_call_returns_the_text_of_the_tool(everything: McpTools) -> None:
    item = await call_tool(everything, "get-sum", a=2, b=40)
    assert (item.status, item.output, item.error) == ("completed", "The sum of 2 and 40 is 42.", None)
    _validate(item)


async def test_structured_content_is_json(everything: McpTools) -> None:
    item = await call_tool(everything, "get-structured-content", location="Chicago")
    assert item.output is not None
    assert {"temperature", "conditions"} <= json.loads(item.output).keys()


async def test_an_image_is_a_json_line_in_the_item_and_an_image_for_the_model(everything: McpTools) -> None:
    tool_result = await run_call(everything, make_call("get-tiny-image"))
    assert isinstance(tool_result.item, McpCall)
    assert tool_result.item.output is not None
    block = next(json.loads(line) for line in tool_result.item.output.splitlines() if line.startswith("{"))
    assert (block["type"], block["mimeType"]) == ("image", "image/png")
    assert isinstance(tool_result.model_output, list)
    types = [type(part) for part in tool_result.model_output]
    assert types == [InputText, InputImage, InputText]
    image = tool_result.model_output[1]
    assert isinstance(image, InputImage)
    assert image.image_url == f"data:image/png;base64,{block['data']}"


async def test_links_and_resources_are_lines_of_json(everything: McpTools) -> None:
    links = await call_tool(everything, "get-resource-links", count=2)
    assert links.output is not None
    assert [json.loads(line)["type"] for line in links.output.splitlines()[1:]] == ["resource_link"] * 2
    reference = await call_tool(everything, "get-resource-reference")
    assert '{"type":"resource","resource":{"uri":"demo://' in (reference.output or "")


async def test_invalid_arguments_give_a_tool_error(everything: McpTools) -> None:
    item = await call_tool(everything, "get-sum", a="two")
    assert (item.status, item.output) == ("failed", None)
    assert isinstance(item.error, McpToolError)
    assert "-32602" in item.error.content[0]["text"]
    _validate(item)


async def test_an_unknown_tool_is_not_called(everything: McpTools) -> None:
    item = await call_tool(everything, "get-rich")
    assert item.error == McpProtocolError(
        code=-32602, message="The MCP server 's' has no tool 'get-rich' that may be called."
    )
    _validate(item)


async def test_a_long_call_continues_while_it_makes_progress(server_url: str) -> None:
    # On a busy machine the server may pause between two steps for longer than two seconds.
    async with open_reference_tools(server_url, replace(LONG_TIMEOUTS, call_seconds=5)) as everything:
        item = await call_tool(everything, "trigger-long-running-operation", duration=6, steps=30)
    assert item.status == "completed"


async def test_progress_is_emitted_at_most_once_a_second(everything: McpTools) -> None:
    deltas: list[Delta] = []

    async def emit(delta: Delta) -> None:
        deltas.append(delta)

    call = make_call("trigger-long-running-operation", duration=1.5, steps=30)
    started = asyncio.get_running_loop().time()
    assert (await everything.run(call, emit)).item.status == "completed"  # type: ignore[union-attr]  # a call always has an item
    assert set(deltas) == {Progress(call.key, "progress")}
    assert 1 <= len(deltas) <= 2 + asyncio.get_running_loop().time() - started  # at most one a second


async def test_a_silent_call_times_out_and_others_continue(server_url: str) -> None:
    async with (
        open_reference_tools(server_url, replace(LONG_TIMEOUTS, call_seconds=3)) as everything,
        asyncio.timeout(60),
    ):
        await everything.list_tools("s")
        slow = asyncio.create_task(call_tool(everything, "trigger-long-running-operation", duration=200, steps=1))
        quick = await call_tool(everything, message="hi")
        item = await slow
    assert quick.output == "Echo: hi"
    assert item.error == McpProtocolError(code=-32001, message="The MCP server 's' did not answer in time.")


@pytest.mark.shows("E.7")
async def test_only_allowed_tools_are_listed_and_called(server_url: str) -> None:
    settings = replace(LONG_TIMEOUTS, servers={} if server_url else {"s": make_server_spec("s")})
    async with open_client(settings) as mcp:
        url = server_url or UNSET
        named = McpTool(server_label="s", allowed_tools=["echo", "get-rich"], server_url=url)
        mcp_tools = mcp.begin("tenant", [named])
        assert [tool.name for tool in (await mcp_tools.list_tools("s")).tools] == ["echo"]
        assert (await call_tool(mcp_tools, "get-sum", a=1, b=1)).status == "failed"
        reading = McpTool(server_label="s", allowed_tools=ToolNames(read_only=True), server_url=url)
        harmless = mcp.begin("tenant", [reading])
        names = [tool.name for tool in (await harmless.list_tools("s")).tools]
        assert "get-sum" in names
        assert "toggle-simulated-logging" not in names


async def test_the_operators_allowed_tools_take_precedence(tmp_path: Path) -> None:
    spec = replace(make_server_spec("s"), allowed_tools=("echo",))
    async with open_client(replace(LONG_TIMEOUTS, servers={"s": spec})) as mcp:
        mcp_tools = mcp.begin("tenant", [McpTool(server_label="s", allowed_tools=["echo", "get-sum"])])
        assert [tool.name for tool in (await mcp_tools.list_tools("s")).tools] == ["echo"]


async def test_a_stdio_server_exits_when_its_session_closes() -> None:
    async with open_client(replace(LONG_TIMEOUTS, servers={"s": make_server_spec("s")})) as mcp:
        mcp_tools = mcp.begin("tenant", [McpTool(server_label="s")])
        before = _list_server_processes()
        await mcp_tools.list_tools("s")
        assert len(_list_server_processes()) == len(before) + 1
    assert _list_server_processes() == before


def _list_server_processes() -> list[str]:
    """Return the ids of the reference servers that this process runs."""
    pids = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = int((process / "stat").read_text().rpartition(") ")[2].split()[1])
            if parent == os.getpid() and b"server-everything" in (process / "cmdline").read_bytes():
                pids.append(process.name)
    return pids
