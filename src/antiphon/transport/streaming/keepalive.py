"""Binds a stream to its client: a disconnect cancels it, and keep-alives are sent while there are no events.

Until a keep-alive is due, a timer is all that exists for it. A client that does not read is disconnected by the server,
and so is handled as gone.
"""

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Protocol, Self

from antiphon.transport.http.request import Request
from antiphon.transport.streaming import sse
from antiphon.transport.streaming.event_writer import EventWriter

_CHECKS_PER_INTERVAL = 4  # a keep-alive is at most a quarter of the interval late


class WaitingSource(Protocol):
    """The source of a stream, as far as keep-alives are concerned."""

    @property
    def waits(self) -> bool:
        """Whether the source currently waits for an engine or another process."""


class KeepAlive:
    """Sends keep-alives inside `async with`. `keepalive` encodes one, given the last event of the stream."""

    def __init__(
        self,
        request: Request,
        source: WaitingSource,
        ping_interval: float,
        keepalive: Callable[[Any], bytes] = sse.encode_keepalive,
    ) -> None:
        self._channel = request.channel
        self._source = source
        self._keepalive = keepalive
        self._check_interval = ping_interval / _CHECKS_PER_INTERVAL  # seconds; 0: no keep-alives
        self._last_seen: Any = None  # the last event at the previous check
        self._idle_checks = 0  # successive checks without a new event
        self.writer: EventWriter[Any] | None = (
            None  # set once the stream has begun; nothing is sent before its first event
        )
        self.open_stream: Callable[[], Awaitable[object]] | None = None  # begins a stream whose first event takes long
        self._timer: asyncio.TimerHandle | None = None
        self._sending: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._channel.__enter__()
        self._schedule_check()
        return self

    async def __aexit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.wait([self._sending])
        self._channel.__exit__(error_type, error, trace)

    def _schedule_check(self) -> None:
        if self._check_interval:
            self._timer = asyncio.get_running_loop().call_later(self._check_interval, self._check)

    def _check(self) -> None:
        last = None if self.writer is None else self.writer.last
        self._idle_checks = self._idle_checks + 1 if last is self._last_seen and self._source.waits else 0
        self._last_seen = last
        if self._idle_checks < _CHECKS_PER_INTERVAL:
            self._schedule_check()
        else:
            self._idle_checks = 0
            self._sending = asyncio.get_running_loop().create_task(self._send_keepalive())

    async def _send_keepalive(self) -> None:
        """Send a keep-alive, unless an event was sent since it became due."""
        if self.writer is None and self.open_stream is not None:
            await self.open_stream()
        writer = self.writer
        if writer is not None and writer.last is self._last_seen and (body := self._keepalive(writer.last)):
            unread = self._channel.write(body)
            if unread is not None:
                await unread
        self._schedule_check()
