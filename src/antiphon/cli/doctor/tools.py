"""The operator's MCP servers: each is asked for its tools, as a request that names it would."""

import asyncio

from antiphon.cli.doctor.findings import Finding, cut, fine, listed, wrong
from antiphon.config import Config
from antiphon.egress import Egress, Policy
from antiphon.errors import AntiphonError
from antiphon.protocol.types.tools import McpTool
from antiphon.tools.mcp.client import Mcp
from antiphon.tools.mcp.settings import settings_of

_TENANT = "doctor"


async def mcp_servers(config: Config) -> list[Finding]:
    if not config.mcp_servers:
        return [fine("No MCP server is named.")]
    mcp = Mcp(settings_of(config), Egress(Policy(config.allow_egress)))
    try:
        return [*await asyncio.gather(*(_asked(mcp, label) for label in mcp.labels))]
    finally:
        await mcp.close()


async def _asked(mcp: Mcp, label: str) -> Finding:
    tools = mcp.begin(_TENANT, [McpTool(server_label=label)])
    try:
        found = await tools.list(label)
    except AntiphonError as error:
        return wrong(f"{label}: {cut(error)}", "Start it, or correct its url, command or authorization.")
    finally:
        await tools.close()
    names = [tool.name for tool in found.tools]
    return fine(f"{label}: {listed(names) or 'no tools'}.")
