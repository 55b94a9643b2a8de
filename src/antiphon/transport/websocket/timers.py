"""Timers of a WebSocket: the lifetime of a connection with its warning, and the keep-alives of a response.

A keep-alive is sent when a response has waited for an engine or another process for some time, and never before its
first event. Pings of the protocol (RFC 6455 §5.5.2) would not do: clients do not take them as a sign that their
response is alive.
"""

import asyncio
from collections.abc import Callable
from time import time
from types import TracebackType

from antiphon.protocol.types.events import Event
from antiphon.service.runs.follow import ResponseSource
from antiphon.transport.websocket.event_writer import WebSocketEventWriter


class ConnectionLifetime:
    """Calls `expire` after `lifetime` seconds, and `warn`, with that time, `warning` seconds earlier; 0: no warning."""

    __slots__ = ("_timers",)

    def __init__(
        self, lifetime: float, warning: float, warn: Callable[[int], None], expire: Callable[[], None]
    ) -> None:
        loop = asyncio.get_running_loop()
        self._timers = [loop.call_later(lifetime, expire)]
        if 0 < warning < lifetime:
            self._timers.append(loop.call_later(lifetime - warning, warn, int(time() + lifetime)))

    def stop(self) -> None:
        for timer in self._timers:
            timer.cancel()


_CHECKS_PER_INTERVAL = 4  # a keep-alive is at most a quarter of the interval late


class ResponseKeepAlive:
    """Sends keep-alives for one response, inside `with`. It uses only a timer. `interval`: seconds; 0: no
    keep-alives.
    """

    def __init__(self, source: ResponseSource, writer: WebSocketEventWriter, interval: float) -> None:
        self._source = source
        self._writer = writer
        self._check_interval = interval / _CHECKS_PER_INTERVAL
        self._last_seen: Event | None = None
        self._idle_checks = 0
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> None:
        if self._check_interval:
            self._schedule_check()

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _schedule_check(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._check_interval, self._check)

    def _check(self) -> None:
        last = self._writer.last
        self._idle_checks = self._idle_checks + 1 if last is self._last_seen and self._source.waits else 0
        self._last_seen = last
        if self._idle_checks >= _CHECKS_PER_INTERVAL:
            self._idle_checks = 0
            self._writer.send_keepalive()
        self._schedule_check()
