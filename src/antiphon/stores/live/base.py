"""The log of a running response while others follow it: batches of entries, and a word to everybody when there is news.

A batch is there for readers in every process when `append` returns, and outlives the process that wrote it if the log
is `shared` or the store is durable. A word may get lost: who waits for one looks again by itself after a second.
"""

from collections.abc import Callable
from typing import Protocol

Hear = Callable[[str], None]  # is told the id of a response


class LiveLog(Protocol):
    async def open(self, hear: Hear) -> None:
        """From now on `hear` is called, on the event loop, for every word, also one's own."""

    async def close(self) -> None: ...

    async def append(self, tenant: str, response_id: str, fence: int, number: int, batch: bytes) -> None:
        """Batches are numbered 0, 1, 2 …. Raises Lost for an owner that has been fenced off. Tells everybody."""

    async def read(self, tenant: str, response_id: str, after: int) -> list[bytes]:
        """The batches whose numbers are above `after` (−1: all)."""

    async def fence(self, tenant: str, response_id: str, fence: int) -> None:
        """From now on `append` is refused to owners with a lower one."""

    async def drop(self, tenant: str, response_id: str) -> None:
        """It has ended and is in the store as a whole."""

    async def tell(self, response_id: str) -> None:
        """There is news: it ended, has another owner, or is to be cancelled."""
