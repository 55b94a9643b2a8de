"""The web_search tool on a tool server."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from mcp.types import CallToolResult, TextContent
from msgspec import UNSET

from antiphon.core.deltas import Citation, Delta, Progress, Text
from antiphon.errors import EngineFailed, McpFailed, UnsupportedParameter
from antiphon.protocol.types import items as it
from antiphon.protocol.types.parts import UrlCitation
from antiphon.protocol.types.tools import Location, WebFilters, WebSearchTool
from antiphon.tools.base import ModelToolCall
from antiphon.tools.tool_server.browser import ServedWebSearch, ServerBrowser
from tests.tools.tool_server.local_tool_server import PAGE_URL, LocalToolServer, make_services, run_tool_server

pytestmark = pytest.mark.anyio

SOURCES = "web_search_call.action.sources"


@pytest.fixture
async def opened() -> AsyncIterator[tuple[LocalToolServer, ServerBrowser]]:
    with run_tool_server() as server:
        built_in = ServedWebSearch(make_services(server.url))
        yield server, built_in.begin(WebSearchTool(), "tenant", frozenset({SOURCES}))
        await built_in.close()


def make_call(name: str, **arguments: Any) -> ModelToolCall:
    return ModelToolCall(key=0, id="ws_0", name=name, arguments=json.dumps(arguments))


async def run(tool: ServerBrowser, name: str, **arguments: Any) -> tuple[it.WebSearchCall, str]:
    deltas: list[Delta] = []

    async def record(delta: Delta) -> None:
        deltas.append(delta)

    result = await tool.run(make_call(name, **arguments), record)
    assert deltas == [Progress(0, "searching")]
    assert isinstance(result.item, it.WebSearchCall)
    return result.item, str(result.model_output)


async def test_functions_are_called_as_gpt_oss_calls_them_and_items_have_what_was_shown(opened: Any) -> None:
    server, tool = opened
    searched, text = await run(tool, "web_search", query="otters", topn=3)
    assert searched.action == it.SearchAction(query="otters", queries=["otters"], sources=[it.Source(url=PAGE_URL)])
    assert text.startswith("[0] otters\n**viewing lines")
    assert tool.start_item(make_call("web_open", id="0")).action == it.OpenPageAction()
    read, _ = await run(tool, "web_open", id="0", cursor=0)
    assert read.action == it.OpenPageAction(url=PAGE_URL)
    scrolled = tool.start_item(make_call("web_open", loc=1))
    assert scrolled.action == it.OpenPageAction(url=PAGE_URL)
    direct = tool.start_item(make_call("web_open", url="https://fish.example/"))
    assert direct.action == it.OpenPageAction(url="https://fish.example/")
    found, _ = await run(tool, "web_find", pattern="fish")
    assert found.action == it.FindAction(url=PAGE_URL, pattern="fish")
    assert [(name, arguments) for name, arguments, _ in server.calls] == [
        ("search", {"query": "otters", "topn": 3}),
        ("open", {"id": 0, "cursor": 0, "loc": -1, "num_lines": -1}),
        ("find", {"pattern": "fish", "cursor": -1}),
    ]


async def test_pages_are_cited_by_the_numbers_of_the_server(opened: Any) -> None:
    _, tool = opened
    assert tool.make_rewriter(is_last=True) is None
    await run(tool, "web_search", query="otters")
    await run(tool, "web_open", id=0)
    await run(tool, "web_find", pattern="fish")
    rewriter = tool.make_rewriter(is_last=True)
    deltas = [*rewriter.feed([Text("Fish 【1†L0】, yes 【2†L1】, no 【9†L1】.")]), *rewriter.finish()]
    cited = [delta.annotation for delta in deltas if isinstance(delta, Citation)]
    assert [one.url for one in cited if isinstance(one, UrlCitation)] == [PAGE_URL, PAGE_URL]


async def test_an_error_of_the_server_fails_the_call_with_its_message(opened: Any) -> None:
    server, tool = opened
    server.server.remove_tool("search")

    async def search(query: str) -> CallToolResult:
        text = TextContent(type="text", text=f"The index of {query} is gone.")
        return CallToolResult(content=[text], is_error=True)

    server.server.add_tool(search)
    with pytest.raises(McpFailed, match="The index of otters is gone"):
        await run(tool, "web_search", query="otters")
    failed = tool.make_failed_result(make_call("web_search", query="otters"), EngineFailed("It is gone."))
    assert isinstance(failed.item, it.WebSearchCall)
    assert (failed.item.status, failed.model_output) == ("failed", "Error: It is gone.")


async def test_options_without_effect_are_listed_and_restrictions_are_refused() -> None:
    built_in = ServedWebSearch(make_services("http://127.0.0.1:9"))
    declared = WebSearchTool(search_context_size="low", user_location=Location(city="Ulm"))
    assert built_in.list_ignored(declared) == ["tools.search_context_size", "tools.user_location.city"]
    assert built_in.list_ignored(WebSearchTool()) == []
    assert built_in.list_functions(WebSearchTool(external_web_access=False)) == ()
    limited = WebSearchTool(filters=WebFilters(allowed_domains=["otters.example"]))
    for tool, param in [
        (built_in.begin(limited, "tenant", frozenset()), "tools[0].filters.allowed_domains"),
        (built_in.begin(WebSearchTool(), "tenant", frozenset({"web_search_call.results"})), "include"),
    ]:
        with pytest.raises(UnsupportedParameter) as raised:
            await tool.prepare("tools[0]", [])
        assert raised.value.param == param
    assert WebSearchTool().filters is UNSET
