"""Budgets of tenants and API keys, and the charges of requests to them.

    admit ── one request and its estimated tokens ──► Charge ── spend: the actual tokens ── leave ──► settled
      └── Busy, and nothing was charged

All charging happens here. The charge of the current request is a context variable, so tasks that are started for it
inherit it. Nothing here waits; the clock is passed in.
"""

from collections import Counter
from collections.abc import Callable
from contextvars import ContextVar
from typing import Final, Protocol

from msgspec import Struct

from antiphon.errors import Busy
from antiphon.observe.logs import LOG_CONTEXT
from antiphon.token_bucket import MINUTE

CURRENT_CHARGE: Final[ContextVar["Charge | None"]] = ContextVar("bill", default=None)

MAX_ESTIMATE_SHARE = 0.25  # of a limit: larger estimates are capped, since most long requests contain images
_BYTES_PER_TOKEN = 4  # of a request, for the estimate
_EPSILON = 1e-6  # tolerance for floating-point rounding
_MIN_RETRY_SECONDS = 1.0  # seconds after which a running response may have ended


class Meter(Protocol):
    """A TokenBucket, or a bucket that is shared with other processes."""

    size: float

    def available(self, now: float) -> float: ...

    def try_take(self, amount: float, now: float) -> bool: ...

    def take(self, amount: float, now: float) -> None: ...

    def resize(self, size: float, now: float) -> None: ...


class LimitStatus(Struct, frozen=True):
    """State of a limit, as reported to the client."""

    limit: int
    remaining: int
    reset: float  # seconds until the limit is fully available again


class Budget(Struct, eq=False):
    """The limits of one tenant or one key."""

    subject: str
    _refusals: Counter[tuple[str, str]]  # counts refusals by subject and limit
    running: int = 0  # in this process
    running_remotely: int = 0  # in others, as last synchronised
    max_running: int = 0  # concurrent responses; 0: unlimited
    requests: Meter | None = None
    tokens: Meter | None = None

    def try_charge(self, tokens: float, now: float) -> Busy | None:
        """Charge one request and the estimated tokens. Returns the refusal, with nothing charged, at a limit."""
        if self.max_running and self.running + self.running_remotely >= self.max_running:
            self._refusals[self.subject, "concurrent"] += 1
            return Busy(
                f"Too many concurrent responses: this {self.subject} has reached its limit of {self.max_running}.",
                retry_after=_MIN_RETRY_SECONDS,
            )
        requests, meter = self.requests, self.tokens
        if requests is not None and not requests.try_take(1.0, now):
            return self._make_refusal("requests", requests, 1.0, now)
        if meter is not None:
            amount = min(tokens, meter.size * MAX_ESTIMATE_SHARE)
            if not meter.try_take(amount, now):
                if requests is not None:
                    requests.take(-1.0, now)
                return self._make_refusal("tokens", meter, amount, now)
        self.running += 1
        return None

    def refund(self, tokens: float, now: float) -> None:
        """Undo a charge, because another budget refused the request."""
        self.running -= 1
        if self.requests is not None:
            self.requests.take(-1.0, now)
        if self.tokens is not None:
            self.tokens.take(-min(tokens, self.tokens.size * MAX_ESTIMATE_SHARE), now)

    def _make_refusal(self, unit: str, meter: Meter, amount: float, now: float) -> Busy:
        wait = max(_MIN_RETRY_SECONDS, (amount - meter.available(now)) * MINUTE / meter.size)
        limit = f"{meter.size:.0f} {unit} per minute"
        self._refusals[self.subject, unit] += 1
        return Busy(
            f"This {self.subject} has reached its limit of {limit}. Try again in {wait:.1f} seconds.", retry_after=wait
        )


class LimitSet:
    """All budgets that requests with one key are charged to."""

    __slots__ = ("_clock", "_requests", "_tokens", "budgets", "key")

    def __init__(self, budgets: tuple[Budget, ...], clock: Callable[[], float], key: str) -> None:
        self.budgets = budgets
        self.key = key
        self._clock = clock
        self._requests = tuple(budget.requests for budget in budgets if budget.requests is not None)
        self._tokens = tuple(budget.tokens for budget in budgets if budget.tokens is not None)

    def get_status(self) -> tuple[LimitStatus | None, LimitStatus | None]:
        """Return the request limit and the token limit with the least remaining."""
        now = self._clock()
        return _find_lowest(self._requests, now), _find_lowest(self._tokens, now)

    def admit(self, size: int) -> "Charge":
        """Charge a request of `size` bytes. Raises Busy, and then nothing is charged."""
        now, tokens = self._clock(), estimate_request_tokens(size)
        for number, budget in enumerate(self.budgets):
            if (busy := budget.try_charge(tokens, now)) is not None:
                for other in self.budgets[:number]:
                    other.refund(tokens, now)
                raise busy
        return Charge(self.budgets, self._clock, tokens, self.key)

    def admit_unchecked(self) -> "Charge":
        """Create a charge for work that was admitted before and cannot be refused any more."""
        for budget in self.budgets:
            budget.running += 1
        return Charge(self.budgets, self._clock, 0.0, self.key)


class Charge(Struct, eq=False):
    """The charge of one request. `leave` settles it when everything that was started for the request has ended."""

    budgets: tuple[Budget, ...]
    _clock: Callable[[], float]
    _estimate: float  # tokens that the budgets were charged with
    key: str
    _holds: int = 1
    _is_settled: bool = False  # the actual tokens were charged

    def spend(self, tokens: int | None) -> None:
        """Charge the actual tokens instead of the estimate, which remains charged if they are unknown (None)."""
        if tokens is not None:
            now, estimate = self._clock(), 0.0 if self._is_settled else self._estimate
            for budget in self.budgets:
                if (meter := budget.tokens) is not None:
                    meter.take(tokens - min(estimate, meter.size * MAX_ESTIMATE_SHARE), now)
        self._is_settled = True

    def hold(self) -> None:
        """Keep the charge open for a task that outlives the request."""
        self._holds += 1

    def leave(self) -> None:
        self._holds -= 1
        if self._holds:
            return
        if not self._is_settled:
            self.spend(0)
        for budget in self.budgets:
            budget.running -= 1


def estimate_request_tokens(size: int) -> float:
    return max(size / _BYTES_PER_TOKEN, 1.0)


def charged_key() -> str:
    """Return the id of the key that the current task is charged to."""
    if (charge := CURRENT_CHARGE.get()) is not None:
        return charge.key
    return "" if (context := LOG_CONTEXT.get()) is None else context.key


def get_concurrency_limit() -> int:
    """Return how many responses the caller of the current task may run at once; 0: unlimited."""
    budgets = () if (charge := CURRENT_CHARGE.get()) is None else charge.budgets
    return min((budget.max_running for budget in budgets if budget.max_running), default=0)


def spend(tokens: int | None) -> None:
    """Charge tokens to the request of the current task (`Charge.spend`)."""
    if (charge := CURRENT_CHARGE.get()) is not None:
        charge.spend(tokens)


def _find_lowest(meters: tuple[Meter, ...], now: float) -> LimitStatus | None:
    if (lowest := min(meters, key=lambda meter: meter.available(now), default=None)) is None:
        return None
    size, remaining = lowest.size, lowest.available(now)
    return LimitStatus(int(size), int(max(remaining, 0.0) + _EPSILON), (size - remaining) * MINUTE / size)
