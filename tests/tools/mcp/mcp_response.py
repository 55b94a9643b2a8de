"""Helpers for tests of MCP servers as one response uses them."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

from antiphon.core.deltas import Delta
from antiphon.egress import EgressClient
from antiphon.protocol.types.items import McpCall
from antiphon.protocol.types.tools import McpTool
from antiphon.tools.base import ModelToolCall, ToolResult
from antiphon.tools.mcp.client import McpClient
from antiphon.tools.mcp.response_tools import McpTools
from antiphon.tools.mcp.servers import McpSettings

LONG_TIMEOUTS = McpSettings(at_home=True, list_seconds=60, call_seconds=60, longest_seconds=120)  # for a busy machine
SHORT_TIMEOUTS = McpSettings(
    at_home=True, list_seconds=5, call_seconds=1, longest_seconds=4
)  # for servers that never answer
_KEYS = count(1)


@asynccontextmanager
async def open_client(
    settings: McpSettings = LONG_TIMEOUTS, egress: EgressClient | None = None
) -> AsyncIterator[McpClient]:
    """Open a client and check that it leaves no task running."""
    mcp = McpClient(settings, egress or EgressClient())
    try:
        yield mcp
    finally:
        await mcp.close()
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("mcp ")]


@asynccontextmanager
async def open_tools(url: str, settings: McpSettings = LONG_TIMEOUTS, **declared: Any) -> AsyncIterator[McpTools]:
    """Open the tools of one server with the label `s`."""
    async with open_client(settings) as mcp:
        yield mcp.begin("tenant", [McpTool(server_label="s", server_url=url, **declared)])


def make_call(name: str = "echo", label: str = "s", **arguments: Any) -> ModelToolCall:
    key = next(_KEYS)
    return ModelToolCall(key=key, id=f"mcp_{key}", name=name, namespace=label, arguments=json.dumps(arguments))


async def run_call(tools: McpTools, call: ModelToolCall) -> ToolResult:
    return await tools.run(call, _reject_delta)


async def call_tool(tools: McpTools, name: str = "echo", label: str = "s", **arguments: Any) -> McpCall:
    item = (await run_call(tools, make_call(name, label, **arguments))).item
    assert isinstance(item, McpCall)
    return item


async def _reject_delta(delta: Delta) -> None:
    raise AssertionError(f"unexpected delta {delta}")
