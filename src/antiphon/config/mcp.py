"""The operator's MCP servers, from `[[mcp]]` in the TOML file or `--mcp-server LABEL=URL`.

Credentials of a server are sent to that server only, and are never shown.
"""

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import Meta, Struct

from antiphon.config.value_types import Name
from antiphon.errors import StartupError

McpApprovalMode = Literal["never", "always"]


class McpServerSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An `[[mcp]]` table."""

    label: Annotated[Name, Meta(description="`server_label` by which requests name the server.")]
    url: Annotated[
        Name | None, Meta(description="URL of the server, Streamable HTTP or SSE. Private addresses are allowed.")
    ] = None
    command: Annotated[Name | None, Meta(description="Program to run, connected by stdin and stdout.")] = None
    args: Annotated[tuple[str, ...], Meta(description="Arguments of the program.")] = ()
    env: Annotated[
        dict[str, str],
        Meta(description="Environment of the program, which inherits few other variables. `env:NAME` copies one."),
    ] = {}
    headers: Annotated[
        dict[str, str], Meta(description="Headers sent to this server; `env:NAME` reads a value from a variable.")
    ] = {}
    authorization: Annotated[
        str | None, Meta(description="Token, sent as `Authorization: Bearer …`; `env:NAME` reads it from a variable.")
    ] = None
    allowed_tools: Annotated[
        tuple[Name, ...] | None, Meta(description="Tools that requests may use; default: all.")
    ] = None
    require_approval: Annotated[
        McpApprovalMode | None,
        Meta(
            description="`always`: clients cannot waive it. Otherwise the request decides, or --mcp-require-approval."
        ),
    ] = None
    description: Annotated[str | None, Meta(description="`server_description` of requests that have none.")] = None

    def __repr__(self) -> str:
        """Omits secrets."""
        return f"McpServerSpec(label={self.label!r}, url={self.url!r}, command={self.command!r})"


def index_by_label(specs: Sequence[McpServerSpec], pairs: Sequence[str]) -> dict[str, McpServerSpec]:
    """Return all servers by label; a pair is LABEL=URL. Raises StartupError for duplicate or invalid specs."""
    from_flags = [McpServerSpec(label=label, url=url) for label, _, url in (pair.partition("=") for pair in pairs)]
    servers: dict[str, McpServerSpec] = {}
    for spec in (*specs, *from_flags):
        if spec.label in servers:
            raise StartupError(f"The MCP server {spec.label} is configured twice.")
        if (spec.url is None) == (spec.command is None):
            raise StartupError(f"The MCP server {spec.label} needs either a url or a command.")
        if spec.command is not None and (spec.headers or spec.authorization):
            raise StartupError(f"The MCP server {spec.label} is a program: headers and authorization require a url.")
        servers[spec.label] = spec
    return servers
