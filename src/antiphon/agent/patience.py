"""Gives up on an engine that says nothing for too long, or that nobody may wait for any longer.

One timer serves all runs, because a timeout around every chunk would cost more than the chunk: a run only counts its
waits, and a clock looks now and then whether it is still in the same one. The driver is interrupted only while it waits
for the engine; at other times it finds `over` when it comes back.
"""

import asyncio
import math
from time import monotonic

from msgspec import Struct

from antiphon.errors import AntiphonError, EngineFailed

_LOOKS = 4  # in the shortest time that silence may last; so it is noticed at most a quarter of it too late


class Deadlines(Struct, frozen=True, kw_only=True):
    """Seconds until the first chunk, between two chunks, and for all of it."""

    first: float = 600.0
    idle: float = 120.0
    total: float = 3600.0


class Patience:
    __slots__ = (
        "_allowed", "_before", "_cancelled", "_clock", "_driver", "_end", "_last", "_looks", "_pause", "over", "waits",
    )  # fmt: skip

    def __init__(self, deadlines: Deadlines) -> None:
        self.waits = 0  # which wait the driver is in, counted from 1; 0 while it does not wait
        self.over: AntiphonError | None = None  # why the run must end
        self._end = monotonic() + deadlines.total
        self._pause = min(deadlines.first, deadlines.idle, deadlines.total) / _LOOKS
        self._allowed = math.inf
        self._last = self._looks = 0
        self._clock: _Clock | None = None
        self._driver: asyncio.Task[object] | None = None
        self._cancelled = False
        self._before = 0  # cancellations of the driver that others had asked for before us

    def start(self) -> None:
        """By the driver, before it waits for the first time."""
        loop = asyncio.get_running_loop()
        self._driver = driver = asyncio.current_task(loop)
        self._before = 0 if driver is None else driver.cancelling()
        self._clock = _clocks.get((loop, self._pause)) or _Clock(loop, self._pause)
        self._clock.watched.add(self)

    def allow(self, seconds: float) -> None:
        """From here on silence may last this long."""
        self._allowed = seconds / self._pause
        self._last = self._looks = 0

    def stop(self) -> None:
        """For good. A cancelled task keeps where it was, and so us: if we kept it, neither would go."""
        self.waits = 0
        self._driver = None
        if self._clock is not None:
            self._clock.watched.discard(self)

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

    def look(self, now: float) -> bool:
        """By the clock, once in a pause. Has it to be looked at again?"""
        silent = self.waits != 0 and self.waits == self._last
        self._last, self._looks = self.waits, self._looks + 1 if silent else 0
        if now >= self._end:
            self.end(EngineFailed("The response took longer than this server allows and was ended."))
        elif self._looks >= self._allowed:
            self.end(EngineFailed("The engine was silent for too long and was given up."))
        return self.over is None


class _Clock:
    """One timer for all who look equally often: a timer of its own would cost a short run more than to be patient.

    It goes on from the first who starts until a look finds nobody.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, pause: float) -> None:
        for stale in [key for key in _clocks if key[0].is_closed()]:  # its loop ended before it could look again
            del _clocks[stale]
        _clocks[loop, pause] = self
        self._loop = loop
        self._pause = pause
        self.watched: set[Patience] = set()
        loop.call_later(pause, self._look)

    def _look(self) -> None:
        if not self.watched:
            del _clocks[self._loop, self._pause]
            return
        now = monotonic()
        self.watched.difference_update([one for one in self.watched if not one.look(now)])
        self._loop.call_later(self._pause, self._look)


_clocks: dict[tuple[asyncio.AbstractEventLoop, float], _Clock] = {}
