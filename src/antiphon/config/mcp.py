"""One McpServerSpec for each MCP server that the operator names: `[[mcp]]` in the file, or `--mcp-server LABEL=URL`.

What they are given to identify themselves with is theirs alone, and is shown nowhere.
"""

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import Meta, Struct

from antiphon.config.value_types import Name
from antiphon.errors import StartupError

Approval = Literal["never", "always"]


class McpServerSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of `[[mcp]]`."""

    label: Annotated[Name, Meta(description="`server_label` of the requests that mean it.")]
    url: Annotated[Name | None, Meta(description="Where it is: Streamable HTTP, or SSE. Any address will do.")] = None
    command: Annotated[Name | None, Meta(description="A program to run and to talk to by stdin and stdout.")] = None
    args: Annotated[tuple[str, ...], Meta(description="What the program is called with.")] = ()
    env: Annotated[
        dict[str, str], Meta(description="Variables for the program; it inherits few others. `env:NAME` passes one on.")
    ] = {}
    headers: Annotated[
        dict[str, str], Meta(description="Headers for this server alone; `env:NAME` takes one from a variable.")
    ] = {}
    authorization: Annotated[
        str | None, Meta(description="A token, sent as `Authorization: Bearer …`; `env:NAME` likewise.")
    ] = None
    allowed_tools: Annotated[
        tuple[Name, ...] | None, Meta(description="Tools that anybody may be offered; else all of them.")
    ] = None
    require_approval: Annotated[
        Approval | None,
        Meta(description="`always`: no client can do without. Else what the client says, or --mcp-require-approval."),
    ] = None
    description: Annotated[str | None, Meta(description="`server_description`, where a request has none.")] = None

    def __repr__(self) -> str:
        """Without what is secret."""
        return f"McpServerSpec(label={self.label!r}, url={self.url!r}, command={self.command!r})"


def named(specs: Sequence[McpServerSpec], pairs: Sequence[str]) -> dict[str, McpServerSpec]:
    """All of them by label; a pair is LABEL=URL."""
    flagged = [McpServerSpec(label=label, url=url) for label, _, url in (pair.partition("=") for pair in pairs)]
    servers: dict[str, McpServerSpec] = {}
    for spec in (*specs, *flagged):
        if spec.label in servers:
            raise StartupError(f"The MCP server {spec.label} is given twice.")
        if (spec.url is None) == (spec.command is None):
            raise StartupError(f"The MCP server {spec.label} needs either a url or a command.")
        if spec.command is not None and (spec.headers or spec.authorization):
            raise StartupError(
                f"The MCP server {spec.label} is a program: headers and authorization mean nothing to it."
            )
        servers[spec.label] = spec
    return servers
