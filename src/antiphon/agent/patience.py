"""Gives up on an engine that says nothing for too long, or that nobody may wait for any longer.

One timer serves a whole run, because a timeout around every chunk would cost more than the chunk: the run
only counts its waits, and the timer looks now and then whether it is still in the same one. The driver is
interrupted only while it waits for the engine; at other times it finds `over` when it comes back.
"""

import asyncio
import math

from msgspec import Struct

from antiphon.errors import AntiphonError, EngineFailed

_LOOKS = 4  # in the shortest time that silence may last; so it is noticed at most a quarter of it too late


class Deadlines(Struct, frozen=True, kw_only=True):
    """Seconds until the first chunk, between two chunks, and for all of it."""

    first: float = 600.0
    idle: float = 120.0
    total: float = 3600.0


class Patience:
    def __init__(self, deadlines: Deadlines) -> None:
        self.waits = 0  # which wait the driver is in, counted from 1; 0 while it does not wait
        self.over: AntiphonError | None = None  # why the run must end
        self._loop = asyncio.get_running_loop()
        self._end = self._loop.time() + deadlines.total
        self._pause = min(deadlines.first, deadlines.idle, deadlines.total) / _LOOKS
        self._allowed = math.inf
        self._last = self._looks = 0
        self._timer: asyncio.TimerHandle | None = None
        self._driver: asyncio.Task[object] | None = None
        self._cancelled = False
        self._before = 0  # cancellations of the driver that others had asked for before us

    def start(self) -> None:
        """By the driver, before it waits for the first time."""
        self._driver = asyncio.current_task()
        self._before = 0 if self._driver is None else self._driver.cancelling()
        self._timer = self._loop.call_later(self._pause, self._look)

    def allow(self, seconds: float) -> None:
        """From here on silence may last this long."""
        self._allowed = seconds / self._pause
        self._last, self._looks = self.waits, 0

    def stop(self) -> None:
        """For good. A cancelled task keeps where it was, and so us: if we kept it, neither would go."""
        self.waits = 0
        self._driver = None
        if self._timer is not None:
            self._timer.cancel()

    def end(self, error: AntiphonError) -> None:
        """The run has to end, for this reason."""
        self.over = error
        if self.waits and self._driver is not None and not self._cancelled:
            self._cancelled = True
            self._driver.cancel()

    def was_us(self) -> bool:
        """Did we cancel the driver, and nobody else? Then the cancellation is taken back."""
        if not self._cancelled or self._driver is None:
            return False
        self._cancelled = False
        return self._driver.uncancel() <= self._before

    def _look(self) -> None:
        silent = self.waits != 0 and self.waits == self._last
        self._last, self._looks = self.waits, self._looks + 1 if silent else 0
        if self._loop.time() >= self._end:
            self.end(EngineFailed("The response took longer than this server allows and was ended."))
        elif self._looks >= self._allowed:
            self.end(EngineFailed("The engine was silent for too long and was given up."))
        else:
            self._timer = self._loop.call_later(self._pause, self._look)
