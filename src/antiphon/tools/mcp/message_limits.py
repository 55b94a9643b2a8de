"""Rate limit for the messages of an MCP server: processing one costs us more than sending it costs the server.

The stream ends when a server sends more messages than the limit allows.
"""

import time
from collections.abc import Callable
from contextvars import Context
from types import TracebackType
from typing import Final, Self

from mcp.client._transport import ReadStream
from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCRequest

MessageStream = ReadStream[SessionMessage | Exception]

_BURST: Final = 2_000.0  # messages
_PER_SECOND: Final = 100.0
_REQUEST_COST: Final = 20.0  # messages that a request counts as, since it needs a response


class MessageLimits:
    """Read stream that counts its messages (token bucket)."""

    def __init__(self, messages: MessageStream, on_end: Callable[[str], None]) -> None:
        """`on_end` is called with the reason when the stream ends; "" if the server closed it."""
        self._messages = messages
        self._on_end = on_end
        self._remaining = _BURST
        self._updated_at = time.monotonic()

    @property
    def last_context(self) -> Context | None:
        context: Context | None = getattr(self._messages, "last_context", None)
        return context

    def expect_response(self) -> None:
        """Add credit for the response to a request."""
        self._remaining = min(_BURST, self._remaining + 2)

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
        if self._charge(message) < 0:
            self._on_end("sends more messages than anybody asked for")
            raise StopAsyncIteration
        return message

    def _charge(self, message: SessionMessage | Exception) -> float:
        now = time.monotonic()
        self._remaining = min(_BURST, self._remaining + (now - self._updated_at) * _PER_SECOND)
        self._updated_at = now
        is_request = isinstance(message, SessionMessage) and isinstance(message.message, JSONRPCRequest)
        self._remaining -= _REQUEST_COST if is_request else 1
        return self._remaining

    async def aclose(self) -> None:
        await self._messages.aclose()

    async def __aenter__(self) -> Self:
        await self._messages.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._messages.__aexit__(kind, error, trace)
