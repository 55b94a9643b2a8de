"""The log of a running response while others follow it: batches of entries, and a word to everybody when there is news.

A batch is there for readers in every process when `append` returns, and outlives the process that wrote it if the log
is `shared` or the store is durable. A word may get lost: who waits for one looks again by itself after a second.

Buckets that all who share a live log fill and empty together: each takes from them what it is going to hand out.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

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


class Ask(Struct, frozen=True, kw_only=True):
    """Of one bucket."""

    name: str
    size: float  # of the bucket, and what it fills with in a minute
    back: float = 0.0  # is put back first; below zero, it was spent without having been taken
    want: float = 0.0  # is taken if so much is there, else nothing
    most: float = 0.0  # is taken in that case, if there is more


class Got(Struct, frozen=True):
    taken: float
    left: float


class Till(Protocol):
    name: str  # of who keeps it, for the log

    async def exchange(self, tenant: str, asks: Sequence[Ask]) -> list[Got]:
        """All of them at once, of buckets of one tenant. Raises Unavailable."""

    async def running(self, tenant: str, counts: Mapping[str, int]) -> dict[str, int]:
        """So many of each run here; gives how many run elsewhere. What is not told again is forgotten in a while."""

    async def close(self) -> None: ...
