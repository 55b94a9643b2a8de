"""Selection of the member of a pool for a request: one that serves the model, is available and has a free slot.

A request waits while all such members are busy; the end of any request wakes the waiting ones. Among several, the one
with a warm cache for the request is chosen, unless it is overloaded. Every member has a rank for a key, which is a hash
of both (rendezvous hashing), so all servers in front of the same engines rank them alike, and if one is removed only
its own keys move. The first member in rank whose load stays within SKEW times the mean, plus one, is chosen. The least
loaded member always satisfies that, so there is always a choice.
"""

import asyncio
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import islice
from time import monotonic as _now
from typing import Any

from msgspec import Struct

from antiphon.core.prompt import ChatPrompt, GenerationRequest, Prompt, TextPrompt, TokenPrompt
from antiphon.engines.base import PromptLevel
from antiphon.engines.pool.capabilities import MemberCapabilities, choose_level
from antiphon.engines.pool.members import PoolMember, is_retryable
from antiphon.errors import AntiphonError, Busy, EngineFailed, ModelNotFound, Unavailable

SKEW = 1.25
MAX_TEXT_LENGTH = 4096  # characters of each text that go into a key
MAX_TEXTS = 32
MAX_TOKENS = 64
SLOT_POLL_SECONDS = 1.0  # between checks for a free slot, in case no wake-up arrives
_MIN_RETRY_AFTER = 1.0


class LoadCandidate(Struct, frozen=True):
    """A member as the balancer sees it. `location` is the same on every server that has this engine."""

    location: str
    running: int
    slots: int | None = None


def choose(candidates: Sequence[LoadCandidate], key: bytes) -> int:
    """Return the index of the candidate for a key; there is at least one candidate."""
    if len(candidates) == 1:
        return 0
    limits = _load_limits(candidates)
    ranked = sorted(range(len(candidates)), key=lambda index: _rank(candidates[index].location, key), reverse=True)
    return next(index for index in ranked if candidates[index].running + 1 <= limits[index])


def choose_least_loaded(candidates: Sequence[LoadCandidate]) -> int:
    """Return the index of the least loaded candidate, for requests that no cache makes faster."""
    loads = [(one.running / (one.slots or 1), one.location) for one in candidates]
    return loads.index(min(loads))


def affinity_key(request: GenerationRequest) -> bytes:
    """Return a key that requests with a common prefix share: the client's own affinity, else a digest of the prefix."""
    digest = blake2b(digest_size=16, person=b"antiphon-pool")
    prefix = islice(_stable_prefix(request.prompt), MAX_TEXTS) if request.affinity is None else [request.affinity]
    for part in (request.model, request.salt or "", *prefix):
        data = part[:MAX_TEXT_LENGTH].encode("utf-8", "surrogatepass")
        digest.update(b"%d:" % len(data))
        digest.update(data)
    return digest.digest()


def _load_limits(candidates: Sequence[LoadCandidate]) -> list[float]:
    """Return the maximum load per candidate with this request: by slots, or equal if not all have a limit."""
    total = sum(candidate.running for candidate in candidates) + 1
    slots = [candidate.slots for candidate in candidates]
    weights = [1] * len(slots) if None in slots else [one or 1 for one in slots]
    return [SKEW * total * weight / sum(weights) + 1 for weight in weights]


def _rank(location: str, key: bytes) -> bytes:
    return blake2b(location.encode("utf-8", "surrogatepass"), digest_size=8, key=key).digest()


def _stable_prefix(prompt: Prompt) -> Iterator[str]:
    """Yield the part that stays the same as a conversation grows: up to its first user message, or its first text."""
    match prompt:
        case ChatPrompt(messages=messages):
            for message in messages:
                yield from _texts(message)
                if message.get("role") == "user":
                    return
        case TextPrompt(segments=segments):
            for segment in segments:
                yield segment.text
                if not segment.control:
                    return
        case TokenPrompt(tokens=tokens):
            yield ",".join(map(str, tokens[:MAX_TOKENS]))


