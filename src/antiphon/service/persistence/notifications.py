"""Wake-ups for responses that run in other processes. Delivery is best effort, so waiters also poll."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

QUEUE = "queue"  # pseudo id: the background queue has new entries


class Waiter:
    def __init__(self) -> None:
        self._event = asyncio.Event()

    def wake(self) -> None:
        self._event.set()

    def clear(self) -> None:
        """Reset before reading the state, so that only later notifications wake the waiter."""
        self._event.clear()

    async def wait(self, seconds: float) -> None:
        """Wait for a notification, for at most this many seconds."""
        try:
            async with asyncio.timeout(seconds):
                await self._event.wait()
        except TimeoutError:
            return


class Notifications:
    def __init__(self) -> None:
        self._waiters: dict[str, set[Waiter]] = {}
        self.closed = False  # waiting is no longer allowed

    @contextmanager
    def subscribe(self, response_id: str) -> Iterator[Waiter]:
        waiter = Waiter()
        waiters = self._waiters.setdefault(response_id, set())
        waiters.add(waiter)
        try:
            yield waiter
        finally:
            waiters.discard(waiter)
            if not waiters:
                self._waiters.pop(response_id, None)

    def notify(self, response_id: str) -> None:
        for waiter in self._waiters.get(response_id, ()):
            waiter.wake()

    def close(self) -> None:
        self.closed = True
        for waiters in self._waiters.values():
            for waiter in waiters:
                waiter.wake()
