"""Bounded concurrency with a bounded, fair queue; used for slots, engines, background work and the server.

    enter() ── a slot is free ──────────────► running ── leave() ──► out
       │                                        ▲ │
       ├── else, queue not full ──► waiting ── its turn
       │                               └── leave() or cancelled ───► out
       └── else ──► Busy, with an estimate of when to retry

    enter_later() ── wait_turn() ──► running, or waiting however many wait

Slots go to the lowest rank first: 0 before 1 before 2. After `_MAX_PASSED_TURNS` turns that went to other ranks, one
turn goes to a waiting ticket of a higher rank number, so that no rank starves. Within a rank, turns rotate over the
waiting tenants, and each tenant's oldest ticket comes first, so one tenant's backlog does not delay the others. A
tenant may queue up to its share of the queue, and at least one ticket, even if other tenants have filled it. Patient
tickets (`enter_later`) have already waited in another bounded queue: they join only when they are awaited, and do not
count against the size of this queue.

Leaving a ticket takes effect once, however often `leave` is called. The number of slots may change at any time; running
tickets are not interrupted.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from time import monotonic
from types import TracebackType
from typing import Self

from msgspec import Struct, field

from antiphon.errors import Busy

_MIN_WAIT_SECONDS, _MAX_WAIT_SECONDS = 1.0, 60.0  # seconds
_SMOOTHING = 0.2  # weight of the latest run in the moving average of run times
_MAX_PASSED_TURNS = 8  # turns that other ranks may take before a waiting rank gets one
DEFAULT_RANK = 1  # 0 is more urgent, 2 less
RANK_NAMES = ("priority", "default", "flex")
# by service tier, in the queue of a model and in the background queue; all others have the default rank
RANKS: dict[str | None, int] = {"priority": 0, "fast": 0, "ultrafast": 0, "flex": 2}

_TenantQueues = OrderedDict[str, OrderedDict["Ticket", None]]  # by tenant; the tenant whose turn is next comes first


class Admission(Struct, eq=False):
    """A number of slots and a queue of tickets that wait for one."""

    slots: int
    queue: int
    on_admitted: Callable[[float], None] | None = None  # called for a ticket that gets a slot, with the seconds waited
    on_queued: "Callable[[Admission], None] | None" = None  # called for a ticket that has to wait or is refused
    running: int = 0
    _waiting: tuple[_TenantQueues, ...] = field(default_factory=lambda: tuple(OrderedDict() for _ in RANK_NAMES))
    # by rank: turns of other ranks since its last one, while it had waiting tickets
    _passed_turns: list[int] = field(default_factory=lambda: [0] * len(RANK_NAMES))
    _patient_count: int = 0  # waiting tickets that are patient
    waiting: int = 0
    _mean_stay: float = _MIN_WAIT_SECONDS

    def enter(self, tenant: str = "", rank: int = DEFAULT_RANK) -> "Ticket":
        """Return a ticket that runs now or waits in the queue. Raises Busy when the queue is full."""
        if self.running < self.slots:  # a free slot implies an empty queue
            self.running += 1
            if self.on_admitted is not None:
                self.on_admitted(0.0)
            return Ticket(self, tenant, rank=rank, entered=True, running=True, _running_since=monotonic())
        if self.on_queued is not None:
            self.on_queued(self)
        if (busy := self.find_refusal(tenant)) is not None:
            raise busy
        ticket = Ticket(self, tenant, rank=rank)
        self._join(ticket)
        return ticket

    def enter_later(self, tenant: str = "", rank: int = DEFAULT_RANK) -> "Ticket":
        """Return a patient ticket, which joins the queue when it is awaited; never raises Busy."""
        return Ticket(self, tenant, patient=True, rank=rank)

    def resize(self, slots: int) -> None:
        """Set the number of slots. Running tickets continue; waiting tickets get slots that became free."""
        self.slots = slots
        self._admit_waiting()

    def waiting_by_rank(self) -> list[int]:
        return [sum(map(len, rank.values())) for rank in self._waiting]

    @property
    def queued(self) -> int:
        """Waiting tickets that count against the size of the queue."""
        return self.waiting - self._patient_count

    def _is_full(self, tenant: str) -> bool:
        if self.queued < self.queue:
            return False
        tenants = {tenant, *(name for rank in self._waiting for name in rank)}
        own_count = sum([not ticket.patient for rank in self._waiting for ticket in rank.get(tenant, ())])
        return not self.queue or own_count >= max(1, self.queue // len(tenants))

    def find_refusal(self, tenant: str) -> Busy | None:
        """Return the error that `enter` would raise for this tenant, or None."""
        if self.running < self.slots or not self._is_full(tenant):
            return None
        return Busy("The server is at capacity. Try again later.", retry_after=self._estimate_wait())

    def _join(self, ticket: "Ticket") -> None:
        ticket.entered = True
        if self.running < self.slots:  # a free slot implies an empty queue
            self._admit(ticket)
        else:
            ticket.waiting_since = monotonic()
            self._waiting[ticket.rank].setdefault(ticket.tenant, OrderedDict())[ticket] = None
            self.waiting += 1
            self._patient_count += ticket.patient
            if self.on_queued is not None and ticket.patient:
                self.on_queued(self)

    def _admit(self, ticket: "Ticket") -> None:
        self.running += 1
        ticket.running, ticket._running_since = True, (now := monotonic())
        if (turn := ticket._turn) is not None and not turn.done():
            turn.set_result(None)
        if self.on_admitted is not None:
            self.on_admitted(0.0 if ticket.waiting_since is None else now - ticket.waiting_since)

    def _remove_waiting(self, ticket: "Ticket") -> None:
        rank = self._waiting[ticket.rank]
        tickets = rank[ticket.tenant]
        del tickets[ticket]
        if not tickets:
            del rank[ticket.tenant]
        self.waiting -= 1
        self._patient_count -= ticket.patient

    def _admit_waiting(self) -> None:
        """Give free slots to waiting tickets, one tenant after the other."""
        while self.waiting and self.running < self.slots:
            rank = self._next_rank()
            tenant, tickets = next(iter(rank.items()))
            rank.move_to_end(tenant)
            first = next(iter(tickets))
            self._remove_waiting(first)
            self._admit(first)

    def _next_rank(self) -> _TenantQueues:
        """Choose the rank of the next turn: the first one waiting, unless a later one was passed over too often."""
        waiting = [rank for rank, tenants in enumerate(self._waiting) if tenants]
        chosen = next((rank for rank in waiting[1:] if self._passed_turns[rank] >= _MAX_PASSED_TURNS), waiting[0])
        for rank in waiting:
            self._passed_turns[rank] = 0 if rank == chosen else self._passed_turns[rank] + 1
        return self._waiting[chosen]

    def _estimate_wait(self) -> float:
        """Estimate the seconds until a ticket that enters now would run, from the average run time."""
        turns = (self.waiting + 1) / max(self.slots, 1)
        return min(max(turns * self._mean_stay, _MIN_WAIT_SECONDS), _MAX_WAIT_SECONDS)


class Ticket(Struct, eq=False):
    """A place in an Admission. Always leave it: `with admission.enter() as ticket`."""

    admission: Admission
    tenant: str = ""
    patient: bool = False
    rank: int = DEFAULT_RANK
    entered: bool = False  # running or waiting
    running: bool = False  # has a slot
    waiting_since: float | None = None  # start of the wait; None if it did not have to wait
    _turn: asyncio.Future[None] | None = None
    _running_since: float = 0.0  # when it got its slot
    _released: bool = False

    @property
    def is_waiting(self) -> bool:
        return self.entered and not self.running and not self._released

    async def wait_turn(self) -> None:
        """Wait for a slot. Cancellation during the wait leaves the ticket."""
        if self._released:
            raise RuntimeError("the ticket has already been left")
        if not self.entered:
            self.admission._join(self)
        if self.running:
            return
        self._turn = asyncio.get_running_loop().create_future()
        try:
            await self._turn
        except asyncio.CancelledError:
            self.leave()
            raise

    def leave(self) -> None:
        if self._released:
            return
        self._released, was_running, self.running = True, self.running, False
        if self._turn is not None:
            self._turn.cancel()  # wakes a task that still waits for the turn
        admission = self.admission
        if was_running:
            admission.running -= 1
            admission._mean_stay += _SMOOTHING * (monotonic() - self._running_since - admission._mean_stay)
            if admission.waiting:
                admission._admit_waiting()
        elif self.entered:
            admission._remove_waiting(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()
