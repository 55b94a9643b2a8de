"""Transports to an MCP server: Streamable HTTP, the older HTTP with server-sent events, or stdin and stdout of a
program.
"""

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

from antiphon.egress import EgressClient
from antiphon.egress.mcp_transport import McpHttpSettings, make_http_client
from antiphon.observe.spans import make_trace_headers
from antiphon.tools.mcp.message_limits import MessageStream
from antiphon.tools.mcp.servers import McpServer
from antiphon.tools.mcp.settings import McpSettings

log = logging.getLogger(__name__)

Streams = tuple[MessageStream, Any]


class McpTransport(Struct, frozen=True):
    """A transport, and whether responses arrive in a stream of their own."""

    open: Callable[[], AbstractAsyncContextManager[Streams]]
    has_separate_stream: bool = False  # responses arrive in a stream of their own


def list_transports(server: McpServer, settings: McpSettings, egress: EgressClient) -> list[McpTransport]:
    """Return the transports in the order in which they are tried."""
    if server.command:
        return [McpTransport(partial(_stdio, server))]
    wire = McpHttpSettings(
        egress=egress.allow_operator_url(server.url, server.param) if server.is_configured else egress,
        url=server.url,
        param=f"{server.param}.server_url",
        allow_loopback=settings.loopback or server.is_configured,
        idle_timeout=settings.call_seconds,
        make_headers=make_trace_headers,
    )
    return [
        McpTransport(partial(_streamable, wire, dict(server.headers), settings.answer_bytes)),
        McpTransport(partial(_sse, wire, dict(server.headers)), has_separate_stream=True),
    ]


@asynccontextmanager
async def _streamable(wire: McpHttpSettings, headers: dict[str, str], max_event_bytes: int) -> AsyncIterator[Streams]:
    async with (
        await make_http_client(wire, headers) as http,
        streamable_http_client(wire.url, http_client=http, max_sse_event_size=max_event_bytes) as streams,
    ):
        yield streams


@asynccontextmanager
async def _sse(wire: McpHttpSettings, headers: dict[str, str]) -> AsyncIterator[Streams]:
    http = await make_http_client(wire, headers, separate_replies=True)
    async with sse_client(wire.url, httpx_client_factory=lambda *_, **__: http) as streams:
        yield streams


@asynccontextmanager
async def _stdio(server: McpServer) -> AsyncIterator[Streams]:
    """Run a program. Its environment has the variables that mcp inherits, and those that the operator configured."""
    command, *arguments = server.command
    program = StdioServerParameters(command=command, args=arguments, env=dict(server.env))
    with Path(os.devnull).open("w") as devnull:  # noqa: ASYNC230 - opening the null device does not block
        errlog = sys.stderr if log.isEnabledFor(logging.DEBUG) else devnull
        async with stdio_client(program, errlog=errlog) as streams:
            yield streams
