"""Transports to an MCP server: Streamable HTTP, the older HTTP with server-sent events, or stdin and stdout of a
program.

The stream of a server ends when it sends more messages than a rate limit allows: processing a message costs us more
than sending it costs the server.
"""

import logging
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import Context
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from mcp import StdioServerParameters
from mcp.client._transport import ReadStream
from mcp.client.sse import sse_client
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCRequest
from msgspec import Struct

from antiphon.egress import EgressClient
from antiphon.egress.mcp_transport import McpHttpSettings, make_http_client
from antiphon.observe.spans import make_trace_headers
from antiphon.token_bucket import TokenBucket
from antiphon.tools.mcp.servers import McpServer, McpSettings

MessageStream = ReadStream[SessionMessage | Exception]

_MESSAGES_PER_MINUTE: Final = 6_000.0
_REQUEST_COST: Final = 20.0  # messages that a request counts as, since it needs a response


class MessageLimits:
    """Read stream that limits the rate of its messages."""

    def __init__(self, messages: MessageStream, on_end: Callable[[str], None]) -> None:
        """`on_end` is called with the reason when the stream ends; "" if the server closed it."""
        self._messages = messages
        self._on_end = on_end
        self._limit = TokenBucket(_MESSAGES_PER_MINUTE, time.monotonic())

    @property
    def last_context(self) -> Context | None:
        context: Context | None = getattr(self._messages, "last_context", None)
        return context

    def expect_response(self) -> None:
        """Add credit for the response to a request."""
        self._limit.take(-2, time.monotonic())

    async def receive(self) -> SessionMessage | Exception:
        return await self._messages.receive()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            message = await self._messages.__anext__()
        except StopAsyncIteration:
            self._on_end("")
            raise
        is_request = isinstance(message, SessionMessage) and isinstance(message.message, JSONRPCRequest)
        if not self._limit.try_take(_REQUEST_COST if is_request else 1, time.monotonic()):
            self._on_end("sends more messages than anybody asked for")
            raise StopAsyncIteration
        return message

    async def aclose(self) -> None:
        await self._messages.aclose()

    async def __aenter__(self) -> Self:
        await self._messages.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._messages.__aexit__(kind, error, trace)


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
