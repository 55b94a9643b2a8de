"""Breaks the silence of a response: a keep-alive after a while in which somebody else was waited for.

Nothing is sent before the first event. A ping of the protocol would not do: clients do not take it for a sign of life
of their response.
"""

import asyncio
from types import TracebackType

from antiphon.protocol.types.events import Event
from antiphon.service.runs.source import Source
from antiphon.transport.websocket.outlet import SocketOutlet

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
