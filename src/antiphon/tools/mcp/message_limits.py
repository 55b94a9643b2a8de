"""The messages of a server on their way in, counted: each costs us more than it costs the server.

A server that sends more than anybody asked for is no longer listened to.
"""

import time
from collections.abc import Callable
from contextvars import Context
from types import TracebackType
from typing import Final, Self

from mcp.client._transport import ReadStream
from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCRequest

Messages = ReadStream[SessionMessage | Exception]

_MOST: Final = 2_000.0  # messages in a burst
_EACH_SECOND: Final = 100.0
_REQUEST: Final = 20.0  # one that wants an answer counts as so many


class Incoming:
    def __init__(self, messages: Messages, ended: Callable[[str], None]) -> None:
        """`ended` is told why nothing more comes; "" if the server hung up."""
        self._messages = messages
        self._ended = ended
        self._left = _MOST
        self._looked = time.monotonic()

    @property
    def last_context(self) -> Context | None:
        context: Context | None = getattr(self._messages, "last_context", None)
        return context

    def expect(self) -> None:
        """Something was asked: an answer will come."""
        self._left = min(_MOST, self._left + 2)

    async def receive(self) -> SessionMessage | Exception:
        return await self._messages.receive()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            message = await self._messages.__anext__()
        except StopAsyncIteration:
            self._ended("")
            raise
        if self._count(message) < 0:
            self._ended("sends more messages than anybody asked for")
            raise StopAsyncIteration
        return message

    def _count(self, message: SessionMessage | Exception) -> float:
        now = time.monotonic()
        self._left = min(_MOST, self._left + (now - self._looked) * _EACH_SECOND)
        self._looked = now
        wants = isinstance(message, SessionMessage) and isinstance(message.message, JSONRPCRequest)
        self._left -= _REQUEST if wants else 1
        return self._left

    async def aclose(self) -> None:
        await self._messages.aclose()

    async def __aenter__(self) -> Self:
        await self._messages.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._messages.__aexit__(kind, error, trace)
