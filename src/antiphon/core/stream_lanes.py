"""The lanes of a connection: each takes one piece of work after the other, and a bounded number run side by side.

    put ─▶ what may begin now ─▶ … ─▶ done ─▶ what may begin next

A lane has no name (the default one) or one of its client's. What waits begins in the order in which it came, of each
lane the first only. Names are never given back: a client that invents ever new ones is not to be remembered forever.
"""

from collections.abc import Sequence
from typing import Generic, TypeVar

from msgspec import Struct

from antiphon.errors import Busy, ConcurrentRequest, TooManyStreams

T = TypeVar("T")

Lane = str | None


class LaneBounds(Struct, frozen=True, kw_only=True):
    running: int = 16
    named: int = 32
    waiting: int = 64  # pieces of work
    waiting_bytes: int = 32 * 1024 * 1024
    alone: bool = False  # there is one lane, and nothing waits


class Lanes(Generic[T]):
    def __init__(self, bounds: LaneBounds) -> None:
        self._bounds = bounds
        self._names: set[str] = set()
        self._running: set[Lane] = set()
        self._waiting: list[tuple[Lane, T, int]] = []  # mostly nothing: an empty deque is ten times as large
        self._bytes = 0  # of what waits

    @property
    def idle(self) -> bool:
        return not self._running

    @property
    def load(self) -> tuple[int, int]:
        """How much runs, and how much waits."""
        return len(self._running), len(self._waiting)

    def check(self, lane: Lane) -> None:
        """Raises if the lane cannot take anything, whatever it is."""
        bounds = self._bounds
        if lane is not None and lane not in self._names and len(self._names) >= bounds.named:
            raise TooManyStreams(f"A connection has at most {bounds.named} named streams.", param="stream_id")
        if bounds.alone and self._running:
            raise ConcurrentRequest("A response is being made on this connection: wait for its end.")

    def put(self, lane: Lane, work: T, size: int) -> Sequence[tuple[Lane, T]]:
        """What may begin now: this, or nothing yet."""
        self.check(lane)
        if lane is not None:
            self._names.add(lane)
        if lane not in self._running and len(self._running) < self._bounds.running:
            self._running.add(lane)
            return ((lane, work),)
        if len(self._waiting) >= self._bounds.waiting or self._bytes + size > self._bounds.waiting_bytes:
            raise Busy("Too much waits on this connection. Wait for responses to end.", retry_after=1.0)
        self._waiting.append((lane, work, size))
        self._bytes += size
        return ()

    def done(self, lane: Lane) -> Sequence[tuple[Lane, T]]:
        """What may begin now that this lane's work is over."""
        self._running.discard(lane)
        begun: list[tuple[Lane, T]] = []
        for waiting in [*self._waiting]:
            if len(self._running) >= self._bounds.running:
                break
            if waiting[0] not in self._running:
                begun.append(self._begin(waiting))
        return begun

    def clear(self) -> None:
        """Nothing more is to begin."""
        self._waiting.clear()

    def _begin(self, waiting: tuple[Lane, T, int]) -> tuple[Lane, T]:
        lane, work, size = waiting
        self._waiting.remove(waiting)
        self._bytes -= size
        self._running.add(lane)
        return lane, work
