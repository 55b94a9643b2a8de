"""MCP servers tried without a model: with the sessions, rules and bounds of a response that declares the server."""

from time import perf_counter

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from antiphon.core.deltas import Delta
from antiphon.core.mcp_rules import needs_approval
from antiphon.errors import InvalidValue
from antiphon.ids import new_id
from antiphon.observe import Metrics
from antiphon.protocol.types.items import McpCall
from antiphon.protocol.types.operations.mcp import CallMcpTool, McpBounds, McpServerTools
from antiphon.protocol.types.tools import McpTool
from antiphon.service.tool_loop.toolkit import Toolkit
from antiphon.tools.base import ModelToolCall

_PARAM = "server"
_NOW = 0.0  # maximum age of a tool list, in seconds


class McpTrials(Struct, frozen=True, eq=False):
    _toolkit: Toolkit
    _metrics: Metrics

    async def list_tools(self, tenant: str, server: McpTool) -> McpServerTools:
        """List the tools of a server as they are now. Raises BadRequest or McpFailed."""
        mcp = self._toolkit.check_mcp_server(server, _PARAM)
        tools = (await mcp.begin(tenant, [server]).list_tools(server.server_label, _NOW)).tools
        return McpServerTools(
            server_label=server.server_label,
            tools=tools,
            needs_approval=[tool.name for tool in tools if needs_approval(server, tool)],
            bounds=msgspec.convert(mcp.settings, McpBounds, from_attributes=True),
        )

    async def call(self, tenant: str, body: CallMcpTool) -> McpCall:
        """Call a tool once. Errors of the call are in the item. Raises BadRequest, or McpFailed if listing fails."""
        server, label = body.server, body.server.server_label
        tools = self._toolkit.check_mcp_server(server, _PARAM).begin(tenant, [server])
        tool = await tools.get_definition(label, body.name)
        if tool is None:
            raise InvalidValue("The server has no tool of this name that may be called.", param="name")
        if needs_approval(server, tool) and not body.approve:
            raise InvalidValue("This tool needs an approval: set 'approve' to true.", param="approve")
        item_id, arguments = new_id("mcp"), msgspec.json.encode(body.arguments).decode()
        started = perf_counter()
        call = ModelToolCall(key=0, id=item_id, name=body.name, namespace=label, arguments=arguments)
        item = (await tools.run(call, _ignore_progress)).item
        assert isinstance(item, McpCall)
        self._metrics.record_tool_call("mcp", str(item.status), perf_counter() - started)
        return replace(item, id=item_id)


async def _ignore_progress(delta: Delta) -> None:
    """A reply has one part: the result."""
