"""The MCP servers of one response: what they list, and the calls of their tools. Each call is sent at most once.

What a server makes of a call, an error of its own included, is the call's item. What is raised is ours.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from antiphon.core.deltas import Said, Stage
from antiphon.core.mcp_rules import allows
from antiphon.errors import McpFailed
from antiphon.protocol.types.builtin_items import (
    McpCall,
    McpHttpError,
    McpListedTool,
    McpListTools,
    McpProtocolError,
    McpToolError,
)
from antiphon.protocol.types.tools import McpTool
from antiphon.tools.base import Rewriter, Tell, Use, Used
from antiphon.tools.mcp.results import content_of, output_of, said_of
from antiphon.tools.mcp.servers import Server, server_of
from antiphon.tools.mcp.session_pool import Sessions
from antiphon.tools.mcp.settings import McpSettings

Json = dict[str, Any]

_INVALID_PARAMS: Final = -32602
_UNRUN: Final = -32000
_PROGRESS_SECONDS: Final = 1.0  # between two words about it
_NOW: Final = 0.0  # seconds


class McpTools:
    def __init__(self, tenant: str, declared: Mapping[str, McpTool], settings: McpSettings, sessions: Sessions) -> None:
        self._tenant = tenant
        self._declared = declared
        self._settings = settings
        self._sessions = sessions
        self._servers: dict[str, Server] = {}
        self._ran: set[str] = set()

    async def list(self, label: str) -> McpListTools:
        """Those that may be called, without an id. Raises McpFailed for what failed."""
        return McpListTools(server_label=label, tools=[*(await self._listed(label)).values()])

    async def definition(self, label: str, name: str) -> McpListedTool | None:
        """As the server describes it now; None if there is none that may be called."""
        return (await self._listed(label, _NOW)).get(name)

    def place(self, label: str) -> str:
        """Where its server is: what a client allows is allowed there."""
        server = self._server(label)
        return server.url or " ".join(server.command)

    def outdated(self, item: McpListTools) -> bool:
        """Is a list of the past known to be another by now? Nobody is asked."""
        label = item.server_label
        if label not in self._declared or item.error:
            return False
        known = self._sessions.known(self._tenant, self._server(label))
        return known is not None and [*self._allowed(label, known).values()] != item.tools

    def recall(self, said: Said) -> None:
        pass  # calls stand for themselves

    @property
    def longest(self) -> float:
        return self._settings.longest_seconds

    def opened(self, use: Use) -> None:
        return None

    async def run(self, use: Use, tell: Tell) -> Used:
        if use.id in self._ran:
            raise McpFailed(f"The call {use.id} was run already.")
        self._ran.add(use.id)
        server = self._server(use.namespace or "")
        try:
            return await self._called(server, use, tell)
        except McpFailed as error:
            return Used(item=self._item(use, "failed", error=_error(error)))

    def unrun(self, use: Use, why: str) -> Used:
        return Used(item=self._item(use, "failed", error=McpProtocolError(code=_UNRUN, message=why)))

    def rewriter(self) -> Rewriter | None:
        return None

    async def close(self) -> None:
        """Sessions live on for whoever comes next."""

    async def _called(self, server: Server, use: Use, tell: Tell) -> Used:
        arguments = _arguments(use.arguments)
        if use.name not in await self._listed(server.label):
            raise McpFailed(f"{server.name} has no tool {use.name[:64]!r} that may be called.", rpc=_INVALID_PARAMS)
        news = asyncio.Event()
        telling = asyncio.create_task(_tell_progress(use, tell, news))
        try:
            result = await self._sessions.call(self._tenant, server, use.name, arguments, news.set)
        finally:
            telling.cancel()
            await asyncio.wait([telling])
        return self._used(server, use, result)

    def _used(self, server: Server, use: Use, result: Json) -> Used:
        most, limits = self._settings.output_bytes, self._settings.limits
        result = server.scrubbed(result)
        if result.get("isError"):
            return Used(item=self._item(use, "failed", error=McpToolError(content=content_of(result, most))))
        output = output_of(result, most)
        return Used(item=self._item(use, "completed", output=output), said=said_of(result, most, limits))

    async def _listed(self, label: str, oldest: float | None = None) -> dict[str, McpListedTool]:
        seconds = self._settings.list_ttl_seconds if oldest is None else oldest
        return self._allowed(label, await self._sessions.listed(self._tenant, self._server(label), seconds))

    def _allowed(self, label: str, tools: Sequence[McpListedTool]) -> dict[str, McpListedTool]:
        spec = self._settings.servers.get(label) if self._server(label).named else None
        named = spec.allowed_tools if spec is not None else None
        usable = [tool for tool in tools if named is None or tool.name in named]
        return {tool.name: tool for tool in usable if allows(self._declared[label], tool)}

    def _server(self, label: str) -> Server:
        if label not in self._declared:
            raise McpFailed(f"No MCP server {label[:64]!r} is declared.", rpc=_INVALID_PARAMS)
        if label not in self._servers:
            self._servers[label] = server_of(self._declared[label], self._settings)
        return self._servers[label]

    def _item(self, use: Use, status: Any, **rest: Any) -> McpCall:
        return McpCall(
            status=status,
            server_label=use.namespace or "",
            name=use.name,
            arguments=use.arguments,
            approval_request_id=use.approval,
            **rest,
        )


async def _tell_progress(use: Use, tell: Tell, news: asyncio.Event) -> None:
    """Now and then: a server may speak of it as often as it likes."""
    while True:
        await news.wait()
        news.clear()
        await tell(Stage(use.key, "progress"))
        await asyncio.sleep(_PROGRESS_SECONDS)


def _arguments(text: str) -> Json:
    try:
        arguments = msgspec.json.decode(text or "{}")
    except (msgspec.DecodeError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise McpFailed("The arguments of the call are not a JSON object.", rpc=_INVALID_PARAMS)
    return arguments


def _error(error: McpFailed) -> McpProtocolError | McpHttpError:
    if error.http is not None:
        return McpHttpError(code=error.http, message=error.message)
    return McpProtocolError(code=error.rpc, message=error.message)