def _texts(value: Any) -> Iterator[str]:
    """Yield all strings in order. Recursion is bounded, because the depth of the JSON was checked before."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from _texts(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _texts(one)


class Attempts(Struct):
    """Attempts of one request: the members that were tried, and the last error."""

    deadline: float
    tried: tuple[PoolMember, ...] = ()
    error: AntiphonError | None = None
    level: PromptLevel | None = None  # of the members to try; the first attempt determines it

    @property
    def remaining(self) -> float:
        return max(0.0, self.deadline - _now())

    def record_failure(self, member: PoolMember, error: AntiphonError) -> None:
        """Record a failed attempt; raise the error if no other member may be tried."""
        self.tried += (member,)
        self.error = error
        if not is_retryable(error) or not self.remaining:
            raise error


class MemberSelector:
    """Selects among the `members` of a pool, which the pool replaces."""

    def __init__(self, members: Sequence[PoolMember]) -> None:
        self.members = members
        self.waiters: dict[asyncio.Event, None] = {}  # set when a request of a member ends; oldest first

    async def choose_for_generation(self, request: GenerationRequest, attempts: Attempts) -> PoolMember:
        """Return an available member with a free slot, waiting for one if necessary."""
        while True:
            serving = [
                one
                for one in await self.serving_members(request.model)
                if request.level in (None, one.capabilities.level)
            ]
            if not (available := self._filter_available(serving, attempts)):
                raise attempts.error or self.unavailable_error(request.model)
            free = [one for one in available if one.member.has_free_slot(request.model, one.capabilities)]
            if len(free) == 1:
                return free[0].member
            if free:
                return free[choose([_candidate(one, request.model) for one in free], affinity_key(request))].member
            await self._wait_for_slot(attempts)

    async def choose_for_task(self, model: str, attempts: Attempts) -> PoolMember:
        """Return the least loaded available member. All attempts go to members of one prompt level."""
        available = self._filter_available(await self.serving_members(model), attempts)
        attempts.level = attempts.level or (choose_level(available) if available else None)
        available = [one for one in available if one.capabilities.level == attempts.level]
        if not available:
            raise attempts.error or self.unavailable_error(model)
        return available[choose_least_loaded([_candidate(one, model) for one in available])].member

    def _filter_available(self, serving: list[MemberCapabilities], attempts: Attempts) -> list[MemberCapabilities]:
        """Return the available members that were not tried yet. A single member is tried even if unavailable."""
        now = _now()
        if len(serving) == 1 and not attempts.tried:
            return serving
        return [one for one in serving if one.member not in attempts.tried and one.member.is_available(now)]

    async def serving_members(self, model: str) -> list[MemberCapabilities]:
        """Return the members that serve a model, without those that lost it or that fail while others do not."""
        found, fault = [], None
        for member in self._members_with(model):
            if not member.draining:
                try:
                    capabilities = await member.engine.capabilities(model)
                except (ModelNotFound, Unavailable):
                    continue
                except EngineFailed as error:
                    fault = error
                    continue
                if member.reported_slots != capabilities.slots:
                    member.bind(member.spec, capabilities.slots)
                found.append(MemberCapabilities(member, capabilities))
        if fault is not None and not found:
            raise fault
        return found

    def _members_with(self, model: str) -> list[PoolMember]:
        """Return the members that list a model; if none does, those that serve it unlisted."""
        listing = [member for member in self.members if member.lists_model(model)]
        return listing or [member for member in self.members if member.engine.serves(model)]

    async def _wait_for_slot(self, attempts: Attempts) -> None:
        """Wait until a slot may be free."""
        if not attempts.remaining:
            raise attempts.error or Busy("All engines stayed busy until the timeout.", retry_after=_MIN_RETRY_AFTER)
        freed = asyncio.Event()
        self.waiters[freed] = None
        try:
            async with asyncio.timeout(min(SLOT_POLL_SECONDS, attempts.remaining)):
                await freed.wait()
        except TimeoutError:
            pass  # an engine may have recovered, which sets no event
        finally:
            del self.waiters[freed]

    def wake_waiters(self) -> None:
        for freed in self.waiters:
            freed.set()

    def unavailable_error(self, model: str) -> AntiphonError:
        if not (members := self._members_with(model)):
            return ModelNotFound(f"The model '{model[:80]}' does not exist here.", param="model")
        now = _now()
        soonest = min(member.available_in(now) for member in members)
        return Unavailable(
            "No engine that serves this model is available now.", retry_after=max(soonest, _MIN_RETRY_AFTER)
        )


def _candidate(one: MemberCapabilities, model: str) -> LoadCandidate:
    return LoadCandidate(one.member.spec.location, one.member.load_of(model, one.capabilities), one.slots)
