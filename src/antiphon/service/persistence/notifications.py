"""Who waits for news of a response that runs elsewhere. A word may get lost, so nobody waits for one alone."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

QUEUE = "queue"  # a word that is no id: there is something in the queue for background work


class Ear:
    def __init__(self) -> None:
        self._heard = asyncio.Event()

    def hear(self) -> None:
        self._heard.set()

    def forget(self) -> None:
        """Before one looks for oneself: only what is said from now on is news."""
        self._heard.clear()

    async def listen(self, seconds: float) -> None:
        """Until a word comes, but no longer than this."""
        try:
            async with asyncio.timeout(seconds):
                await self._heard.wait()
        except TimeoutError:
            return


class Words:
    def __init__(self) -> None:
        self._ears: dict[str, set[Ear]] = {}
        self.closed = False  # nobody may wait any longer

    @contextmanager
    def of(self, response_id: str) -> Iterator[Ear]:
        ear = Ear()
        ears = self._ears.setdefault(response_id, set())
        ears.add(ear)
        try:
            yield ear
        finally:
            ears.discard(ear)
            if not ears:
                self._ears.pop(response_id, None)

    def hear(self, response_id: str) -> None:
        for ear in self._ears.get(response_id, ()):
            ear.hear()

    def close(self) -> None:
        self.closed = True
        for ears in self._ears.values():
            for ear in ears:
                ear.hear()
