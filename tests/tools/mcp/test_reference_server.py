"""The reference server of MCP, over each of the transports."""

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

from antiphon.core.deltas import Delta, Stage
from antiphon.protocol.types.builtin_items import McpProtocolError, McpToolError
from antiphon.protocol.types.items import InputImage, InputText, McpCall
from antiphon.protocol.types.tools import McpTool, ToolNames
from antiphon.tools.mcp.client import McpSettings
from antiphon.tools.mcp.response_tools import McpTools
from tests.tools.mcp.mcp_response import PATIENT, called, client, use, used
from tests.tools.mcp.reference_server import program, serving

pytestmark = [pytest.mark.anyio, pytest.mark.needs("node")]

EVERYTHING = [
    "echo", "get-annotated-message", "get-env", "get-resource-links", "get-resource-reference",
    "get-structured-content", "get-sum", "get-tiny-image", "gzip-file-as-resource",
    "toggle-simulated-logging", "toggle-subscriber-updates", "trigger-long-running-operation",
]  # fmt: skip


@pytest.fixture(scope="session", params=["streamableHttp", "sse", "stdio"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its URL; "" for a program."""
    if request.param == "stdio":
        yield ""
        return
    with serving(request.param, tmp_path_factory.mktemp("everything")) as url:
        yield url


@pytest.fixture
async def everything(place: str) -> AsyncIterator[McpTools]:
    async with opened(place, PATIENT) as some:
        yield some


@contextlib.asynccontextmanager
async def opened(place: str, settings: McpSettings) -> AsyncIterator[McpTools]:
    async with client(replace(settings, servers={} if place else {"s": program("s")})) as mcp:
        declared = McpTool(server_label="s", server_url=place or UNSET)
        mcp.check(declared, "tools[0]")
        yield mcp.begin("tenant", [declared])


def _valid(item: McpCall) -> None:
    OpenAiMcpCall.model_validate(msgspec.to_builtins(replace(item, id="mcp_1")), strict=True)


async def test_its_tools_are_listed_as_they_are(everything: McpTools) -> None:
    listed = await everything.list("s")
    assert {*EVERYTHING} <= {tool.name for tool in listed.tools}
    total = next(tool for tool in listed.tools if tool.name == "get-sum")
    assert total.input_schema["required"] == ["a", "b"]
    assert total.description
    OpenAiMcpListTools.model_validate(msgspec.to_builtins(replace(listed, id="mcpl_1")), strict=True)


@pytest.mark.shows("E.4", "E.5")
async def test_a_call_gives_the_text_that_the_tool_says(everything: McpTools) -> None:
    item = await called(everything, "get-sum", a=2, b=40)
    assert (item.status, item.output, item.error) == ("completed", "The sum of 2 and 40 is 42.", None)
    _valid(item)


async def test_structured_content_is_json(everything: McpTools) -> None:
    item = await called(everything, "get-structured-content", location="Chicago")
    assert item.output is not None
    assert {"temperature", "conditions"} <= json.loads(item.output).keys()


async def test_a_picture_is_a_line_of_json_in_the_item_and_shown_to_the_model(everything: McpTools) -> None:
    ran = await used(everything, use("get-tiny-image"))
    assert isinstance(ran.item, McpCall)
    assert ran.item.output is not None
    block = next(json.loads(line) for line in ran.item.output.splitlines() if line.startswith("{"))
    assert (block["type"], block["mimeType"]) == ("image", "image/png")
    assert isinstance(ran.said, list)
    kinds = [type(part) for part in ran.said]
    assert kinds == [InputText, InputImage, InputText]
    image = ran.said[1]
    assert isinstance(image, InputImage)
    assert image.image_url == f"data:image/png;base64,{block['data']}"


async def test_links_and_resources_are_lines_of_json(everything: McpTools) -> None:
    links = await called(everything, "get-resource-links", count=2)
    assert links.output is not None
    assert [json.loads(line)["type"] for line in links.output.splitlines()[1:]] == ["resource_link"] * 2
    reference = await called(everything, "get-resource-reference")
    assert '{"type":"resource","resource":{"uri":"demo://' in (reference.output or "")


async def test_bad_arguments_are_the_tools_own_error(everything: McpTools) -> None:
    item = await called(everything, "get-sum", a="two")
    assert (item.status, item.output) == ("failed", None)
    assert isinstance(item.error, McpToolError)
    assert "-32602" in item.error.content[0]["text"]
    _valid(item)


async def test_an_unknown_tool_is_not_called(everything: McpTools) -> None:
    item = await called(everything, "get-rich")
    assert item.error == McpProtocolError(
        code=-32602, message="The MCP server 's' has no tool 'get-rich' that may be called."
    )
    _valid(item)


async def test_a_long_call_goes_on_as_long_as_it_makes_progress(place: str) -> None:
    async with opened(place, replace(PATIENT, call_seconds=2)) as everything:
        item = await called(everything, "trigger-long-running-operation", duration=3, steps=15)
    assert item.status == "completed"


async def test_progress_is_told_now_and_then(everything: McpTools) -> None:
    told: list[Delta] = []

    async def tell(delta: Delta) -> None:
        told.append(delta)

    wanted = use("trigger-long-running-operation", duration=1.5, steps=30)
    began = asyncio.get_running_loop().time()
    assert (await everything.run(wanted, tell)).item.status == "completed"  # type: ignore[union-attr]  # a call's
    assert set(told) == {Stage(wanted.key, "progress")}
    assert 1 <= len(told) <= 2 + asyncio.get_running_loop().time() - began  # one a second


async def test_a_silent_call_ends_at_its_deadline_and_others_go_on(place: str) -> None:
    async with opened(place, replace(PATIENT, call_seconds=3)) as everything, asyncio.timeout(60):
        await everything.list("s")
        slow = asyncio.create_task(called(everything, "trigger-long-running-operation", duration=200, steps=1))
        quick = await called(everything, message="hi")
        item = await slow
    assert quick.output == "Echo: hi"
    assert item.error == McpProtocolError(code=-32001, message="The MCP server 's' did not answer in time.")


@pytest.mark.shows("E.7")
async def test_only_allowed_tools_are_listed_and_called(place: str) -> None:
    settings = replace(PATIENT, servers={} if place else {"s": program("s")})
    async with client(settings) as mcp:
        url = place or UNSET
        named = McpTool(server_label="s", allowed_tools=["echo", "get-rich"], server_url=url)
        some = mcp.begin("tenant", [named])
        assert [tool.name for tool in (await some.list("s")).tools] == ["echo"]
        assert (await called(some, "get-sum", a=1, b=1)).status == "failed"
        reading = McpTool(server_label="s", allowed_tools=ToolNames(read_only=True), server_url=url)
        harmless = mcp.begin("tenant", [reading])
        names = [tool.name for tool in (await harmless.list("s")).tools]
        assert "get-sum" in names
        assert "toggle-simulated-logging" not in names


async def test_the_operators_word_about_tools_stands(tmp_path: Path) -> None:
    spec = replace(program("s"), allowed_tools=("echo",))
    async with client(replace(PATIENT, servers={"s": spec})) as mcp:
        some = mcp.begin("tenant", [McpTool(server_label="s", allowed_tools=["echo", "get-sum"])])
        assert [tool.name for tool in (await some.list("s")).tools] == ["echo"]


async def test_a_program_is_gone_when_its_session_is_closed() -> None:
    async with client(replace(PATIENT, servers={"s": program("s")})) as mcp:
        some = mcp.begin("tenant", [McpTool(server_label="s")])
        before = _children()
        await some.list("s")
        assert len(_children()) == len(before) + 1
    assert _children() == before


def _children() -> list[str]:
    """Servers that this process runs."""
    mine = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = int((place / "stat").read_text().rpartition(") ")[2].split()[1])
            if parent == os.getpid() and b"server-everything" in (place / "cmdline").read_bytes():
                mine.append(place.name)
    return mine
