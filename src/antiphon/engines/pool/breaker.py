"""Keeps work away from an engine that fails again and again, and finds out when it is well.

              FAILURES in a row                    the pause is over
    closed ─────────────────────▶ open ──────────────────────────────▶ half-open: one trial at a time
      ▲                            ▲                                      │      │
      │                            └────── the trial fails ───────────────┘      │
      └─────────────────────────────────── it begins to answer ──────────────────┘

What began before the last change of state says nothing about the state of now, and is not heard. Each time that a
trial fails the next pause is longer. Times are handed in.
"""

from typing import Literal

FAILURES = 3
PAUSE = 2.0  # seconds
LONGEST_PAUSE = 60.0

Phase = Literal["closed", "open", "half-open"]


class Breaker:
    """`calm`: it is closed and nothing has failed since it answered last, so nothing that goes well has to be told.
    `epoch`: the number by which it is told of works that it is given now; grows with every change."""

    __slots__ = ("_failures", "_first_pause", "_longest", "_most", "_pause", "_trial", "_until", "calm", "epoch")

    def __init__(self, failures: int = FAILURES, pause: float = PAUSE, longest: float = LONGEST_PAUSE) -> None:
        self._most = failures
        self._first_pause = pause
        self._longest = longest
        self._failures = 0  # in a row
        self._pause = pause  # of the next time that it opens
        self._until: float | None = None  # when the pause is over; None: it is closed
        self._trial = False  # one is under way
        self.epoch = 0
        self.calm = True

    def phase(self, now: float) -> Phase:
        if self._until is None:
            return "closed"
        return "open" if now < self._until else "half-open"

    def allows(self, now: float) -> bool:
        """May it be given work?"""
        return self._until is None or (now >= self._until and not self._trial)

    def opens_in(self, now: float) -> float:
        """Seconds until it may be given work again, if no trial is under way."""
        return 0.0 if self._until is None else max(0.0, self._until - now)

    def enter(self) -> int:
        """It is given work. What becomes of that is told with this number."""
        self._trial = self._until is not None
        return self.epoch

    def began(self, epoch: int) -> int:
        """It began to answer. What comes after is told with the number that is given back."""
        if epoch != self.epoch or self._until is None:
            return epoch
        self._change()
        self._until = None
        self._failures = 0
        return self.epoch

    def ended(self) -> None:
        """It answered to the end."""
        if self._until is None:
            self._failures = 0
            self._pause = self._first_pause
            self.calm = True

    def answered(self, epoch: int) -> None:
        """All at once."""
        self.began(epoch)
        self.ended()

    def failed(self, epoch: int, now: float) -> None:
        if epoch != self.epoch:
            return
        self._failures += 1
        self.calm = False
        if self._until is not None or self._failures >= self._most:
            self._change()
            self._until = now + self._pause
            self._pause = min(2 * self._pause, self._longest)

    def left(self, epoch: int) -> None:
        """Nobody waited for what becomes of it, or it says nothing about the engine: another trial may be made."""
        if epoch == self.epoch:
            self._trial = False

    def _change(self) -> None:
        self.epoch += 1
        self._trial = False
