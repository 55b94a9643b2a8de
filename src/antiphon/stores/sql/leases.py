"""Who works on what: an owner's sign of life covers everything it runs, and whoever takes over grows the fence.

Whose background responses are next: those in a hurry, and among them a tenant of whom least runs.

Several servers take from one queue, and nobody knows whose turn it was last: so what keeps anybody from waiting for
ever is chance. Of nine turns one, in the long run, goes to somebody of a lower rank.
"""

import random
from collections import Counter
from collections.abc import Collection, Iterable
from heapq import heapify, heappop, heapreplace

from msgspec import Struct

from antiphon.stores.base import Claim, Claimed, Lost, StoredResponse
from antiphon.stores.sql.operation import Operation, alone, sought, sql
from antiphon.stores.sql.responses import COLUMNS, stored

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


_ALIVE = """
INSERT INTO owners (owner, until) VALUES ($1, $2) ON CONFLICT (owner) DO UPDATE SET until = excluded.until
"""
_TAKE = f"""
UPDATE responses SET owner = $3, lease = $4, fence = fence + 1, attempts = attempts + 1
WHERE tenant = $1 AND id = $2 AND ended IS NULL RETURNING {COLUMNS}
"""
_DISOWN = "UPDATE responses SET owner = NULL WHERE tenant = $1 AND id = $2 AND owner = $3 AND ended IS NULL"
_OWNER = "SELECT owner FROM responses WHERE tenant = $1 AND id = $2 AND fence = $3 AND ended IS NULL {lock}"
_RELEASE = """
UPDATE responses SET status = 'queued', owner = NULL, lease = 0, attempts = attempts - 1 WHERE tenant = $1 AND id = $2
"""
_ORPHAN = """
lease <= $1 AND NOT EXISTS (SELECT 1 FROM owners WHERE owners.owner = responses.owner AND owners.until > $1)
"""
_ORPHANS = f"""
SELECT tenant, id FROM responses WHERE ended IS NULL AND background = 0 AND {_ORPHAN} ORDER BY created, id {{skip}}
"""
_WAITING = f"""
SELECT tenant, id FROM responses WHERE ended IS NULL AND background = 1 AND rank = $2 AND tenant = $3 AND {_ORPHAN}
ORDER BY created, id LIMIT $4 {{skip}}
"""
_CROWDS = f"""
SELECT rank, tenant, COUNT(*), SUM(waits) FROM (
    SELECT rank, tenant, CASE WHEN {_ORPHAN} THEN 1 ELSE 0 END AS waits
    FROM responses WHERE ended IS NULL AND background = 1
) AS unfinished
GROUP BY rank, tenant
"""


def renew(claim: Claim, ids: Collection[str], now: float) -> Operation[set[str]]:
    yield sql(_ALIVE, claim.owner, claim.until)
    rows = yield sql("SELECT tenant, id, lease FROM responses WHERE ended IS NULL AND owner = $1", claim.owner)
    for tenant, response_id, lease in rows:
        if response_id not in ids and lease <= now:  # what it forgot; not what it has begun a moment ago
            yield sql(_DISOWN, tenant, response_id, claim.owner)
    return {response_id for _, response_id, _ in rows}.intersection(ids)


def claim_orphans(claim: Claim, background: int, now: float) -> Operation[list[Claimed]]:
    """What was given back has a lease that ended at the beginning of time."""
    orphans = yield sql(_ORPHANS, now)
    if background > 0:
        crowds = [
            Crowd(rank, tenant, int(waits), all - int(waits)) for rank, tenant, all, waits in (yield sql(_CROWDS, now))
        ]
        for rank, tenant, count in turns(crowds, background):
            orphans += yield sql(_WAITING, now, rank, tenant, count)
    claimed = []
    for tenant, response_id in orphans:
        row = yield from take(tenant, response_id, claim)
        if row is not None:
            claimed.append(Claimed(tenant, row))
    yield sql("DELETE FROM owners WHERE until <= $1", now)
    return sorted(claimed, key=lambda one: (one.row.created, one.row.id))


def take(tenant: str, response_id: str, claim: Claim) -> Operation[StoredResponse | None]:
    rows = yield alone(_TAKE, tenant, sought(response_id), claim.owner, claim.until)
    return stored(rows[0]) if rows else None


def release(tenant: str, response_id: str, fence: int) -> Operation[None]:
    """One that has no owner has been released already, by somebody whose answer got lost."""
    rows = yield sql(_OWNER, tenant, response_id, fence)
    if not rows:
        raise Lost(response_id)
    if rows[0][0] is not None:
        yield sql(_RELEASE, tenant, response_id)
