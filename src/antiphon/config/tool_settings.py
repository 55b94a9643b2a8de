"""Settings of MCP servers and of the web search service.

The operator's MCP servers are `[[mcp]]` in the TOML file or `--mcp-server LABEL=URL`, and those that run built-in tools
`[[tool_servers]]` or `--tool-server NAME=URL`. Credentials of a server are sent to that server only, and never shown.
Web search uses a SearXNG server, or any service that answers with JSON:

[web_search]                                       [web_search]
url = "searxng+https://search.example"             url = "json+https://api.example/search?q={query}&count={count}"
                                                   key = "env:SEARCH_KEY"
                                                   key_header = "X-Subscription-Token"
                                                   results = "web.results"
"""

import re
from collections.abc import Sequence
from typing import Annotated, Final, Literal

from msgspec import Struct

from antiphon.config.setting_types import Count, Key, Name, Seconds
from antiphon.errors import StartupError

McpApprovalMode = Literal["never", "always"]
TOOL_SERVERS: Final = ("python", "browser", "container")  # the names of gpt-oss for its tools
_NEXT_PAIR: Final = re.compile(r",(?=[^,=]*=https?://)")


class McpServerSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An `[[mcp]]` table."""

    label: Annotated[Name, "`server_label` by which requests name the server."]
    url: Annotated[Name | None, "URL of the server, Streamable HTTP or SSE. Private addresses are allowed."] = None
    command: Annotated[Name | None, "Program to run, connected by stdin and stdout."] = None
    args: Annotated[tuple[str, ...], "Arguments of the program."] = ()
    env: Annotated[dict[str, str], "Environment of the program, which inherits few others. `env:NAME` copies one."] = {}
    headers: Annotated[dict[str, str], "Headers sent to this server; `env:NAME` reads a value from a variable."] = {}
    authorization: Annotated[str | None, "Token for `Authorization: Bearer …`; `env:NAME` reads a variable."] = None
    allowed_tools: Annotated[tuple[Name, ...] | None, "Tools that requests may use; default: all."] = None
    require_approval: Annotated[
        McpApprovalMode | None,
        "`always`: clients cannot waive it. Otherwise the request decides, or --mcp-require-approval.",
    ] = None
    description: Annotated[str | None, "`server_description` of requests that have none."] = None

    def __repr__(self) -> str:
        """Omits secrets."""
        return f"McpServerSpec(label={self.label!r}, url={self.url!r}, command={self.command!r})"


def index_by_label(
    specs: Sequence[McpServerSpec], pairs: Sequence[str], noun: str = "MCP server"
) -> dict[str, McpServerSpec]:
    """Return all servers by label; a pair is LABEL=URL. Raises StartupError for duplicate or invalid specs."""
    from_flags = [McpServerSpec(label=label, url=url) for label, _, url in (pair.partition("=") for pair in pairs)]
    servers: dict[str, McpServerSpec] = {}
    for spec in (*specs, *from_flags):
        if spec.label in servers:
            raise StartupError(f"The {noun} {spec.label} is configured twice.")
        if (spec.url is None) == (spec.command is None):
            raise StartupError(f"The {noun} {spec.label} needs either a url or a command.")
        if spec.command is not None and (spec.headers or spec.authorization):
            raise StartupError(f"The {noun} {spec.label} is a program: headers and authorization require a url.")
        servers[spec.label] = spec
    return servers


def index_tool_servers(specs: Sequence[McpServerSpec], pairs: Sequence[str]) -> dict[str, McpServerSpec]:
    """Return the servers of built-in tools by name; a text has one or more pairs. Raises StartupError."""
    servers = index_by_label(specs, [pair for text in pairs for pair in _NEXT_PAIR.split(text)], "tool server")
    for name, spec in servers.items():
        if name not in TOOL_SERVERS:
            raise StartupError(f"There is no tool server {name}: the names are {', '.join(TOOL_SERVERS)}.")
        if spec.allowed_tools is not None or spec.require_approval is not None:
            raise StartupError(f"The tool server {name} takes neither allowed_tools nor require_approval.")
    return servers


class WebSearchSettings(Struct, frozen=True, kw_only=True):
    """The `[web_search]` table: the field `url` is the setting `web_search_url`."""

    url: Annotated[
        Name | None,
        "Web search service of the web_search tool: searxng+https://HOST, or json+https://… with {query} (see"
        " web-search). Plain http and private addresses are allowed.",
        "none: web_search is not available",
    ] = None
    key: Annotated[Key | None, "API key of the service, sent to it only; `env:NAME` reads a variable.", "none"] = None
    key_header: Annotated[Key, "Header to send the key in.", "Authorization, as `Bearer KEY`"] = "Authorization"
    body: Annotated[Name | None, "JSON body to POST, with {query} in it; without it, GET is used.", "none"] = None
    results: Annotated[Name, "Path of the list of results in the JSON reply: keys, joined by dots."] = "results"
    link: Annotated[Name, "Path of the URL in a result, likewise."] = "url"
    title: Annotated[Name, "Path of the title in a result."] = "title"
    snippet: Annotated[Name, "Path of the text in a result."] = "content"
    timeout: Annotated[Seconds, "Time limit of one search, and of fetching one page, in seconds."] = 10.0
    max_pages: Annotated[Count, "Maximum number of pages, result pages included, that one response may open."] = 100

    def __repr__(self) -> str:
        """Omits the key, and the URL, which may contain one."""
        return f"WebSearchSettings(url={'…' if self.url else None!r})"
