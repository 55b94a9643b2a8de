"""A member of a pool: its availability, its load and the results of its requests. A request uses it in this order:

epoch = member.start_request(model)          one more request is running
epoch = member.breaker.record_start(epoch)   the first chunk arrived
member.breaker.record_end()                  the last chunk arrived; or member.record_failure(error, epoch)
member.end_request(model, epoch)             in any case
"""

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any, Literal

from msgspec import Struct

from antiphon.engines.base import Capabilities, Engine, EngineStatus, Model, min_limit
from antiphon.errors import AntiphonError, BadRequest, Busy, EngineFailed, ModelNotFound, Unavailable

log = logging.getLogger(__name__)

FAILURES = 3
PAUSE = 2.0  # seconds
MAX_PAUSE = 60.0
_MAX_RETRY_AFTER = 60.0
_MAX_LOG_LENGTH = 200


class MemberSpec(Struct, frozen=True, kw_only=True):
    """Specification from which a member is built. Two specs with the same location and settings are the same engine."""

    name: str
    location: str  # the same on every server that has this engine
    settings: Any
    build: Callable[[], Engine]
    max_running: int | None = None  # concurrent requests; None: as many as it has slots
    drain: bool = False


class Breaker(Struct, eq=False):
    """Keeps requests from an engine that fails repeatedly, and notices its recovery.

                  FAILURES in a row                    the pause is over
        closed ─────────────────────▶ open ──────────────────────────────▶ half-open: one trial at a time
          ▲                            ▲                                      │      │
          │                            └────── the trial fails ───────────────┘      │
          └─────────────────────────────────── the first chunk arrives ──────────────┘

    Results of requests from before the last change of state are ignored. Every failed trial doubles the next pause. The
    caller passes the current time.

    `epoch`: number of the current state, under which requests started now are recorded; grows with every change.
    """

    _failures: int = 0  # consecutive failures
    _pause: float = PAUSE  # length of the next pause
    _until: float | None = None  # end of the pause; None: closed
    _trial: bool = False  # whether a trial is running
    epoch: int = 0

    def phase(self, now: float) -> Literal["closed", "open", "half-open"]:
        if self._until is None:
            return "closed"
        return "open" if now < self._until else "half-open"

    def allows(self, now: float) -> bool:
        """Return whether a request may be sent now."""
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
        if self._until is None:
            self._failures = 0
            self._pause = PAUSE

    def record_success(self, epoch: int) -> None:
        """Record a response that arrived at once."""
        self.record_start(epoch)
        self.record_end()

    def record_failure(self, epoch: int, now: float) -> None:
        if epoch != self.epoch:
            return
        self._failures += 1
        if self._until is not None or self._failures >= FAILURES:
            self._start_epoch()
            self._until = now + self._pause
            self._pause = min(2 * self._pause, MAX_PAUSE)

    def release_trial(self, epoch: int) -> None:
        """Allow another trial: the request was cancelled, or its result does not concern the engine."""
        if epoch == self.epoch:
            self._trial = False

    def _start_epoch(self) -> None:
        self.epoch += 1
        self._trial = False


class PoolMember:
    """Runtime state of one engine."""

    def __init__(self, spec: MemberSpec, engine: Engine) -> None:
        self.engine = engine
        self.breaker = Breaker()
        self.leaving = False  # no longer configured
        self.requests = 0
        self.failures = 0
        self.idle = asyncio.Event()  # set when a leaving member has no more running requests
        self.running = 0
        self._running_by_model: Counter[str] = Counter()
        self._models: Sequence[Model] = ()  # as last listed, with their names below
        self._model_names: frozenset[str] = frozenset()
        self._retry_at = 0.0  # when it accepts requests again, from its own Retry-After
        self.bind(spec, None)

    def bind(self, spec: MemberSpec, reported_slots: int | None) -> None:
        """Set the spec and the slots that the engine reports for a model.

        Below `max_running` running requests it has a free slot for any model.
        """
        self.spec, self.reported_slots = spec, reported_slots
        limit = 0 if spec.drain else min_limit(reported_slots, spec.max_running)
        self.max_running = math.inf if limit is None else limit

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def draining(self) -> bool:
        return self.leaving or self.spec.drain

    def matches(self, spec: MemberSpec) -> bool:
        return (self.spec.location, self.spec.settings) == (spec.location, spec.settings)

    def lists_model(self, model: str) -> bool:
        """Return whether the engine itself lists the model; some engines serve any name."""
        if (models := self.engine.models()) is not self._models:
            self._models, self._model_names = models, frozenset(one.id for one in models)
        return model in self._model_names

    def is_available(self, now: float) -> bool:
        return self.engine.is_healthy() and self.breaker.allows(now) and now >= self._retry_at

    def available_in(self, now: float) -> float:
        """Return the seconds until it may get a request, as far as known."""
        return max(self._retry_at - now, self.breaker.seconds_until_trial(now), 0.0)

    def slots_for(self, capabilities: Capabilities) -> int | None:
        """Return how many requests for a model it runs at once."""
        return min_limit(capabilities.slots, self.spec.max_running)

    def load_of(self, model: str, capabilities: Capabilities) -> int:
        """Return the running requests that share the model's slots: an engine that reports slots has them per model."""
        return self.running if capabilities.slots is None else self._running_by_model[model]

    def has_free_slot(self, model: str, capabilities: Capabilities) -> bool:
        slots, limit = self.slots_for(capabilities), self.spec.max_running
        return (slots is None or self.load_of(model, capabilities) < slots) and (limit is None or self.running < limit)

    def start_request(self, model: str) -> int:
        """Count a request until `end_request`, and return the epoch under which to record its result."""
        self.requests += 1
        self.running += 1
        self._running_by_model[model] += 1
        return self.breaker.enter()

    def end_request(self, model: str, epoch: int) -> None:
        self.breaker.release_trial(epoch)
        self.running -= 1
        self._running_by_model[model] -= 1
        if not self._running_by_model[model]:
            del self._running_by_model[model]
        if self.leaving and not self.running:
            self.idle.set()

    def record_failure(self, error: AntiphonError, epoch: int) -> None:
        """Record what an error means for the engine: a fault, a pause that it asked for, or nothing."""
        now = monotonic()
        if isinstance(error, EngineFailed | Unavailable):  # it is down, silent, broken or returned 5xx
            self.failures += 1
            before = self.breaker.phase(now)
            self.breaker.record_failure(epoch, now)
            if before == "closed" != self.breaker.phase(now):
                line = " ".join(str(error)[:_MAX_LOG_LENGTH].split())  # bounded: an engine may send anything
                log.warning("The engine %s keeps failing and is paused; last error: %s", self.name, line)
        if isinstance(error, Busy | Unavailable) and error.retry_after:
            self._retry_at = max(self._retry_at, now + min(error.retry_after, _MAX_RETRY_AFTER))

    def status(self, now: float) -> EngineStatus:
        return EngineStatus(
            name=self.name,
            engine=self.engine.name,
            models=tuple(model.id for model in self.engine.models()),
            healthy=self.engine.is_healthy(),
            draining=self.draining,
            breaker=self.breaker.phase(now),
            running=self.running,
            slots=min_limit(self.reported_slots, self.spec.max_running),
            works=self.requests,
            failures=self.failures,
            loaded=self.engine.statuses()[0].loaded,
        )


def is_retryable(error: AntiphonError) -> bool:
    """Return whether another engine might succeed."""
    return isinstance(error, EngineFailed | Unavailable | Busy | ModelNotFound) and not isinstance(error, BadRequest)
