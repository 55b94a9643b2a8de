"""One response's use of MCP servers, for tests."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

from antiphon.core.deltas import Delta
from antiphon.egress import Egress
from antiphon.protocol.types.items import McpCall
from antiphon.protocol.types.tools import McpTool
from antiphon.tools.base import Use, Used
from antiphon.tools.mcp.client import Mcp, McpSettings
from antiphon.tools.mcp.response_tools import McpTools

PATIENT = McpSettings(at_home=True, list_seconds=60, call_seconds=60, longest_seconds=120)  # with a busy machine
HASTY = McpSettings(at_home=True, list_seconds=5, call_seconds=1, longest_seconds=4)  # with who never answers
_KEYS = count(1)


@asynccontextmanager
async def client(settings: McpSettings = PATIENT, egress: Egress | None = None) -> AsyncIterator[Mcp]:
    """It leaves nothing behind."""
    mcp = Mcp(settings, egress or Egress())
    try:
        yield mcp
    finally:
        await mcp.close()
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("mcp ")]


@asynccontextmanager
async def tools(url: str, settings: McpSettings = PATIENT, **declared: Any) -> AsyncIterator[McpTools]:
    """Of a server with the label `s`."""
    async with client(settings) as mcp:
        yield mcp.begin("tenant", [McpTool(server_label="s", server_url=url, **declared)])


def use(name: str = "echo", label: str = "s", **arguments: Any) -> Use:
    key = next(_KEYS)
    return Use(key=key, id=f"mcp_{key}", name=name, namespace=label, arguments=json.dumps(arguments))


async def used(tools: McpTools, wanted: Use) -> Used:
    return await tools.run(wanted, _nobody)


async def called(tools: McpTools, name: str = "echo", label: str = "s", **arguments: Any) -> McpCall:
    item = (await used(tools, use(name, label, **arguments))).item
    assert isinstance(item, McpCall)
    return item


async def _nobody(delta: Delta) -> None:
    raise AssertionError(f"nobody is to be told {delta}")
