"""Keep-alives: sent while a source waits for an engine or another process and there are no events.

Until a keep-alive is due, a timer is all that exists for it. Pings of the WebSocket protocol (RFC 6455 §5.5.2) would
not do: clients do not take them as a sign that their response is alive.
"""

import asyncio
from types import TracebackType
from typing import Any, Protocol, Self

_CHECKS_PER_INTERVAL = 4  # a keep-alive is at most a quarter of the interval late


class WaitingSource(Protocol):
    """The source of a stream, as far as keep-alives are concerned."""

    @property
    def waits(self) -> bool:
        """Whether the source is waiting for an engine or another process."""


class KeepAliveStream(Protocol):
    """A stream of events, as far as keep-alives are concerned."""

    @property
    def last(self) -> Any:
        """The last event that was emitted; None before the first."""

    async def send_keepalive(self) -> None: ...


class KeepAlive:
    """Sends keep-alives inside `async with`. `interval`: seconds; 0: no keep-alives."""

    def __init__(self, source: WaitingSource, stream: KeepAliveStream, interval: float) -> None:
        self._source = source
        self._stream = stream
        self._check_interval = interval / _CHECKS_PER_INTERVAL
        self._last_seen: Any = None  # the last event at the previous check
        self._idle_checks = 0  # successive checks without a new event
        self._timer: asyncio.TimerHandle | None = None
        self._sending: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
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

    def _schedule_check(self) -> None:
        if self._check_interval:
            self._timer = asyncio.get_running_loop().call_later(self._check_interval, self._check)

    def _check(self) -> None:
        last = self._stream.last
        self._idle_checks = self._idle_checks + 1 if last is self._last_seen and self._source.waits else 0
        self._last_seen = last
        if self._idle_checks < _CHECKS_PER_INTERVAL:
            self._schedule_check()
        else:
            self._idle_checks = 0
            self._sending = asyncio.get_running_loop().create_task(self._send())

    async def _send(self) -> None:
        """Send a keep-alive, unless an event was sent since it became due."""
        if self._stream.last is self._last_seen:
            await self._stream.send_keepalive()
        self._schedule_check()
