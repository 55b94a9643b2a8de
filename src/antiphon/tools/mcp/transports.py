"""The ways to an MCP server: Streamable HTTP, server-sent events as it was before, or a program's stdin and stdout."""

import logging
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from mcp import StdioServerParameters
from mcp.client.sse import sse_client
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from msgspec import Struct

from antiphon.egress import Egress
from antiphon.egress.mcp_transport import Wire, http_client
from antiphon.observe.spans import handed_on
from antiphon.tools.mcp.message_limits import Messages
from antiphon.tools.mcp.servers import Server
from antiphon.tools.mcp.settings import McpSettings

log = logging.getLogger(__name__)

Streams = tuple[Messages, Any]


class Way(Struct, frozen=True):
    open: Callable[[], AbstractAsyncContextManager[Streams]]
    apart: bool = False  # answers come in a stream of their own


def ways(server: Server, settings: McpSettings, egress: Egress) -> list[Way]:
    """In the order in which they are tried."""
    if server.command:
        return [Way(partial(_stdio, server))]
    wire = Wire(
        egress=egress.towards(server.url, server.param) if server.named else egress,
        url=server.url,
        param=f"{server.param}.server_url",
        at_home=settings.loopback or server.named,
        patience=settings.call_seconds,
        told=handed_on,
    )
    return [
        Way(partial(_streamable, wire, dict(server.headers), settings.answer_bytes)),
        Way(partial(_sse, wire, dict(server.headers)), apart=True),
    ]


@asynccontextmanager
async def _streamable(wire: Wire, headers: dict[str, str], most: int) -> AsyncIterator[Streams]:
    async with (
        await http_client(wire, headers) as http,
        streamable_http_client(wire.url, http_client=http, max_sse_event_size=most) as streams,
    ):
        yield streams


@asynccontextmanager
async def _sse(wire: Wire, headers: dict[str, str]) -> AsyncIterator[Streams]:
    http = await http_client(wire, headers, answers_apart=True)
    async with sse_client(wire.url, httpx_client_factory=lambda *_, **__: http) as streams:
        yield streams


@asynccontextmanager
async def _stdio(server: Server) -> AsyncIterator[Streams]:
    """Its environment has what mcp lets through, and what the operator says."""
    command, *arguments = server.command
    program = StdioServerParameters(command=command, args=arguments, env=dict(server.env))
    with Path(os.devnull).open("w") as nowhere:  # noqa: ASYNC230 - nothing to wait for
        told = sys.stderr if log.isEnabledFor(logging.DEBUG) else nowhere
        async with stdio_client(program, errlog=told) as streams:
            yield streams
