"""How much each tenant and each key may ask for: requests and tokens in a minute, and how many at once.

    admit ── a request, and what its tokens are guessed to be ──► Bill ── spend: what they were ── leave ──► settled
      └── Busy, and nothing has changed

This is the one place where anybody is charged. The bill of the request that a task works for is a context variable:
what is started for it has it too. Nothing here waits; the time is the clock's that was handed in.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from time import monotonic
from typing import Final, Protocol

from msgspec import Struct
from msgspec.structs import asdict, replace

from antiphon.config.rate_limits import Quota, TenantSpec
from antiphon.core.token_bucket import MINUTE, Bucket
from antiphon.errors import Busy
from antiphon.service.access.principal import Principal

BILL: Final[ContextVar["Bill | None"]] = ContextVar("bill", default=None)

GUESS = 0.25  # of a limit: no guess is larger, since most of what is long is a picture
_BYTES = 4  # of a request, for each token that it is guessed to cost
_ROUNDING = 1e-6  # that adding and subtracting may make of nothing
_SOON = 1.0  # seconds after which one of those that run may have ended


class Meter(Protocol):
    """A Bucket, or one that is shared with others."""

    size: float

    def left(self, now: float) -> float: ...

    def grab(self, amount: float, now: float) -> bool: ...

    def take(self, amount: float, now: float) -> None: ...

    def resize(self, size: float, now: float) -> None: ...


Make = Callable[[str, str, float, float], Meter]  # of a tenant, by a name; its size, and the time


class Standing(Struct, frozen=True):
    """How it is with a limit, for those who are held to it."""

    limit: int
    remaining: int
    reset: float  # seconds until all of it is there again


class Purse:
    """What a tenant has, or a key."""

    __slots__ = ("_refusals", "elsewhere", "most", "requests", "running", "tokens", "whose")

    def __init__(self, whose: str, refusals: Counter[tuple[str, str]] | None = None) -> None:
        """`refusals` are counted there: whose, and by which limit."""
        self.whose = whose
        self._refusals = Counter() if refusals is None else refusals
        self.running = self.elsewhere = 0  # here, and at others who share it, as they last said
        self.most = 0  # at once; 0: any number
        self.requests: Meter | None = None
        self.tokens: Meter | None = None

    def renew(self, requests: Meter | None, tokens: Meter | None, most: int) -> None:
        self.requests, self.tokens, self.most = requests, tokens, most

    def charge(self, tokens: float, now: float) -> Busy | None:
        """One request, and so many tokens, within bounds. What is given back is a refusal, and nothing was taken."""
        if self.most and self.running + self.elsewhere >= self.most:
            self._refusals[self.whose, "concurrent"] += 1
            return Busy(
                f"As many responses of this {self.whose} are under way as there may be at once: {self.most}.",
                retry_after=_SOON,
            )
        requests, meter = self.requests, self.tokens
        if requests is not None and not requests.grab(1.0, now):
            return self._refusal("requests", requests, 1.0, now)
        if meter is not None:
            amount = tokens if tokens < (most := meter.size * GUESS) else most
            if not meter.grab(amount, now):
                if requests is not None:
                    requests.take(-1.0, now)
                return self._refusal("tokens", meter, amount, now)
        self.running += 1
        return None

    def give_back(self, tokens: float, now: float) -> None:
        """What was charged: somebody else refused."""
        self.running -= 1
        if self.requests is not None:
            self.requests.take(-1.0, now)
        if self.tokens is not None:
            self.tokens.take(-min(tokens, self.tokens.size * GUESS), now)

    def _refusal(self, what: str, meter: Meter, amount: float, now: float) -> Busy:
        wait = max(_SOON, (amount - meter.left(now)) * MINUTE / meter.size)
        limit = f"{meter.size:.0f} {what} per minute"
        self._refusals[self.whose, what] += 1
        return Busy(
            f"This {self.whose} has reached its limit of {limit}. Try again in {wait:.1f} seconds.", retry_after=wait
        )


class Account:
    """Of those who come with one key: all that they are held to."""

    __slots__ = ("_clock", "_requests", "_tokens", "key", "purses")

    def __init__(self, purses: tuple[Purse, ...], clock: Callable[[], float], key: str) -> None:
        self.purses = purses
        self.key = key
        self._clock = clock
        self._requests = tuple(purse.requests for purse in purses if purse.requests is not None)
        self._tokens = tuple(purse.tokens for purse in purses if purse.tokens is not None)

    def standing(self) -> tuple[Standing | None, Standing | None]:
        """With requests and with tokens: as with the purse that has least."""
        now = self._clock()
        return _least(self._requests, now), _least(self._tokens, now)

    def admit(self, size: int) -> "Bill":
        """A request of so many bytes. Raises Busy, and then has taken nothing."""
        now, tokens = self._clock(), guessed(size)
        for number, purse in enumerate(self.purses):
            if (busy := purse.charge(tokens, now)) is not None:
                for other in self.purses[:number]:
                    other.give_back(tokens, now)
                raise busy
        return Bill(self.purses, self._clock, tokens, self.key)

    def unasked(self) -> "Bill":
        """For what nobody can be refused any more."""
        for purse in self.purses:
            purse.running += 1
        return Bill(self.purses, self._clock, 0.0, self.key)


class Bill(Struct, eq=False):
    """What a request costs. It is left when all that was begun for it has ended."""

    _purses: tuple[Purse, ...]
    _clock: Callable[[], float]
    _guess: float  # tokens that the purses were charged with
    key: str
    _holds: int = 1
    _told: bool = False  # what it cost

    def spend(self, tokens: int | None) -> None:
        """So many, in place of what was guessed. None: nobody will tell, and the guess stands."""
        if tokens is not None:
            now, guess = self._clock(), 0.0 if self._told else self._guess
            for purse in self._purses:
                if (meter := purse.tokens) is not None:
                    meter.take(tokens - (guess if guess < (most := meter.size * GUESS) else most), now)
        self._told = True

    def hold(self) -> None:
        """Something that was begun for it goes on by itself."""
        self._holds += 1

    def leave(self) -> None:
        self._holds -= 1
        if self._holds:
            return
        if not self._told:
            self.spend(0)
        for purse in self._purses:
            purse.running -= 1


class Quotas:
    def __init__(
        self, make: Make | None = None, clock: Callable[[], float] = monotonic, background_queue: int = 1000
    ) -> None:
        self.active = False  # is anybody held to anything?
        self.refusals: Counter[tuple[str, str]] = Counter()
        self._make = make or _bucket
        self._clock = clock
        self._background_queue = background_queue
        self._all = Quota()
        self._own: Mapping[str, TenantSpec] = {}
        self._purses: dict[tuple[str, ...], Purse] = {}
        self._accounts: dict[tuple[str, str], Account] = {}

    def renew(self, all: Quota, own: Mapping[str, TenantSpec]) -> None:
        """From now on. What was spent counts on."""
        self._all, self._own = all, own
        self.active = any(_limits(self._quota(tenant)) for tenant in ("", *own))
        self._accounts.clear()
        for name, purse in self._purses.items():
            self._fill(purse, *name)

    def account(self, principal: Principal) -> Account:
        name = principal.tenant, principal.key
        account = self._accounts.get(name)
        if account is None:
            account = self._accounts[name] = self._opened(*name)
        return account

    @contextmanager
    def carried(self, tenant: str, key: str = "") -> Iterator["Bill"]:
        """The bill of what is started now: of who asked for it, or by this key if it had waited. It is held."""
        bill = BILL.get()
        if bill is not None:
            bill.hold()
            yield bill
            return
        bill = self.account(Principal(tenant=tenant, key=key)).unasked()
        before = BILL.set(bill)
        try:
            yield bill
        finally:
            BILL.reset(before)

    def background_room(self, tenant: str) -> int | None:
        """Background responses of a tenant that may wait or run; None: any number."""
        spec = self._own.get(tenant)
        own = None if spec is None else spec.background_queue
        return self._background_queue if own is None else own or None

    def store_bytes(self) -> dict[str, int | None]:
        """Of tenants for whom something else holds than for all; None is no bound."""
        given = {tenant: spec.store_max_bytes for tenant, spec in self._own.items()}
        return {tenant: size or None for tenant, size in given.items() if size is not None}

    def bounded(self) -> dict[str, dict[str, Purse]]:
        """Who is held to so many at once: by tenant, and by key ("": the tenant itself)."""
        found: dict[str, dict[str, Purse]] = {}
        for (tenant, *key), purse in self._purses.items():
            if purse.most:
                found.setdefault(tenant, {})["".join(key)] = purse
        return found

    def _opened(self, tenant: str, key: str) -> Account:
        names = [name for name in ((tenant,), (tenant, key)) if all(name)]
        purses = [self._purse(*name) for name in names]
        return Account(tuple(purse for purse in purses if purse is not None), self._clock, key)

    def _purse(self, *name: str) -> Purse | None:
        if not _limits(self._quota(name[0]), of_key=len(name) > 1):
            return None
        if name not in self._purses:
            self._purses[name] = self._fill(Purse(_whose(name), self.refusals), *name)
        return self._purses[name]

    def _quota(self, tenant: str) -> Quota:
        spec = self._own.get(tenant)
        if spec is None:
            return self._all
        own = {name: value for name, value in asdict(spec).items() if value is not None and name in _NAMES}
        return replace(self._all, **own)

    def _fill(self, purse: Purse, tenant: str, key: str = "") -> Purse:
        requests, tokens, most = _terms(self._quota(tenant), bool(key))
        purse.renew(
            self._metered(purse.requests, requests, tenant, f"{key}:requests"),
            self._metered(purse.tokens, tokens, tenant, f"{key}:tokens"),
            most,
        )
        return purse

    def _metered(self, meter: Meter | None, size: int, tenant: str, name: str) -> Meter | None:
        if not size:
            return None
        if meter is None:
            return self._make(tenant, name, size, self._clock())
        meter.resize(size, self._clock())
        return meter


_NAMES = frozenset(Quota.__struct_fields__)


def guessed(size: int) -> float:
    """Tokens of a request of so many bytes."""
    return size / _BYTES if size > _BYTES else 1.0


def bearer() -> str:
    """The id of the key that whatever this task works for is charged to."""
    return "" if (bill := BILL.get()) is None else bill.key


def spend(tokens: int | None) -> None:
    """By whatever this task works for (Bill.spend)."""
    if (bill := BILL.get()) is not None:
        bill.spend(tokens)


def _whose(name: tuple[str, ...]) -> str:
    return "key" if len(name) > 1 else "tenant"


def _terms(quota: Quota, of_key: bool) -> tuple[int, int, int]:
    if of_key:
        return quota.key_requests_per_minute, quota.key_tokens_per_minute, quota.key_concurrent_responses
    return quota.requests_per_minute, quota.tokens_per_minute, quota.concurrent_responses


def _limits(quota: Quota, of_key: bool | None = None) -> bool:
    """Does it hold anybody to anything?"""
    return any(any(_terms(quota, kind)) for kind in ((True, False) if of_key is None else (of_key,)))


def _least(meters: tuple[Meter, ...], now: float) -> Standing | None:
    least: Meter | None = None
    left = 0.0
    for meter in meters:
        has = meter.left(now)
        if least is None or has < left:
            least, left = meter, has
    if least is None:
        return None
    size = least.size
    return Standing(int(size), int(left + _ROUNDING) if left > 0 else 0, (size - left) * MINUTE / size)


def _bucket(tenant: str, name: str, size: float, now: float) -> Meter:
    return Bucket(size, now)
