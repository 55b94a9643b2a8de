"""Circuit breaker: keeps requests from an engine that fails repeatedly, and notices its recovery.

              FAILURES in a row                    the pause is over
    closed ─────────────────────▶ open ──────────────────────────────▶ half-open: one trial at a time
      ▲                            ▲                                      │      │
      │                            └────── the trial fails ───────────────┘      │
      └─────────────────────────────────── the first chunk arrives ──────────────┘

Results of requests from before the last change of state are ignored. Every failed trial doubles the next pause. The
caller passes the current time.
"""

from typing import Literal

FAILURES = 3
PAUSE = 2.0  # seconds
MAX_PAUSE = 60.0

BreakerPhase = Literal["closed", "open", "half-open"]


class Breaker:
    """Breaker of one engine.

    `clean`: closed without a failure since the last success, so successes need not be recorded. `epoch`: number of the
    current state, under which results of requests started now are recorded; grows with every change.
    """

    __slots__ = (
        "_failures",
        "_first_pause",
        "_max_failures",
        "_max_pause",
        "_pause",
        "_trial",
        "_until",
        "clean",
        "epoch",
    )

    def __init__(self, failures: int = FAILURES, pause: float = PAUSE, max_pause: float = MAX_PAUSE) -> None:
        self._max_failures = failures
        self._first_pause = pause
        self._max_pause = max_pause
        self._failures = 0  # consecutive failures
        self._pause = pause  # length of the next pause
        self._until: float | None = None  # end of the pause; None: closed
        self._trial = False  # whether a trial is running
        self.epoch = 0
        self.clean = True

    def phase(self, now: float) -> BreakerPhase:
        if self._until is None:
            return "closed"
        return "open" if now < self._until else "half-open"

    def allows(self, now: float) -> bool:
        """Whether a request may be sent now."""
        return self._until is None or (now >= self._until and not self._trial)

    def seconds_until_trial(self, now: float) -> float:
        """Return the seconds until a request may be sent, if no trial is running."""
        return 0.0 if self._until is None else max(0.0, self._until - now)

    def enter(self) -> int:
        """Note that a request is sent, and return the epoch under which to record its result."""
        self._trial = self._until is not None
        return self.epoch

    def record_start(self, epoch: int) -> int:
        """Record the first chunk, and return the epoch for what follows."""
        if epoch != self.epoch or self._until is None:
            return epoch
        self._start_epoch()
        self._until = None
        self._failures = 0
        return self.epoch

    def record_end(self) -> None:
        """Record a complete response."""
        if self._until is None:
            self._failures = 0
            self._pause = self._first_pause
            self.clean = True

    def record_success(self, epoch: int) -> None:
        """Record a response that arrived at once."""
        self.record_start(epoch)
        self.record_end()

    def record_failure(self, epoch: int, now: float) -> None:
        if epoch != self.epoch:
            return
        self._failures += 1
        self.clean = False
        if self._until is not None or self._failures >= self._max_failures:
            self._start_epoch()
            self._until = now + self._pause
            self._pause = min(2 * self._pause, self._max_pause)

    def release_trial(self, epoch: int) -> None:
        """Allow another trial: the request was cancelled, or its result does not concern the engine."""
        if epoch == self.epoch:
            self._trial = False

    def _start_epoch(self) -> None:
        self.epoch += 1
        self._trial = False
