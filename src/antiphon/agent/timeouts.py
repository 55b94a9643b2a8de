"""Aborts model calls whose engine is silent for too long, and runs that exceed their total time.

One timer serves all runs, because a timeout around every chunk would cost more than the chunk: a run only numbers its
waits, and the timer checks periodically whether the run is still in the same wait. The driver is cancelled only while
it waits for the engine; at other times it finds `stop_error` when it resumes.
"""

import asyncio
import math
from asyncio import current_task, get_running_loop
from time import monotonic
from types import TracebackType

from msgspec import Struct

from antiphon.errors import AntiphonError, EngineFailed

_TICKS_PER_TIMEOUT = 4  # checks within the shortest timeout: silence is noticed at most a quarter of that too late


class Timeouts(Struct, frozen=True, kw_only=True):
    """Seconds until the first chunk, between two chunks, and for the whole run."""

    first: float = 600.0
    idle: float = 120.0
    total: float = 3600.0


class Watchdog:
    """The timeouts of one run.

    The driver enters it around its waits: an expired timeout is raised there as its error. If the run was aborted
    before, entering raises that error.
    """

    __slots__ = (
        "_cancelled", "_deadline", "_driver", "_earlier_cancels", "_last_wait", "_silence_limit", "_silent_ticks",
        "_timeouts", "_timer", "stop_error", "wait_number",
    )  # fmt: skip

    def __init__(self, timeouts: Timeouts) -> None:
        self.wait_number = 0  # number of the current wait, from 1; 0 while the driver does not wait for the engine
        self.stop_error: AntiphonError | None = None  # why the run must end
        self._timeouts = timeouts
        self._deadline = monotonic() + timeouts.total
        self._silence_limit = math.inf
        self._last_wait = self._silent_ticks = 0
        self._driver: asyncio.Task[object] | None = None
        self._cancelled = False

    def __enter__(self) -> None:
        if self.stop_error is not None:
            raise self.stop_error
        loop = get_running_loop()
        self._driver = driver = current_task(loop)
        self._earlier_cancels = 0 if driver is None else driver.cancelling()  # cancellations requested by others
        self._timer = timer = _timers.get((loop, self._timeouts)) or _WatchdogTimer(loop, self._timeouts)
        timer.watched.add(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Drop the task: its traceback references this object, and the cycle would leak both."""
        is_ours = kind is asyncio.CancelledError and self._undo_own_cancel()
        self.wait_number = 0
        self._driver = None
        self._timer.watched.discard(self)
        if is_ours and self.stop_error is not None:
            raise self.stop_error from None

    def set_silence_limit(self, seconds: float) -> None:
        """Set the seconds that the engine may be silent from now on."""
        self._silence_limit = seconds
        self._last_wait = self._silent_ticks = 0

    def abort(self, error: AntiphonError) -> None:
        self.stop_error = error
        if self.wait_number and self._driver is not None and not self._cancelled:
            self._cancelled = True
            self._driver.cancel()

    def _undo_own_cancel(self) -> bool:
        """Withdraw the cancellation of the driver. Returns True if this watchdog alone cancelled the driver."""
        if not self._cancelled or self._driver is None:
            return False
        return self._driver.uncancel() <= self._earlier_cancels

    def tick(self, now: float, interval: float) -> bool:
        """Check the timeouts, called by the timer once per interval. Returns whether to check again."""
        is_silent = self.wait_number != 0 and self.wait_number == self._last_wait
        self._last_wait, self._silent_ticks = self.wait_number, self._silent_ticks + 1 if is_silent else 0
        if now >= self._deadline:
            self.abort(EngineFailed("The response took longer than this server allows and was ended."))
        elif self._silent_ticks * interval >= self._silence_limit:
            self.abort(EngineFailed("The engine sent no data for too long, so the call was aborted."))
        return self.stop_error is None


class _WatchdogTimer:
    """One timer for all watchdogs with the same timeouts: a timer per run would cost a short run more than the checks.

    It runs from the first watchdog that is entered until a tick finds none.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, timeouts: Timeouts) -> None:
        for stale in [key for key in _timers if key[0].is_closed()]:  # its event loop was closed before the next tick
            del _timers[stale]
        _timers[loop, timeouts] = self
        self._loop = loop
        self._timeouts = timeouts
        self._interval = min(timeouts.first, timeouts.idle, timeouts.total) / _TICKS_PER_TIMEOUT
        self.watched: set[Watchdog] = set()
        loop.call_later(self._interval, self._tick)

    def _tick(self) -> None:
        if not self.watched:
            del _timers[self._loop, self._timeouts]
            return
        now, interval = monotonic(), self._interval
        self.watched.difference_update([watchdog for watchdog in self.watched if not watchdog.tick(now, interval)])
        self._loop.call_later(interval, self._tick)


_timers: dict[tuple[asyncio.AbstractEventLoop, Timeouts], _WatchdogTimer] = {}
