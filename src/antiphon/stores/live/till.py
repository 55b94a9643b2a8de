"""Buckets that all who share a live log fill and empty together: each takes from them what it is going to hand out."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec import Struct


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
