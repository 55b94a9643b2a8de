"""Rate limits that several servers or workers share through common token buckets.

Each process leases slices of a shared bucket and serves requests from them. So a request waits only when the slice is
used up, and none is admitted beyond the shared bucket. Unused slices are returned; tokens spent beyond their estimate
are a debt that is settled within `_INTERVAL`. The number of responses that run in other processes is synchronised as
often. While the shared store is unavailable, each process counts alone, which is logged and visible in the metrics.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from time import monotonic

from msgspec import Struct

from antiphon.config import Config
from antiphon.errors import Unavailable
from antiphon.service.access.charges import MAX_ESTIMATE_SHARE, Budget, LimitSet, estimate_request_tokens
from antiphon.service.access.rate_limits import RateLimits
from antiphon.stores.live.base import BucketGrant, BucketRequest, SharedLimits
from antiphon.stores.registry import make_shared_limits
from antiphon.token_bucket import MINUTE, TokenBucket

log = logging.getLogger(__name__)

_INTERVAL = 0.25  # seconds between settlements, synchronisations and reconnect attempts
_UNUSED_SECONDS = 0.5  # seconds after which an unused slice is returned
_LEASE_FRACTION = 20  # 1/20 of a bucket is leased at once


class LeasedBucket(Struct, eq=False):
    """A leased slice of a shared bucket; a bucket of its own while the shared store is unavailable."""

    _shared: "SharedRateLimits"
    tenant: str
    name: str
    size: float
    _fallback: TokenBucket
    held: float = 0.0
    _remote: float = 0.0  # unleased level of the shared bucket, as last reported
    _updated_at: float = float("-inf")
    _used_at: float = float("-inf")

    def available(self, now: float) -> float:
        if not self._shared.connected:
            return self._fallback.available(now)
        return min(self.size, self.held + self._estimate_remote(now))

    def try_take(self, amount: float, now: float) -> bool:
        """Take the amount from the local slice if it suffices."""
        self._used_at = now
        if not self._shared.connected:
            return self._fallback.try_take(amount, now)
        if self.held < amount:
            return False
        self.held -= amount
        return True

    def take(self, amount: float, now: float) -> None:
        self._used_at = now
        if self._shared.connected:
            self.held -= amount
        else:
            self._fallback.take(amount, now)

    def resize(self, size: float, now: float) -> None:
        self._fallback.resize(size, now)
        self.size = size

    def needs_refill(self, amount: float, now: float) -> bool:
        """Return whether a refill is worth a request; it is not if the bucket was too low a moment ago."""
        return self.held < amount and (now - self._updated_at >= _INTERVAL or self.available(now) >= amount)

    def make_request(self, amount: float) -> BucketRequest:
        """Request the amount. The complete slice is returned with it, so nothing is held until the grant arrives."""
        returned, self.held = self.held, 0.0
        return BucketRequest(
            name=self.name, size=self.size, back=returned, want=amount, most=max(amount, self.size / _LEASE_FRACTION)
        )

    def make_settlement(self, now: float) -> BucketRequest | None:
        """Return debts and unused slices, and request the level of buckets in use; None if there is nothing to do."""
        unused = now - self._used_at >= _UNUSED_SECONDS
        if unused and not self.held:
            return None
        returned = self.held if unused else min(0.0, self.held)
        self.held -= returned
        return BucketRequest(name=self.name, size=self.size, back=returned)

    def apply_grant(self, grant: BucketGrant, now: float) -> None:
        self.held += grant.taken
        self._remote, self._updated_at = grant.left, now

    def reset(self) -> None:
        """Forget the slice after an outage; the shared level is unknown until the next grant."""
        self.held, self._updated_at = 0.0, float("-inf")

    def _estimate_remote(self, now: float) -> float:
        if self._updated_at == float("-inf"):
            return self.size
        return min(self.size, self._remote + (now - self._updated_at) * self.size / MINUTE)


class SharedRateLimits:
    """Coordinates the leased buckets of this process. Its RateLimits must be created with `lease`."""

    def __init__(self, limits: SharedLimits, clock: Callable[[], float] = monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._buckets: list[LeasedBucket] = []
        self._locks: dict[str, asyncio.Lock] = {}  # by tenant
        self._had_running: dict[str, bool] = {}  # by tenant: whether a response ran here at the last synchronisation
        self.connected = True

    def lease(self, tenant: str, name: str, size: float, now: float) -> LeasedBucket:
        """Create a meter for RateLimits."""
        bucket = LeasedBucket(self, tenant, name, size, TokenBucket(size, now))
        self._buckets.append(bucket)
        return bucket

    async def refill(self, limit_set: LimitSet, size: int) -> None:
        """Lease what a request of `size` bytes needs beyond the local slices, if it is available."""
        tokens = estimate_request_tokens(size)
        if not self.connected or not (lacking := self._find_lacking(limit_set, tokens)):
            return
        tenant = lacking[0][0].tenant
        async with self._locks.setdefault(tenant, asyncio.Lock()):
            if lacking := self._find_lacking(limit_set, tokens):
                await self._exchange(tenant, [(bucket, bucket.make_request(want)) for bucket, want in lacking])

    async def run_forever(self, rate_limits: RateLimits) -> None:
        """Settle debts, return unused leases, synchronise running counts, reconnect after an outage. Never returns."""
        try:
            while True:
                await asyncio.sleep(_INTERVAL)
                if self.connected:
                    await self._settle()
                for tenant, budgets in rate_limits.list_concurrency_budgets().items():
                    await self._sync_running(tenant, budgets)
                if not self.connected:
                    await self._reconnect()
        finally:
            await self._limits.close()

    def _find_lacking(self, limit_set: LimitSet, tokens: float) -> list[tuple[LeasedBucket, float]]:
        now = self._clock()
        return [(bucket, want) for bucket, want in _iter_wanted(limit_set, tokens) if bucket.needs_refill(want, now)]

    async def _settle(self) -> None:
        now = self._clock()
        due: dict[str, list[tuple[LeasedBucket, BucketRequest]]] = {}
        for bucket in self._buckets:
            if (request := bucket.make_settlement(now)) is not None:
                due.setdefault(bucket.tenant, []).append((bucket, request))
        for tenant, requests in due.items():
            await self._exchange(tenant, requests)

    async def _sync_running(self, tenant: str, budgets: Mapping[str, Budget]) -> None:
        """Update the number of responses in other processes. It is irrelevant unless one runs here or just ended."""
        local = {name: budget.running for name, budget in budgets.items()}
        had_running, self._had_running[tenant] = self._had_running.get(tenant, False), any(local.values())
        remote: Mapping[str, int] = {}
        if self.connected and (had_running or self._had_running[tenant]):
            try:
                remote = await self._limits.report_running(tenant, local)
            except Unavailable as error:
                self._mark_disconnected(error)
        for name, budget in budgets.items():
            budget.running_remotely = remote.get(name, 0)

    async def _exchange(self, tenant: str, requests: list[tuple[LeasedBucket, BucketRequest]]) -> None:
        try:
            grants = await self._limits.exchange(tenant, [request for _, request in requests])
        except Unavailable as error:
            self._mark_disconnected(error)
            return
        for (bucket, _), grant in zip(requests, grants, strict=True):
            bucket.apply_grant(grant, self._clock())

    def _mark_disconnected(self, error: Unavailable) -> None:
        if self.connected:
            self.connected = False
            log.error(
                "Rate limits are enforced by this process alone until %s is available again: %s",
                self._limits.name,
                error,
            )

    async def _reconnect(self) -> None:
        try:
            await self._limits.exchange("", [])
        except Unavailable:
            return
        for bucket in self._buckets:
            bucket.reset()
        self.connected = True
        log.warning("Rate limits are shared again: %s is available.", self._limits.name)


def make_rate_limits(
    config: Config, worker_limits: SharedLimits | None = None
) -> tuple[RateLimits, SharedRateLimits | None]:
    """Create the rate limits; shared with other servers (--live), or else with the other workers of this server."""
    limits = make_shared_limits(config.storage.live) or worker_limits
    shared_limits = None if limits is None else SharedRateLimits(limits)
    rate_limits = RateLimits(
        None if shared_limits is None else shared_limits.lease, background_queue=config.storage.background_queue
    )
    rate_limits.configure(config.quota, config.tenants)
    return rate_limits, shared_limits


def _iter_wanted(limit_set: LimitSet, tokens: float) -> Iterator[tuple[LeasedBucket, float]]:
    """Yield the shared buckets that a request is charged to, each with the amount."""
    for budget in limit_set.budgets:
        if isinstance(budget.requests, LeasedBucket):
            yield budget.requests, 1.0
        if isinstance(budget.tokens, LeasedBucket):
            yield budget.tokens, min(tokens, budget.tokens.size * MAX_ESTIMATE_SHARE)
