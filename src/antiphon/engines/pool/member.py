"""One engine of a pool: whether it may be given work, how much it has, and what became of it.

epoch = member.enter(model)           it has one more to do
epoch = member.breaker.began(epoch)   the first chunk came
member.breaker.ended()                and the last; or member.failed(error, epoch)
member.leave(model, epoch)            in any case
"""

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

from msgspec import Struct

from antiphon.engines.base import Capabilities, Engine, Model, State
from antiphon.engines.pool.breaker import Breaker
from antiphon.errors import AntiphonError, BadRequest, Busy, EngineFailed, ModelNotFound, Unavailable

log = logging.getLogger(__name__)

_MOST_PAUSE = 60.0
_MOST_LETTERS = 200


class Seat(Struct, frozen=True, kw_only=True):
    """What a member is made from. With the same place and settings it is the same engine."""

    name: str
    place: str  # in which every server that has it calls it the same
    settings: Any
    build: Callable[[], Engine]
    bound: int | None = None  # works at once; None: as many as it has slots
    drain: bool = False


class Member:
    def __init__(self, seat: Seat, engine: Engine) -> None:
        self.engine = engine
        self.breaker = Breaker()
        self.leaving = False  # it is not configured any more
        self.works = 0
        self.failures = 0
        self.idle = asyncio.Event()  # set when it has nothing more to do, once it is leaving
        self.running = 0
        self._running: dict[str, int] = {}  # the same, by model
        self._models: Sequence[Model] = ()  # as it listed them last, and their names
        self._names: frozenset[str] = frozenset()
        self._resumes = 0.0  # when it wants to be asked again, as it said itself
        self.bind(seat, None)

    def bind(self, seat: Seat, told: int | None) -> None:
        """`told`: slots that it says it has, for a model. With fewer works than `most` it has room for any of them."""
        self.seat, self.told = seat, told
        most = 0 if seat.drain else _least(told, seat.bound)
        self.most = math.inf if most is None else most

    @property
    def name(self) -> str:
        return self.seat.name

    @property
    def draining(self) -> bool:
        return self.leaving or self.seat.drain

    def is_like(self, seat: Seat) -> bool:
        return (self.seat.place, self.seat.settings) == (seat.place, seat.settings)

    def lists(self, model: str) -> bool:
        """Does it say itself that it has it? Some engines serve whatever they are asked for."""
        if (models := self.engine.models()) is not self._models:
            self._models, self._names = models, frozenset(one.id for one in models)
        return model in self._names

    def fit(self, now: float) -> bool:
        """May it be given work now?"""
        return self.engine.healthy() and self.breaker.allows(now) and now >= self._resumes

    def fit_in(self, now: float) -> float:
        """Seconds until it may be, as far as it is known."""
        return max(self._resumes - now, self.breaker.opens_in(now), 0.0)

    def slots(self, able: Capabilities) -> int | None:
        """How many works of a model it takes at once."""
        return _least(able.slots, self.seat.bound)

    def load(self, model: str, able: Capabilities) -> int:
        """Works that share the slots of the model: an engine that says how many it has, says so of each model."""
        return self.running if able.slots is None else self._running.get(model, 0)

    def has_room(self, model: str, able: Capabilities) -> bool:
        slots, bound = self.slots(able), self.seat.bound
        return (slots is None or self.load(model, able) < slots) and (bound is None or self.running < bound)

    def enter(self, model: str) -> int:
        """It is given a work, which counts until it is left. What becomes of it is told with this number."""
        breaker = self.breaker
        self.works += 1
        self.running += 1
        self._running[model] = self._running.get(model, 0) + 1
        return breaker.epoch if breaker.calm else breaker.enter()

    def leave(self, model: str, epoch: int) -> None:
        if not self.breaker.calm:
            self.breaker.left(epoch)
        self.running -= 1
        if self._running[model] == 1:
            del self._running[model]
        else:
            self._running[model] -= 1
        if self.leaving and not self.running:
            self.idle.set()

    def failed(self, error: AntiphonError, epoch: int) -> None:
        """What it says about the engine: that it is ill, that it wants to be left alone for a while, or nothing."""
        now = monotonic()
        if is_ill(error):
            self.failures += 1
            was = self.breaker.phase(now)
            self.breaker.failed(epoch, now)
            if was == "closed" != self.breaker.phase(now):
                log.warning("The engine %s has failed again and again, the last time so: %s", self.name, _line(error))
        if isinstance(error, Busy | Unavailable) and error.retry_after:
            self._resumes = max(self._resumes, now + min(error.retry_after, _MOST_PAUSE))

    def state(self, now: float) -> State:
        return State(
            name=self.name,
            engine=self.engine.name,
            models=tuple(model.id for model in self.engine.models()),
            healthy=self.engine.healthy(),
            draining=self.draining,
            breaker=self.breaker.phase(now),
            running=self.running,
            slots=_least(self.told, self.seat.bound),
            works=self.works,
            failures=self.failures,
        )


def _least(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


def _line(error: AntiphonError) -> str:
    """For the log: an engine may say anything, at any length."""
    return " ".join(str(error)[:_MOST_LETTERS].split())


def is_ill(error: AntiphonError) -> bool:
    """Gone, silent, broken, or a 5xx; never what is wrong with a request, nor too much to do."""
    return isinstance(error, EngineFailed | Unavailable)


def moves_on(error: AntiphonError) -> bool:
    """Might another engine do better?"""
    if isinstance(error, BadRequest):
        return False
    return isinstance(error, EngineFailed | Unavailable | Busy | ModelNotFound)
