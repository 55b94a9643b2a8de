"""Members of a pool, which may change while it runs: their availability, their load and the results of their requests.

    joining ──▶ member ──no longer configured──▶ leaving ──its requests ended, or the grace period is over──▶ closed

If a new member cannot be opened, nothing changes. A request uses its member in this order:

epoch = member.start_request(model)          one more request is running
epoch = member.breaker.record_start(epoch)   the first chunk arrived
member.breaker.record_end()                  the last chunk arrived; or member.record_failure(error, epoch)
member.end_request(model, epoch)             in any case
"""

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

from msgspec import Struct

from antiphon.engines.base import Capabilities, Engine, EngineStatus, Model, min_limit
from antiphon.engines.pool.breaker import Breaker
from antiphon.errors import AntiphonError, BadRequest, Busy, EngineFailed, ModelNotFound, Unavailable

log = logging.getLogger(__name__)

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
        self._running_by_model: dict[str, int] = {}  # running requests by model
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
        """Whether the engine itself lists the model; some engines serve any name."""
        if (models := self.engine.models()) is not self._models:
            self._models, self._model_names = models, frozenset(one.id for one in models)
        return model in self._model_names

    def is_available(self, now: float) -> bool:
        """Whether it may get a request now."""
        return self.engine.is_healthy() and self.breaker.allows(now) and now >= self._retry_at

    def available_in(self, now: float) -> float:
        """Return the seconds until it may get a request, as far as known."""
        return max(self._retry_at - now, self.breaker.seconds_until_trial(now), 0.0)

    def slots_for(self, capabilities: Capabilities) -> int | None:
        """Return how many requests for a model it runs at once."""
        return min_limit(capabilities.slots, self.spec.max_running)

    def load_of(self, model: str, capabilities: Capabilities) -> int:
        """Return the running requests that share the model's slots: an engine that reports slots has them per model."""
        return self.running if capabilities.slots is None else self._running_by_model.get(model, 0)

    def has_free_slot(self, model: str, capabilities: Capabilities) -> bool:
        slots, limit = self.slots_for(capabilities), self.spec.max_running
        return (slots is None or self.load_of(model, capabilities) < slots) and (limit is None or self.running < limit)

    def start_request(self, model: str) -> int:
        """Count a request until `end_request`, and return the epoch under which to record its result."""
        breaker = self.breaker
        self.requests += 1
        self.running += 1
        self._running_by_model[model] = self._running_by_model.get(model, 0) + 1
        return breaker.epoch if breaker.clean else breaker.enter()

    def end_request(self, model: str, epoch: int) -> None:
        if not self.breaker.clean:
            self.breaker.release_trial(epoch)
        self.running -= 1
        if self._running_by_model[model] == 1:
            del self._running_by_model[model]
        else:
            self._running_by_model[model] -= 1
        if self.leaving and not self.running:
            self.idle.set()

    def record_failure(self, error: AntiphonError, epoch: int) -> None:
        """Record what an error means for the engine: a fault, a pause that it asked for, or nothing."""
        now = monotonic()
        if is_engine_fault(error):
            self.failures += 1
            before = self.breaker.phase(now)
            self.breaker.record_failure(epoch, now)
            if before == "closed" != self.breaker.phase(now):
                log.warning("The engine %s keeps failing and is paused; last error: %s", self.name, _to_log_line(error))
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
        )


def _to_log_line(error: AntiphonError) -> str:
    """Return the message in one line of bounded length: an engine may send anything."""
    return " ".join(str(error)[:_MAX_LOG_LENGTH].split())


def is_engine_fault(error: AntiphonError) -> bool:
    """Whether the engine is down, silent, broken or returned 5xx; never for invalid requests or overload."""
    return isinstance(error, EngineFailed | Unavailable)


def is_retryable(error: AntiphonError) -> bool:
    """Whether another engine might succeed."""
    if isinstance(error, BadRequest):
        return False
    return isinstance(error, EngineFailed | Unavailable | Busy | ModelNotFound)


class MembershipChange(Struct, frozen=True):
    """Names of the members that joined and that were removed."""

    joined: list[str]
    removed: list[str]


class Membership:
    """The current and the leaving members. `grace`: seconds that a leaving member has for its running requests."""

    def __init__(self, specs: Sequence[MemberSpec], grace: float) -> None:
        self._grace = grace
        self._set_members([PoolMember(spec, spec.build()) for spec in specs])
        self._closing_tasks: dict[PoolMember, asyncio.Task[None]] = {}
        self._update_lock = asyncio.Lock()

    @property
    def leaving(self) -> Sequence[PoolMember]:
        return [*self._closing_tasks]

    async def open(self) -> None:
        await _open_all(self.members)
        if len(self.members) > 1:
            _log_locations(self.members)

    async def close(self) -> None:
        tasks = [*self._closing_tasks.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await asyncio.gather(*(member.engine.close() for member in self.members))

    async def update_members(self, specs: Sequence[MemberSpec]) -> MembershipChange:
        """Replace the members by those of the specs; raise StartupError if a new one cannot be opened."""
        async with self._update_lock:
            matched = self._match_specs(specs)
            joined = [PoolMember(spec, spec.build()) for spec, existing in matched if existing is None]
            await self._open_new(joined)
            joining = iter(joined)
            removed = [member for member in self.members if not any(existing is member for _, existing in matched)]
            self._set_members([existing or next(joining) for _, existing in matched])
            for (spec, _), member in zip(matched, self.members, strict=True):
                member.bind(spec, member.reported_slots)
            for member in removed:
                self._start_closing(member)
            _log_locations(joined)
            return MembershipChange([member.name for member in joined], [member.name for member in removed])

    def _set_members(self, members: Sequence[PoolMember]) -> None:
        self.members = members
        # set if there is one member, so that no choice is needed
        self.only_member = members[0] if len(members) == 1 else None

    async def _open_new(self, members: Sequence[PoolMember]) -> None:
        opened = False
        try:
            await _open_all(members)
            opened = True
        finally:
            if not opened:
                await asyncio.gather(*(member.engine.close() for member in members))

    def _match_specs(self, specs: Sequence[MemberSpec]) -> list[tuple[MemberSpec, PoolMember | None]]:
        """Pair each spec with the existing member that it describes, if any."""
        unmatched = [*self.members]
        matches: list[tuple[MemberSpec, PoolMember | None]] = []
        for spec in specs:
            existing = next((member for member in unmatched if member.matches(spec)), None)
            if existing is not None:
                unmatched.remove(existing)
            matches.append((spec, existing))
        return matches

    def _start_closing(self, member: PoolMember) -> None:
        member.leaving = True
        task = asyncio.get_running_loop().create_task(self._close_when_idle(member), name=f"closing of {member.name}")
        self._closing_tasks[member] = task
        task.add_done_callback(lambda _: self._closing_tasks.pop(member, None))

    async def _close_when_idle(self, member: PoolMember) -> None:
        try:
            async with asyncio.timeout(self._grace):
                if member.running:
                    await member.idle.wait()
        except TimeoutError:
            log.warning("%s is closed with %d running requests: its grace period is over", member.name, member.running)
        finally:
            await member.engine.close()
        log.info("%s is closed", member.name)


async def _open_all(members: Sequence[PoolMember]) -> None:
    """Open all members concurrently, since some take long; raise the first failure after all have finished."""
    outcomes = await asyncio.gather(*(member.engine.open() for member in members), return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome


def _log_locations(members: Sequence[PoolMember]) -> None:
    """Log the location behind each member name, which metrics use."""
    for member in members:
        log.info("The engine %s is at %s", member.name, member.spec.location)
