"""Rate limits of tenants and API keys: requests and tokens per minute, and concurrent responses.

The operator's limits become budgets here; requests are charged to them in charges.py.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from time import monotonic

from msgspec.structs import asdict, replace

from antiphon.config.rate_limits import QuotaSettings, TenantSpec
from antiphon.service.access.api_keys import Principal
from antiphon.service.access.charges import CURRENT_CHARGE, Budget, Charge, LimitSet, Meter
from antiphon.token_bucket import TokenBucket

MeterFactory = Callable[[str, str, float, float], Meter]  # called with tenant, name, size and time

_QUOTA_FIELDS = frozenset(QuotaSettings.__struct_fields__)


class RateLimits:
    def __init__(
        self,
        make_meter: MeterFactory | None = None,
        clock: Callable[[], float] = monotonic,
        background_queue: int = 1000,
    ) -> None:
        self.active = False  # whether any limit is configured
        self.refusals: Counter[tuple[str, str]] = Counter()
        self._make_meter = make_meter or (lambda tenant, name, size, now: TokenBucket(size, now))
        self._clock = clock
        self._background_queue = background_queue
        self._default_quota = QuotaSettings()
        self._tenants: Mapping[str, TenantSpec] = {}
        self._budgets: dict[tuple[str, ...], Budget] = {}
        self._limit_sets: dict[tuple[str, str], LimitSet] = {}

    def configure(self, default_quota: QuotaSettings, tenants: Mapping[str, TenantSpec]) -> None:
        """Apply new limits from now on; previous use still counts."""
        self._default_quota, self._tenants = default_quota, tenants
        self.active = any(
            _has_limits(self.get_quota(tenant), of_key) for tenant in ("", *tenants) for of_key in (False, True)
        )
        self._limit_sets.clear()
        for name, budget in self._budgets.items():
            self._configure_budget(budget, *name)

    def get_limits(self, principal: Principal) -> LimitSet:
        name = principal.tenant, principal.key
        if (limit_set := self._limit_sets.get(name)) is None:
            limit_set = self._limit_sets[name] = self._make_limit_set(*name)
        return limit_set

    @contextmanager
    def hold_charge(self, tenant: str, key: str = "") -> Iterator[Charge]:
        """Hold the current charge while the block starts work, or one of `key` for work that waited in a queue."""
        if (charge := CURRENT_CHARGE.get()) is not None:
            charge.hold()
            yield charge
            return
        charge = self.get_limits(Principal(tenant=tenant, key=key)).admit_unchecked()
        token = CURRENT_CHARGE.set(charge)
        try:
            yield charge
        finally:
            CURRENT_CHARGE.reset(token)

    def get_background_limit(self, tenant: str) -> int | None:
        """Return how many background responses of a tenant may wait or run; None: unlimited."""
        spec = self._tenants.get(tenant)
        tenant_limit = None if spec is None else spec.background_queue
        return self._background_queue if tenant_limit is None else tenant_limit or None

    def get_store_bytes(self) -> dict[str, int | None]:
        """Return the store limits of tenants that differ from the default; None: unlimited."""
        sizes = {tenant: spec.store_max_bytes for tenant, spec in self._tenants.items()}
        return {tenant: size or None for tenant, size in sizes.items() if size is not None}

    def list_concurrency_budgets(self) -> dict[str, dict[str, Budget]]:
        """Return the budgets with a concurrency limit, by tenant and by key ("" is the tenant itself)."""
        found: dict[str, dict[str, Budget]] = {}
        for (tenant, *key), budget in self._budgets.items():
            if budget.max_running:
                found.setdefault(tenant, {})["".join(key)] = budget
        return found

    def _make_limit_set(self, tenant: str, key: str) -> LimitSet:
        names = [name for name in ((tenant,), (tenant, key)) if all(name)]
        budgets = [self._get_budget(*name) for name in names]
        return LimitSet(tuple(budget for budget in budgets if budget is not None), self._clock, key)

    def _get_budget(self, *name: str) -> Budget | None:
        if not _has_limits(self.get_quota(name[0]), of_key=len(name) > 1):
            return None
        if name not in self._budgets:
            self._budgets[name] = self._configure_budget(
                Budget("key" if len(name) > 1 else "tenant", self.refusals), *name
            )
        return self._budgets[name]

    def get_quota(self, tenant: str) -> QuotaSettings:
        """Return the limits of a tenant and of each of its keys; 0: none."""
        if (spec := self._tenants.get(tenant)) is None:
            return self._default_quota
        overrides = {name: value for name, value in asdict(spec).items() if value is not None and name in _QUOTA_FIELDS}
        return replace(self._default_quota, **overrides)

    def _configure_budget(self, budget: Budget, tenant: str, key: str = "") -> Budget:
        requests, tokens, budget.max_running = _select_limits(self.get_quota(tenant), bool(key))
        budget.requests = self._update_meter(budget.requests, requests, tenant, f"{key}:requests")
        budget.tokens = self._update_meter(budget.tokens, tokens, tenant, f"{key}:tokens")
        return budget

    def _update_meter(self, meter: Meter | None, size: int, tenant: str, name: str) -> Meter | None:
        if not size:
            return None
        if meter is None:
            return self._make_meter(tenant, name, size, self._clock())
        meter.resize(size, self._clock())
        return meter


def _select_limits(quota: QuotaSettings, of_key: bool) -> tuple[int, int, int]:
    if of_key:
        return quota.key_requests_per_minute, quota.key_tokens_per_minute, quota.key_concurrent_responses
    return quota.requests_per_minute, quota.tokens_per_minute, quota.concurrent_responses


def _has_limits(quota: QuotaSettings, of_key: bool) -> bool:
    return any(_select_limits(quota, of_key))
