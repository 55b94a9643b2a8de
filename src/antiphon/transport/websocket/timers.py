"""How long a connection may live, and when it is told that its end is near: two timers, and nothing else.

Breaks the silence of a response: a keep-alive after a while in which somebody else was waited for.

Nothing is sent before the first event. A ping of the protocol would not do: clients do not take it for a sign of life
of their response.
"""

import asyncio
from collections.abc import Callable
from time import time
from types import TracebackType

from antiphon.protocol.types.events import Event
from antiphon.service.runs.source import Source
from antiphon.transport.websocket.event_writer import SocketOutlet


class Clocks:
    """`warning`: seconds before the end of the `lifetime` at which `warn` is told that moment; 0: never."""

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


_LOOKS = 4  # in the time that silence may last; so it is broken at most a quarter of that too late


class Silence:
    """Looks at an outlet now and then, by a timer alone, while it is entered. `interval`: 0 looks never."""

    def __init__(self, source: Source, outlet: SocketOutlet, interval: float) -> None:
        self._source = source
        self._outlet = outlet
        self._pause = interval / _LOOKS
        self._heard: Event | None = None
        self._looks = 0
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> None:
        if self._pause:
            self._wait()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _wait(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._pause, self._look)

    def _look(self) -> None:
        last = self._outlet.last
        self._looks = self._looks + 1 if last is self._heard and self._source.waits else 0
        self._heard = last
        if self._looks >= _LOOKS:
            self._looks = 0
            self._outlet.nudge()
        self._wait()
