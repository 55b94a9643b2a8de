"""Leases: one renewal by an owner covers all of its responses, and every takeover increments the fence.

Background responses are claimed by rank, and within a rank from the tenant with the fewest running responses.

Several servers claim from one queue without knowing the order of earlier claims, so starvation is prevented by chance:
on average, one of nine slots goes to a lower rank.
"""

import random
from collections import Counter
from collections.abc import Collection, Iterable
from heapq import heapify, heappop, heapreplace

from msgspec import Struct

from antiphon.stores.base import Claim, ClaimedResponse, OwnershipLost, StoredResponse
from antiphon.stores.sql.operation import Operation, autocommit_sql, sanitise_id, sql
from antiphon.stores.sql.responses import COLUMNS, to_stored_response

_FIRST_RANK_TURNS = 8  # of nine slots, those that go to the first waiting rank; the same ratio as in `Admission`


class TenantQueue(Struct, frozen=True):
    """The unfinished background responses of a tenant in one rank."""

    rank: int  # 0 before 1 before 2
    tenant: str
    waiting: int
    running: int


def allocate_slots(
    queues: Iterable[TenantQueue], slots: int, rng: random.Random | None = None
) -> list[tuple[int, str, int]]:
    """Distribute the slots. Returns rank, tenant and number of responses to claim."""
    rng = rng or random.Random()
    queues = [*queues]
    running: Counter[str] = Counter()
    for queue in queues:
        running[queue.tenant] += queue.running
    ranks = [
        _RankQueue(rank, queues, running, rng) for rank in sorted({queue.rank for queue in queues if queue.waiting})
    ]
    granted: Counter[tuple[int, str]] = Counter()
    while ranks and slots > granted.total():
        skips_first = len(ranks) > 1 and rng.random() * (_FIRST_RANK_TURNS + 1) < 1
        rank_queue = rng.choice(ranks[1:]) if skips_first else ranks[0]
        tenant = rank_queue.pop_tenant()
        granted[rank_queue.rank, tenant] += 1
        running[tenant] += 1
        ranks = [rank_queue for rank_queue in ranks if rank_queue]
    return [(rank, tenant, count) for (rank, tenant), count in sorted(granted.items())]


class _RankQueue:
    """The waiting tenants of one rank. The caller updates `running`, which all ranks share, between two calls."""

    def __init__(self, rank: int, queues: Iterable[TenantQueue], running: Counter[str], rng: random.Random) -> None:
        self.rank = rank
        self._running = running
        self._waiting = Counter(
            {queue.tenant: queue.waiting for queue in queues if queue.rank == rank and queue.waiting}
        )
        self._heap = [(running[tenant], rng.random(), tenant) for tenant in self._waiting]
        heapify(self._heap)

    def __bool__(self) -> bool:
        return bool(self._heap)

    def pop_tenant(self) -> str:
        """Return the tenant with the fewest running responses; ties are broken at random."""
        counted, tie_break, tenant = self._heap[0]
        while counted != self._running[tenant]:
            heapreplace(self._heap, (self._running[tenant], tie_break, tenant))
            counted, tie_break, tenant = self._heap[0]
        self._waiting[tenant] -= 1
        if not self._waiting[tenant]:
            heappop(self._heap)
        return tenant


_UPSERT_OWNER = """
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
_QUEUES = f"""
SELECT rank, tenant, COUNT(*), SUM(waits) FROM (
    SELECT rank, tenant, CASE WHEN {_ORPHAN} THEN 1 ELSE 0 END AS waits
    FROM responses WHERE ended IS NULL AND background = 1
) AS unfinished
GROUP BY rank, tenant
"""


def renew(claim: Claim, ids: Collection[str], now: float) -> Operation[set[str]]:
    """Renew the owner's leases, and give up the responses that it no longer lists."""
    yield sql(_UPSERT_OWNER, claim.owner, claim.until)
    rows = yield sql("SELECT tenant, id, lease FROM responses WHERE ended IS NULL AND owner = $1", claim.owner)
    for tenant, response_id, lease in rows:
        if response_id not in ids and lease <= now:  # forgotten by its owner, and not begun a moment ago
            yield sql(_DISOWN, tenant, response_id, claim.owner)
    return {response_id for _, response_id, _ in rows}.intersection(ids)


def claim_orphans(claim: Claim, max_background: int, now: float) -> Operation[list[ClaimedResponse]]:
    """Claim responses with an expired lease. A released response has lease 0, so `now` 0 selects only released ones."""
    orphans = yield sql(_ORPHANS, now)
    if max_background > 0:
        queues = [
            TenantQueue(rank, tenant, int(waiting), total - int(waiting))
            for rank, tenant, total, waiting in (yield sql(_QUEUES, now))
        ]
        for rank, tenant, count in allocate_slots(queues, max_background):
            orphans += yield sql(_WAITING, now, rank, tenant, count)
    claimed = []
    for tenant, response_id in orphans:
        row = yield from take(tenant, response_id, claim)
        if row is not None:
            claimed.append(ClaimedResponse(tenant, row))
    yield sql("DELETE FROM owners WHERE until <= $1", now)
    return sorted(claimed, key=lambda taken: (taken.row.created, taken.row.id))


def take(tenant: str, response_id: str, claim: Claim) -> Operation[StoredResponse | None]:
    rows = yield autocommit_sql(_TAKE, tenant, sanitise_id(response_id), claim.owner, claim.until)
    return to_stored_response(rows[0]) if rows else None


def release(tenant: str, response_id: str, fence: int) -> Operation[None]:
    """Give a response back. A row without an owner was already released by a call whose reply was lost."""
    rows = yield sql(_OWNER, tenant, response_id, fence)
    if not rows:
        raise OwnershipLost(response_id)
    if rows[0][0] is not None:
        yield sql(_RELEASE, tenant, response_id)
