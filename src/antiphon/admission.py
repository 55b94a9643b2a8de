"""How many may work at once and how many may wait; one class for slots, engines, background and the server.

    enter() ── a slot is free ──────────────► running ── leave() ──► out
       │                                        ▲ │
       ├── else, room to wait ──► waiting ── its turn
       │                             └── leave() or cancelled ─────► out
       └── else ──► Busy, with a guess of when to come back

    patient() ── ready() ──► running, or waiting however many wait

Who is in a hurry has its turn before others, by its rank: 0 before 1 before 2. But after `_PASSED` turns that went to
others, one goes to whoever waits with a lower rank, so that nobody waits for ever. Among those of one rank turns go
round the tenants that wait, and to the oldest ticket of each, so nobody waits behind all that another sent.
A tenant is let wait up to its share of the queue, and at least once, even if others have filled it. Who is patient has
waited elsewhere, within a bound: it takes its place only when it can use it, and takes none of the room that others
have for waiting.

A ticket is left exactly once however often it is tried. Slots may come and go; who runs is not interrupted.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from time import monotonic
from types import TracebackType
from typing import Self

from msgspec import Struct

from antiphon.errors import Busy

_SOONEST, _LATEST = 1.0, 60.0  # seconds
_MEMORY = 0.2  # how much the last stay counts in the mean
_PASSED = 8  # turns that go to others while somebody of a lower rank waits
USUAL = 1  # the rank of who is neither in a hurry nor patient

_Waiting = OrderedDict[str, OrderedDict["Ticket", None]]  # by tenant; the next one first


class Admission:
    def __init__(self, slots: int, queue: int, waited: Callable[[float], None] | None = None) -> None:
        """`waited` is told of everybody whose turn has come, and for how many seconds it was waited for."""
        self._waited = waited
        self.slots = slots
        self.queue = queue
        self.running = 0
        self._waiting: tuple[_Waiting, ...] = (OrderedDict(), OrderedDict(), OrderedDict())  # by rank
        self._passed = [0] * len(self._waiting)  # turns that others had since the last of this rank, while some waited
        self._patient = 0  # of those who wait
        self.waiting = 0
        self._mean_stay = _SOONEST

    def enter(self, tenant: str = "", rank: int = USUAL) -> "Ticket":
        """A place, now or later. Raises Busy when the queue is full."""
        if self.running < self.slots:  # then nobody waits
            self.running += 1
            if self._waited is not None:
                self._waited(0.0)
            return Ticket(self, tenant, rank=rank, entered=True, running=True, _since=monotonic())
        if (busy := self.turns_away(tenant)) is not None:
            raise busy
        ticket = Ticket(self, tenant, rank=rank)
        self._join(ticket)
        return ticket

    def patient(self, tenant: str = "", rank: int = USUAL) -> "Ticket":
        """A place from the moment that it is waited for; never Busy."""
        return Ticket(self, tenant, patient=True, rank=rank)

    def resize(self, slots: int) -> None:
        """So many slots from now on. Who runs goes on; who waits may have its turn."""
        self.slots = slots
        self._hand_out()

    def waiting_by_rank(self) -> list[int]:
        return [sum(map(len, rank.values())) for rank in self._waiting]

    @property
    def impatient(self) -> int:
        """Of those who wait."""
        return self.waiting - self._patient

    def _is_full(self, tenant: str) -> bool:
        if self.impatient < self.queue:
            return False
        tenants = {tenant, *(name for rank in self._waiting for name in rank)}
        own = sum([not one.patient for rank in self._waiting for one in rank.get(tenant, ())])
        return not self.queue or own >= max(1, self.queue // len(tenants))

    def turns_away(self, tenant: str) -> Busy | None:
        """What `enter` would raise."""
        if self.running < self.slots or not self._is_full(tenant):
            return None
        return Busy("The server is at capacity. Try again later.", retry_after=self._guess())

    def _join(self, ticket: "Ticket") -> None:
        ticket.entered = True
        if self.running < self.slots:  # then nobody waits
            self._admit(ticket)
        else:
            ticket.came = monotonic()
            self._waiting[ticket.rank].setdefault(ticket.tenant, OrderedDict())[ticket] = None
            self.waiting += 1
            self._patient += ticket.patient

    def _admit(self, ticket: "Ticket") -> None:
        self.running += 1
        ticket.running, ticket._since = True, (now := monotonic())
        if (turn := ticket._turn) is not None and not turn.done():
            turn.set_result(None)
        if self._waited is not None:
            self._waited(0.0 if ticket.came is None else now - ticket.came)

    def _waiter_left(self, ticket: "Ticket") -> None:
        rank = self._waiting[ticket.rank]
        own = rank[ticket.tenant]
        del own[ticket]
        if not own:
            del rank[ticket.tenant]
        self.waiting -= 1
        self._patient -= ticket.patient

    def _hand_out(self) -> None:
        """Free slots, to one tenant after the other."""
        while self.waiting and self.running < self.slots:
            rank = self._next_rank()
            tenant, own = next(iter(rank.items()))
            rank.move_to_end(tenant)
            first = next(iter(own))
            self._waiter_left(first)
            self._admit(first)

    def _next_rank(self) -> _Waiting:
        """Whose turn it is: the first that waits, unless one behind it has waited for too many turns."""
        waiting = [rank for rank, tenants in enumerate(self._waiting) if tenants]
        chosen = next((rank for rank in waiting[1:] if self._passed[rank] >= _PASSED), waiting[0])
        for rank in waiting:
            self._passed[rank] = 0 if rank == chosen else self._passed[rank] + 1
        return self._waiting[chosen]

    def _guess(self) -> float:
        """Seconds until one of those who come now would have its turn, if stays go on as they did."""
        turns = (self.waiting + 1) / max(self.slots, 1)
        return min(max(turns * self._mean_stay, _SOONEST), _LATEST)


class Ticket(Struct, eq=False):
    """A place in an Admission. Leave it whatever happens: `with admission.enter() as ticket`."""

    _admission: Admission
    tenant: str = ""
    patient: bool = False
    rank: int = USUAL
    entered: bool = False  # it runs or waits
    running: bool = False  # it has its turn: nothing need be waited for
    came: float | None = None  # when it began to wait, if it had to
    _turn: asyncio.Future[None] | None = None
    _since: float = 0.0  # when it began to run
    _left: bool = False

    async def ready(self) -> None:
        """Wait for one's turn. Cancelled while waiting, the ticket is left."""
        if self._left:
            raise RuntimeError("the ticket was left")
        if not self.entered:
            self._admission._join(self)
        if self.running:
            return
        self._turn = asyncio.get_running_loop().create_future()
        try:
            await self._turn
        except asyncio.CancelledError:
            self.leave()
            raise

    def leave(self) -> None:
        if self._left:
            return
        self._left, ran, self.running = True, self.running, False
        if self._turn is not None:
            self._turn.cancel()  # somebody may still wait for a turn that will not come
        admission = self._admission
        if ran:
            admission.running -= 1
            admission._mean_stay += _MEMORY * (monotonic() - self._since - admission._mean_stay)
            if admission.waiting:
                admission._hand_out()
        elif self.entered:
            admission._waiter_left(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()
