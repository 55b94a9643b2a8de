"""Shares the event loop fairly among streams that are pushed to their clients.

Data that arrives is processed at once while the budget lasts. After that, streams queue up, and one callback per
iteration of the event loop continues them in turn, for at most BUDGET_SECONDS. Between two iterations the loop accepts
connections, starts requests and passes on first tokens, which do not queue here.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from weakref import WeakKeyDictionary

BUDGET_SECONDS = 0.001  # of processing per iteration of the event loop


class TurnScheduler:
    """The streams of one event loop that wait for their turn.

    The budget is only reset by a callback, which is scheduled when it is used up: a loop that is not saturated needs
    one callback for hundreds of reads.
    """

    __slots__ = ("_loop", "_queue", "_spent", "is_free")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queue: deque[Callable[[], None]] = deque()
        self._spent = 0.0  # seconds since the last reset
        self.is_free = True  # whether data may be processed at once

    def spend(self, seconds: float) -> None:
        """Charge the time that the processing of data took."""
        self._spent += seconds
        if self._spent >= BUDGET_SECONDS:
            self._end_turn()

    def enqueue(self, step: Callable[[], None]) -> None:
        """Call `step` when its turn comes. It charges its time itself, and must not raise."""
        self._queue.append(step)
        self._end_turn()

    def _end_turn(self) -> None:
        if self.is_free:
            self.is_free = False
            self._loop.call_soon(self._begin_turn)

    def _begin_turn(self) -> None:
        self._spent = 0.0
        while self._queue and self._spent < BUDGET_SECONDS:
            self._queue.popleft()()
        if self._spent < BUDGET_SECONDS:
            self.is_free = True
        else:
            self._loop.call_soon(self._begin_turn)


_schedulers: "WeakKeyDictionary[asyncio.AbstractEventLoop, TurnScheduler]" = WeakKeyDictionary()


def get_scheduler(loop: asyncio.AbstractEventLoop) -> TurnScheduler:
    """Return the scheduler that all streams of `loop` share."""
    if (scheduler := _schedulers.get(loop)) is None:
        scheduler = _schedulers[loop] = TurnScheduler(loop)
    return scheduler
