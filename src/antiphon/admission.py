"""How many may work at once and how many may wait; one class for slots, engines, background and the server.

    enter() ── a slot is free ──────────────► running ── leave() ──► out
       │                                        ▲ │
       ├── else, room to wait ──► waiting ── its turn (FIFO)
       │                             └── leave() or cancelled ─────► out
       └── else ──► Busy, with a guess of when to come back

A ticket is left exactly once however often it is tried, and a slot that is freed goes to who waited longest.
"""

import asyncio
from collections import OrderedDict
from time import monotonic
from types import TracebackType
from typing import Self

from antiphon.errors import Busy

_SOONEST, _LATEST = 1.0, 60.0  # seconds
_MEMORY = 0.2  # how much the last stay counts in the mean


class Admission:
    def __init__(self, slots: int, queue: int) -> None:
        self.slots = slots
        self.queue = queue
        self.running = 0
        self._waiting: OrderedDict[Ticket, None] = OrderedDict()
        self._mean_stay = _SOONEST

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def enter(self) -> "Ticket":
        """A place, now or later. Raises Busy when the queue is full."""
        ticket = Ticket(self)
        if self.running < self.slots:  # then nobody waits
            self._admit(ticket)
        elif len(self._waiting) < self.queue:
            self._waiting[ticket] = None
        else:
            raise Busy("The server is at capacity. Try again later.", retry_after=self._guess())
        return ticket

    def _admit(self, ticket: "Ticket") -> None:
        self.running += 1
        ticket.admitted(monotonic())

    def _waiter_left(self, ticket: "Ticket") -> None:
        del self._waiting[ticket]

    def _runner_left(self, stay: float) -> None:
        self.running -= 1
        self._mean_stay += _MEMORY * (stay - self._mean_stay)
        if self._waiting:
            self._admit(self._waiting.popitem(last=False)[0])

    def _guess(self) -> float:
        """Seconds until one of those who come now would have its turn, if stays go on as they did."""
        turns = (len(self._waiting) + 1) / self.slots
        return min(max(turns * self._mean_stay, _SOONEST), _LATEST)


class Ticket:
    """A place in an Admission. Leave it whatever happens: `with admission.enter() as ticket`."""

    __slots__ = ("_admission", "_left", "_since", "_turn")

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._turn: asyncio.Future[None] | None = None
        self._since: float | None = None  # when it began to run
        self._left = False

    async def ready(self) -> None:
        """Wait for one's turn. Cancelled while waiting, the ticket is left."""
        if self._left:
            raise RuntimeError("the ticket was left")
        if self._since is not None:
            return
        self._turn = asyncio.get_running_loop().create_future()
        try:
            await self._turn
        except asyncio.CancelledError:
            self.leave()
            raise

    def admitted(self, now: float) -> None:
        """For the Admission alone: its turn has come."""
        self._since = now
        if self._turn is not None and not self._turn.done():
            self._turn.set_result(None)

    def leave(self) -> None:
        if self._left:
            return
        self._left = True
        if self._turn is not None:
            self._turn.cancel()  # somebody may still wait for a turn that will not come
        if self._since is None:
            self._admission._waiter_left(self)
        else:
            self._admission._runner_left(monotonic() - self._since)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()
