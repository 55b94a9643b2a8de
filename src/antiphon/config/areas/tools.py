"""Settings of tools that the server runs, and of the way out to what requests name."""

from typing import Annotated, Literal

from antiphon.config.areas.storage import StoreSettings
from antiphon.config.help_text import EGRESS, TOOLS
from antiphon.config.mcp import McpServerSpec, named
from antiphon.config.value_types import Count, Labelled, Name, Seconds


class ToolSettings(StoreSettings, frozen=True, kw_only=True):
    allow_egress: Annotated[
        tuple[Name, ...],
        EGRESS(
            "HOST, HOST:PORT or network (10.0.0.0/8) that URLs in requests may lead to, though it is not public.",
            "public addresses only",
        ),
    ] = ()
    egress_timeout: Annotated[Seconds, EGRESS("Seconds to fetch what a URL names, redirects included.")] = 10.0

    max_turns: Annotated[
        Count, TOOLS("Turns with tools that a response may take; then the model has to answer without them.")
    ] = 32
    tools_at_once: Annotated[Count, TOOLS("Calls of one response that run side by side.")] = 8
    mcp_server: Annotated[
        tuple[Labelled, ...],
        TOOLS(
            "LABEL=URL: an MCP server that requests may name by its label alone; [[mcp]] in the file says more.", "none"
        ),
    ] = ()
    mcp_require_approval: Annotated[
        Literal["never", "always"],
        TOOLS("Whether calls of MCP tools need an approval where a request does not say; OpenAI's default is always."),
    ] = "never"
    tool_timeout: Annotated[Seconds, TOOLS("Seconds a tool may go without a sign of life.")] = 60.0
    tool_list_timeout: Annotated[Seconds, TOOLS("Seconds to connect to an MCP server and list its tools.")] = 30.0
    wait_for_tool_outputs: Annotated[
        bool,
        TOOLS("Have streamed and background responses wait for the client's tools, though requests do not ask for it."),
    ] = False
    tool_output_timeout: Annotated[
        Seconds,
        TOOLS("Seconds that a response waits for the outputs of its client's tools.", None, "responses_tool_timeout"),
    ] = 600.0
    max_tool_output_bytes: Annotated[
        Count,
        TOOLS(
            "Bytes of a request that submits a tool's output; also RESPONSES_MAX_TOOL_OUTPUT_BYTES.",
            None,
            "responses_max_tool_output_bytes",
        ),
    ] = 4 * 1024 * 1024

    # In the file alone, as tables.
    mcp: tuple[McpServerSpec, ...] = ()

    @property
    def mcp_servers(self) -> dict[str, McpServerSpec]:
        """Those that the operator named, by label."""
        return named(self.mcp, self.mcp_server)
