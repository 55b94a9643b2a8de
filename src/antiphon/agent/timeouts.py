"""Gives up on an engine that says nothing for too long, or that nobody may wait for any longer.

One timer serves all runs, because a timeout around every chunk would cost more than the chunk: a run only counts its
waits, and a clock looks now and then whether it is still in the same one. The driver is interrupted only while it waits
for the engine; at other times it finds `over` when it comes back.
"""

import asyncio
import math
from asyncio import current_task, get_running_loop
from time import monotonic
from types import TracebackType

from msgspec import Struct

from antiphon.errors import AntiphonError, EngineFailed

_LOOKS = 4  # in the shortest time that silence may last; so it is noticed at most a quarter of it too late


class Deadlines(Struct, frozen=True, kw_only=True):
    """Seconds until the first chunk, between two chunks, and for all of it."""

    first: float = 600.0
    idle: float = 120.0
    total: float = 3600.0


class Patience:
    """`with patience:` by the driver, around what it waits for: what patience ends is raised there, as its reason, and
    what it had ended before at once."""

    __slots__ = (
        "_allowed", "_before", "_cancelled", "_clock", "_deadlines", "_driver", "_end", "_last", "_looks", "over",
        "waits",
    )  # fmt: skip

    def __init__(self, deadlines: Deadlines) -> None:
        self.waits = 0  # which wait the driver is in, counted from 1; 0 while it does not wait
        self.over: AntiphonError | None = None  # why the run must end
        self._deadlines = deadlines
        self._end = monotonic() + deadlines.total
        self._allowed = math.inf
        self._last = self._looks = 0
        self._driver: asyncio.Task[object] | None = None
        self._cancelled = False

    def __enter__(self) -> None:
        if self.over is not None:
            raise self.over
        loop = get_running_loop()
        self._driver = driver = current_task(loop)
        self._before = 0 if driver is None else driver.cancelling()  # by others, before us
        self._clock = clock = _clocks.get((loop, self._deadlines)) or _Clock(loop, self._deadlines)
        clock.watched.add(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """A cancelled task keeps where it was, and so us: if we kept it, neither would go."""
        was_us = kind is asyncio.CancelledError and self._was_us()
        self.waits = 0
        self._driver = None
        self._clock.watched.discard(self)
        if was_us and self.over is not None:
            raise self.over from None

    def allow(self, seconds: float) -> None:
        """From here on silence may last this long."""
        self._allowed = seconds
        self._last = self._looks = 0

    def end(self, error: AntiphonError) -> None:
        """The run has to end, for this reason."""
        self.over = error
        if self.waits and self._driver is not None and not self._cancelled:
            self._cancelled = True
            self._driver.cancel()

    def _was_us(self) -> bool:
        """Did we cancel the driver, and nobody else? Then the cancellation is taken back."""
        if not self._cancelled or self._driver is None:
            return False
        self._cancelled = False
        return self._driver.uncancel() <= self._before

    def look(self, now: float, pause: float) -> bool:
        """By the clock, once in a pause. Has it to be looked at again?"""
        silent = self.waits != 0 and self.waits == self._last
        self._last, self._looks = self.waits, self._looks + 1 if silent else 0
        if now >= self._end:
            self.end(EngineFailed("The response took longer than this server allows and was ended."))
        elif self._looks * pause >= self._allowed:
            self.end(EngineFailed("The engine was silent for too long and was given up."))
        return self.over is None


class _Clock:
    """One timer for all with the same deadlines: a timer of its own would cost a short run more than to be patient.

    It goes on from the first who starts until a look finds nobody.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, deadlines: Deadlines) -> None:
        for stale in [key for key in _clocks if key[0].is_closed()]:  # its loop ended before it could look again
            del _clocks[stale]
        _clocks[loop, deadlines] = self
        self._loop = loop
        self._deadlines = deadlines
        self._pause = min(deadlines.first, deadlines.idle, deadlines.total) / _LOOKS
        self.watched: set[Patience] = set()
        loop.call_later(self._pause, self._look)

    def _look(self) -> None:
        if not self.watched:
            del _clocks[self._loop, self._deadlines]
            return
        now, pause = monotonic(), self._pause
        self.watched.difference_update([one for one in self.watched if not one.look(now, pause)])
        self._loop.call_later(pause, self._look)


_clocks: dict[tuple[asyncio.AbstractEventLoop, Deadlines], _Clock] = {}
