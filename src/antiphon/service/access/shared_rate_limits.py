"""What several servers or workers hold their clients to together, by a bucket that they share.

Each takes slices of it and hands out of these. So a request waits for nobody while the slice lasts, and no request is
let in that was not taken from the bucket before.
A slice that nobody uses is put back; what tokens cost beyond their guess is a debt, told within `_ROUND`. How many run
elsewhere is asked as often. While the till does not answer everybody counts for itself, which the log and the metrics
say, until it answers again.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from time import monotonic

from antiphon.config import Config
from antiphon.core.token_bucket import MINUTE, Bucket
from antiphon.errors import Unavailable
from antiphon.service.access.rate_limits import GUESS, Account, Purse, Quotas, guessed
from antiphon.stores.live.base import Ask, Got, Till
from antiphon.stores.live.registry import till

log = logging.getLogger(__name__)

_ROUND = 0.25  # seconds between two looks at what is held, owed or asked in vain
_UNUSED = 0.5  # seconds after which a slice is put back
_SLICE = 20  # of a bucket's size: so much is taken at once


class Leased:
    """A slice of a shared bucket; while nobody answers, a bucket of its own."""

    __slots__ = ("_at", "_left", "_own", "_sharing", "_used", "held", "name", "size", "tenant")

    def __init__(self, sharing: "Sharing", tenant: str, name: str, bucket: Bucket) -> None:
        self._sharing = sharing
        self._own = bucket
        self.tenant = tenant
        self.name = name
        self.size = bucket.size
        self.held = 0.0
        self._left = bucket.size  # of all that nobody holds, when it was last heard of
        self._at = self._used = float("-inf")

    def left(self, now: float) -> float:
        if not self._sharing.up:
            return self._own.left(now)
        return min(self.size, self.held + self._elsewhere(now))

    def grab(self, amount: float, now: float) -> bool:
        """Out of what is here."""
        self._used = now
        if not self._sharing.up:
            return self._own.grab(amount, now)
        if self.held < amount:
            return False
        self.held -= amount
        return True

    def take(self, amount: float, now: float) -> None:
        self._used = now
        if self._sharing.up:
            self.held -= amount
        else:
            self._own.take(amount, now)

    def resize(self, size: float, now: float) -> None:
        self._own.resize(size, now)
        self.size = size

    def lacks(self, amount: float, now: float) -> bool:
        """Is it worth asking for more? Not if there was too little a moment ago."""
        return self.held < amount and (now - self._at >= _ROUND or self.left(now) >= amount)

    def asks(self, amount: float) -> Ask:
        """All that is held goes back with it: until the answer comes, nothing is here."""
        back, self.held = self.held, 0.0
        return Ask(name=self.name, size=self.size, back=back, want=amount, most=max(amount, self.size / _SLICE))

    def tells(self, now: float) -> Ask | None:
        """What is owed, or held for nobody; and how it stands with what is used. None: nothing is to be told."""
        unused = now - self._used >= _UNUSED
        if unused and not self.held:
            return None
        back = self.held if unused else min(0.0, self.held)
        self.held -= back
        return Ask(name=self.name, size=self.size, back=back)

    def got(self, answer: Got, now: float) -> None:
        self.held += answer.taken
        self._left, self._at = answer.left, now

    def lost(self) -> None:
        """Nobody answers any more: what is left is guessed from here on."""
        self.held, self._left, self._at = 0.0, self.size, float("-inf")

    def _elsewhere(self, now: float) -> float:
        if self._at == float("-inf"):
            return self.size
        return min(self.size, self._left + (now - self._at) * self.size / MINUTE)


class Sharing:
    """`quotas` are to be made with `lease`."""

    def __init__(self, till: Till, clock: Callable[[], float] = monotonic) -> None:
        self._till = till
        self._clock = clock
        self._leased: list[Leased] = []
        self._asking: dict[str, asyncio.Lock] = {}  # by tenant
        self._told: dict[str, bool] = {}  # tenants of whom something ran here at the last round
        self.up = True

    def lease(self, tenant: str, name: str, size: float, now: float) -> Leased:
        """For Quotas: a meter."""
        leased = Leased(self, tenant, name, Bucket(size, now))
        self._leased.append(leased)
        return leased

    async def fetch(self, account: Account, size: int) -> None:
        """What a request of so many bytes needs and is not here, if there is so much anywhere."""
        tokens = guessed(size)
        if not self.up or not self._lacking(account, tokens):
            return
        lock = self._asking.setdefault(_tenant(account), asyncio.Lock())
        async with lock:
            if lacking := self._lacking(account, tokens):
                await self._exchange(lacking[0][0].tenant, [(leased, leased.asks(want)) for leased, want in lacking])

    async def attend(self, quotas: Quotas) -> None:
        """For ever: what is owed is told, what is unused put back, a till that was gone asked whether it is back."""
        try:
            while True:
                await asyncio.sleep(_ROUND)
                if self.up:
                    await self._settle()
                for tenant, purses in quotas.bounded().items():
                    await self._compare(tenant, purses)
                if not self.up:
                    await self._try_again()
        finally:
            await self._till.close()

    def _lacking(self, account: Account, tokens: float) -> list[tuple[Leased, float]]:
        now = self._clock()
        return [(leased, want) for leased, want in _wanted(account, tokens) if leased.lacks(want, now)]

    async def _settle(self) -> None:
        now = self._clock()
        due: dict[str, list[tuple[Leased, Ask]]] = {}
        for leased in self._leased:
            if (ask := leased.tells(now)) is not None:
                due.setdefault(leased.tenant, []).append((leased, ask))
        for tenant, asks in due.items():
            await self._exchange(tenant, asks)

    async def _compare(self, tenant: str, purses: Mapping[str, Purse]) -> None:
        """How many run elsewhere, if anything runs here or has just ended; else it does not matter."""
        here = {name: purse.running for name, purse in purses.items()}
        told, self._told[tenant] = self._told.get(tenant, False), any(here.values())
        others: Mapping[str, int] = {}
        if self.up and (told or self._told[tenant]):
            try:
                others = await self._till.running(tenant, here)
            except Unavailable as error:
                self._gone(error)
        for name, purse in purses.items():
            purse.elsewhere = others.get(name, 0)

    async def _exchange(self, tenant: str, asks: list[tuple[Leased, Ask]]) -> None:
        try:
            given = await self._till.exchange(tenant, [ask for _, ask in asks])
        except Unavailable as error:
            self._gone(error)
            return
        for (leased, _), answer in zip(asks, given, strict=True):
            leased.got(answer, self._clock())

    def _gone(self, error: Unavailable) -> None:
        if self.up:
            self.up = False
            log.error("Quotas are counted by this process alone, until %s answers again: %s", self._till.name, error)

    async def _try_again(self) -> None:
        try:
            await self._till.exchange("", [])
        except Unavailable:
            return
        for leased in self._leased:
            leased.lost()
        self.up = True
        log.warning("Quotas are shared again: %s answers.", self._till.name)


def make_quotas(config: Config, of_workers: Till | None = None) -> tuple[Quotas, Sharing | None]:
    """As the settings have them; shared, if there is something to share them by: with other servers, else with the
    other workers of this one."""
    shared = till(config.live) or of_workers
    sharing = None if shared is None else Sharing(shared)
    quotas = Quotas(None if sharing is None else sharing.lease, background_queue=config.background_queue)
    quotas.renew(config.quota, config.tenants)
    return quotas, sharing


def _tenant(account: Account) -> str:
    return next((leased.tenant for leased, _ in _wanted(account, 1.0)), "")


def _wanted(account: Account, tokens: float) -> Iterator[tuple[Leased, float]]:
    for purse in account.purses:
        yield from _of(purse, tokens)


def _of(purse: Purse, tokens: float) -> Iterator[tuple[Leased, float]]:
    if isinstance(purse.requests, Leased):
        yield purse.requests, 1.0
    if isinstance(purse.tokens, Leased):
        yield purse.tokens, min(tokens, purse.tokens.size * GUESS)
