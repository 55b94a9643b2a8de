"""Settings of tools that the server runs, and of outgoing connections to URLs in requests."""

from typing import Annotated, Literal

from msgspec import Struct

from antiphon.config.help_text import EGRESS, TOOLS
from antiphon.config.mcp import McpServerSpec, index_by_label
from antiphon.config.value_types import Count, Labelled, Name, Seconds


class ToolSettings(Struct, frozen=True, kw_only=True):
    """Tools, MCP servers, and outgoing connections."""

    allow_egress: Annotated[
        tuple[Name, ...],
        EGRESS(
            "HOST, HOST:PORT or network (10.0.0.0/8) that URLs in requests may use although it is not public.",
            "public addresses only",
        ),
    ] = ()
    egress_timeout: Annotated[
        Seconds, EGRESS("Time limit to fetch a URL of a request, redirects included, in seconds.")
    ] = 10.0

    max_turns: Annotated[
        Count, TOOLS("Maximum number of turns with tools in a response; then the model must answer without tools.")
    ] = 32
    tools_at_once: Annotated[Count, TOOLS("Maximum number of concurrent tool calls of one response.")] = 8
    mcp_server: Annotated[
        tuple[Labelled, ...],
        TOOLS(
            "LABEL=URL: an MCP server that requests may use by its label; [[mcp]] in the file has more options.", "none"
        ),
    ] = ()
    mcp_require_approval: Annotated[
        Literal["never", "always"],
        TOOLS("Approval of MCP tool calls if the request does not set it; OpenAI's default is always."),
    ] = "never"
    tool_timeout: Annotated[Seconds, TOOLS("Seconds without output or progress after which a tool call fails.")] = 60.0
    tool_list_timeout: Annotated[
        Seconds, TOOLS("Time limit to connect to an MCP server and list its tools, in seconds.")
    ] = 30.0
    wait_for_tool_outputs: Annotated[
        bool,
        TOOLS("Let streamed and background responses wait for client tool outputs without being requested to."),
    ] = False
    tool_output_timeout: Annotated[
        Seconds,
        TOOLS("Seconds that a response waits for tool outputs of its client.", None, "responses_tool_timeout"),
    ] = 600.0
    max_tool_output_bytes: Annotated[
        Count,
        TOOLS(
            "Maximum size of a request that submits tool outputs, in bytes; also RESPONSES_MAX_TOOL_OUTPUT_BYTES.",
            None,
            "responses_max_tool_output_bytes",
        ),
    ] = 4 * 1024 * 1024

    # Only in the TOML file, as a table.
    mcp: tuple[McpServerSpec, ...] = ()

    @property
    def mcp_servers(self) -> dict[str, McpServerSpec]:
        """The operator's MCP servers by label."""
        return index_by_label(self.mcp, self.mcp_server)
