"""MCP servers as a person tries them, without a model. An extension."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from antiphon.protocol.types.items import McpListedTool
from antiphon.protocol.types.tools import McpTool


class ListMcpTools(Struct, kw_only=True):
    server: McpTool  # as in `tools` of a response


class CallMcpTool(ListMcpTools, kw_only=True):
    name: Annotated[str, Meta(min_length=1)]
    arguments: dict[str, Any] = field(default_factory=dict)
    approve: bool = False  # required if the tool needs an approval


class McpBounds(Struct, frozen=True, kw_only=True):
    """Limits of this server for every MCP server. A value beyond one is an error; a longer output is cut off."""

    list_seconds: float  # to connect, and to list tools
    call_seconds: float  # of a call without a response or progress
    longest_seconds: float  # of a call with progress
    tools: int
    list_bytes: int
    answer_bytes: int
    output_bytes: int
    calls_at_once: int


class McpServerTools(Struct, frozen=True, kw_only=True):
    object: Literal["mcp.tools"] = "mcp.tools"
    server_label: str
    tools: list[McpListedTool]  # those that models may call
    needs_approval: list[str]  # names of the tools that a response would ask about
    bounds: McpBounds
