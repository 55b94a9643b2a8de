"""Whose background responses are next: those in a hurry, and among them a tenant of whom least runs.

Several servers take from one queue, and nobody knows whose turn it was last: so what keeps anybody from waiting for
ever is chance. Of nine turns one, in the long run, goes to somebody of a lower rank.
"""

import random
from collections import Counter
from collections.abc import Iterable
from heapq import heapify, heappop, heapreplace

from msgspec import Struct

_PASSED = 8  # turns, of nine, that go to the first rank of those that wait; as in an Admission


class Crowd(Struct, frozen=True):
    """What a tenant has of one rank that has not ended."""

    rank: int  # 0 before 1 before 2
    tenant: str
    waits: int
    runs: int


def turns(crowds: Iterable[Crowd], places: int, chance: random.Random | None = None) -> list[tuple[int, str, int]]:
    """Rank, tenant and how many of them have so many places."""
    chance = chance or random.Random()
    crowds = [*crowds]
    runs: Counter[str] = Counter()
    for crowd in crowds:
        runs[crowd.tenant] += crowd.runs
    lines = [_Line(rank, crowds, runs, chance) for rank in sorted({crowd.rank for crowd in crowds if crowd.waits})]
    given: Counter[tuple[int, str]] = Counter()
    while lines and places > given.total():
        passed = len(lines) > 1 and chance.random() * (_PASSED + 1) < 1
        line = chance.choice(lines[1:]) if passed else lines[0]
        tenant = line.next()
        given[line.rank, tenant] += 1
        runs[tenant] += 1
        lines = [line for line in lines if line]
    return [(rank, tenant, count) for (rank, tenant), count in sorted(given.items())]


class _Line:
    """Those who wait with one rank. `runs` is shared with the other lines: it changes while we stand here."""

    def __init__(self, rank: int, crowds: Iterable[Crowd], runs: Counter[str], chance: random.Random) -> None:
        self.rank = rank
        self._runs = runs
        self._waits = Counter({crowd.tenant: crowd.waits for crowd in crowds if crowd.rank == rank and crowd.waits})
        self._heap = [(runs[tenant], chance.random(), tenant) for tenant in self._waits]
        heapify(self._heap)

    def __bool__(self) -> bool:
        return bool(self._heap)

    def next(self) -> str:
        """The tenant of whom least runs; among several it is a matter of chance."""
        known, place, tenant = self._heap[0]
        while known != self._runs[tenant]:
            heapreplace(self._heap, (self._runs[tenant], place, tenant))
            known, place, tenant = self._heap[0]
        self._waits[tenant] -= 1
        if not self._waits[tenant]:
            heappop(self._heap)
        return tenant
