"""Lanes of a connection: each lane runs one task at a time, and a limited number of lanes run concurrently.

    submit ─▶ tasks that may start now ─▶ … ─▶ finish ─▶ tasks that may start next

A lane is unnamed (the default lane) or named by the client. Waiting tasks start in order of arrival, per lane only the
first. Names are never released, so a client cannot make the server track an unlimited number of them.
"""

from collections.abc import Sequence
from typing import Generic, TypeVar

from msgspec import Struct

from antiphon.errors import Busy, ConcurrentRequest, TooManyStreams

T = TypeVar("T")

Lane = str | None


class LaneLimits(Struct, frozen=True, kw_only=True):
    """Limits of one connection."""

    max_running: int = 16
    max_named: int = 32
    max_waiting: int = 64  # tasks
    max_waiting_bytes: int = 32 * 1024 * 1024
    exclusive: bool = False  # only one task may run, and none may wait


class StreamLanes(Generic[T]):
    """The lanes of one connection and their waiting tasks."""

    def __init__(self, limits: LaneLimits) -> None:
        self._limits = limits
        self._names: set[str] = set()
        self._running: set[Lane] = set()
        self._waiting: list[tuple[Lane, T, int]] = []  # usually empty; an empty deque is ten times as large
        self._waiting_bytes = 0  # total size of the waiting tasks

    @property
    def is_idle(self) -> bool:
        return not self._running

    @property
    def load(self) -> tuple[int, int]:
        """Numbers of running and waiting tasks."""
        return len(self._running), len(self._waiting)

    def check(self, lane: Lane) -> None:
        """Raise if the lane cannot accept any task."""
        limits = self._limits
        if lane is not None and lane not in self._names and len(self._names) >= limits.max_named:
            raise TooManyStreams(f"A connection has at most {limits.max_named} named streams.", param="stream_id")
        if limits.exclusive and self._running:
            raise ConcurrentRequest("A response is already in progress on this connection; wait until it ends.")

    def submit(self, lane: Lane, task: T, size: int) -> Sequence[tuple[Lane, T]]:
        """Return the task if it may start now; otherwise queue it and return nothing."""
        self.check(lane)
        if lane is not None:
            self._names.add(lane)
        if lane not in self._running and len(self._running) < self._limits.max_running:
            self._running.add(lane)
            return ((lane, task),)
        if (
            len(self._waiting) >= self._limits.max_waiting
            or self._waiting_bytes + size > self._limits.max_waiting_bytes
        ):
            raise Busy("Too many requests are waiting on this connection. Wait for responses to end.", retry_after=1.0)
        self._waiting.append((lane, task, size))
        self._waiting_bytes += size
        return ()

    def finish(self, lane: Lane) -> Sequence[tuple[Lane, T]]:
        """Mark the lane's task as finished and return the tasks that may start now."""
        self._running.discard(lane)
        started: list[tuple[Lane, T]] = []
        for entry in [*self._waiting]:
            if len(self._running) >= self._limits.max_running:
                break
            if entry[0] not in self._running:
                started.append(self._start(entry))
        return started

    def clear(self) -> None:
        """Drop all waiting tasks."""
        self._waiting.clear()

    def _start(self, entry: tuple[Lane, T, int]) -> tuple[Lane, T]:
        lane, task, size = entry
        self._waiting.remove(entry)
        self._waiting_bytes -= size
        self._running.add(lane)
        return lane, task
