"""State of running responses: leases, live log batches, and outputs of client tools that a response waits for.

One renewal by an owner covers all of its responses, and every takeover increments the fence. Background responses are
claimed by rank, and within a rank from the tenant with the fewest running responses. Several servers claim from one
queue without knowing the order of earlier claims, so starvation is prevented by chance: on average, one of nine slots
goes to a lower rank.

Batches and outputs are removed when the response ends.
"""

import random
from collections import Counter
from collections.abc import Collection, Iterable
from heapq import heapify, heappop, heapreplace

from msgspec import Struct

from antiphon.stores.base import Claim, ClaimedResponse, OutputSubmission, OwnershipLost, Page, StoredResponse
from antiphon.stores.sql.operation import Operation, autocommit_sql, direction, sanitise_id, sql, start_id
from antiphon.stores.sql.responses import COLUMNS, VISIBLE, read_response

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


def renew(now: float, claim: Claim, ids: Collection[str]) -> Operation[set[str]]:
    """Renew the owner's lease on these responses. Returns the ids that are still running and still owned by it.

    Other responses of the owner are given up: a row whose begin or finish failed is taken over by the next `claim`.
    """
    yield sql(_UPSERT_OWNER, claim.owner, claim.until)
    rows = yield sql("SELECT tenant, id, lease FROM responses WHERE ended IS NULL AND owner = $1", claim.owner)
    for tenant, response_id, lease in rows:
        if response_id not in ids and lease <= now:  # forgotten by its owner, and not begun a moment ago
            yield sql(_DISOWN, tenant, response_id, claim.owner)
    return {response_id for _, response_id, _ in rows}.intersection(ids)


def claim_orphans(
    now: float, claim: Claim, max_background: int, released: bool = False
) -> Operation[list[ClaimedResponse]]:
    """Take over running responses whose lease has expired: all foreground ones, at most `max_background` others.

    With `released`, only responses that were given back by `release`.

    Background responses of the first rank come first, except for one in nine, which has a lower rank. Within a rank,
    the tenant with the fewest running responses comes first, and each tenant's oldest response. Every claimed response
    gets a new fence and one more attempt. No two callers get the same response. The result is ordered by age, oldest
    first.
    """
    now = 0.0 if released else now  # the lease of a released response is 0
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
    """Take over this response from any owner, unless it has ended."""
    rows = yield autocommit_sql(_TAKE, tenant, sanitise_id(response_id), claim.owner, claim.until)
    return (yield from read_response(tenant, rows[0])) if rows else None


def release(tenant: str, response_id: str, fence: int) -> Operation[None]:
    """Give a response back: queued again, lease expired, and this attempt not counted.

    A row without an owner was already released by a call whose reply was lost.
    """
    rows = yield sql(_OWNER, tenant, response_id, fence)
    if not rows:
        raise OwnershipLost(response_id)
    if rows[0][0] is not None:
        yield sql(_RELEASE, tenant, response_id)


_OWNED = "tenant = $1 AND id = $2 AND fence = $3 AND ended IS NULL"
# COALESCE lets PostgreSQL infer the type of $5.
_APPEND = f"""
INSERT INTO live (tenant, id, number, batch)
SELECT tenant, id, CAST($4 AS BIGINT), COALESCE($5, request) FROM responses WHERE {_OWNED} {{lock}}
ON CONFLICT (tenant, id, number) DO NOTHING RETURNING number
"""
_BATCHES = "SELECT batch FROM live WHERE tenant = $1 AND id = $2 AND number > $3 ORDER BY number"


def append_batch(tenant: str, response_id: str, fence: int, number: int, batch: bytes) -> Operation[None]:
    """Append a batch of the live log, numbered 0, 1, 2 …

    An existing batch was written by the same owner, whose reply was lost.
    """
    if (yield autocommit_sql(_APPEND, tenant, response_id, fence, number, batch)):
        return
    if not (yield sql(f"SELECT fence FROM responses WHERE {_OWNED}", tenant, response_id, fence)):
        raise OwnershipLost(response_id)


def read_batches(tenant: str, response_id: str, after: int) -> Operation[list[bytes]]:
    """Return the batches with numbers above `after` (−1: all)."""
    rows = yield sql(_BATCHES, tenant, sanitise_id(response_id), after)
    return [batch for (batch,) in rows]


_MARK_WAITED = """
UPDATE responses SET waited = 1 WHERE tenant = $1 AND id = $2 AND fence = $3 AND ended IS NULL RETURNING fence
"""
_EXPECT = """
INSERT INTO outputs (tenant, id, call, output) VALUES ($1, $2, $3, NULL) ON CONFLICT (tenant, id, call) DO NOTHING
"""
_FILL = """
UPDATE outputs SET output = $4 WHERE tenant = $1 AND id = $2 AND call = $3 AND output IS NULL RETURNING call
"""
_OUTPUTS = "SELECT call, output FROM outputs WHERE tenant = $1 AND id = $2 ORDER BY call"
_PENDING = "SELECT call, output IS NULL FROM outputs WHERE tenant = $1 AND id = $2"


def expect_outputs(tenant: str, response_id: str, fence: int, call_ids: Collection[str]) -> Operation[None]:
    """Mark these calls as pending unless they already have an output, also from a former owner.

    Raises OwnershipLost under another fence.
    """
    if not (yield sql(_MARK_WAITED, tenant, response_id, fence)):
        raise OwnershipLost(response_id)
    for call_id in call_ids:
        yield sql(_EXPECT, tenant, response_id, call_id)


def submit_output(
    now: float, tenant: str, response_id: str, call_id: str, output: bytes
) -> Operation[OutputSubmission]:
    """Store the output of a call. Accepted once per call, while the response runs and waits for it.

    The response row is locked meanwhile, so it cannot end without reading an accepted output.
    """
    response_id = sanitise_id(response_id)
    rows = yield sql(f"SELECT ended FROM responses WHERE {VISIBLE} {{lock}}", tenant, response_id, now)
    if not rows:
        return "unknown"
    if rows[0][0] is not None:
        return "ended"
    if (yield sql(_FILL, tenant, response_id, sanitise_id(call_id), output)):
        return "taken"
    pending: dict[str, bool] = dict((yield sql(_PENDING, tenant, response_id)))
    if call_id in pending:
        return "answered"
    return "not pending" if any(pending.values()) else "not waiting"


def read_outputs(tenant: str, response_id: str) -> Operation[dict[str, bytes | None]]:
    """Return the outputs of all calls the response ever waited for; None marks a pending one.

    Empty if there are none or the response has ended.
    """
    rows = yield sql(_OUTPUTS, tenant, sanitise_id(response_id))
    return {call: None if output is None else bytes(output) for call, output in rows}


def page_waiting(tenant: str, after: str | None, limit: int, descending: bool) -> Operation[Page[str]]:
    """Return the ids of responses that wait for outputs. Raises InvalidValue(param="after") for an unknown cursor."""
    start = yield from start_id("responses", tenant, after, descending)
    comparison, order = direction(descending)
    rows = yield sql(
        f"SELECT DISTINCT id FROM outputs WHERE tenant = $1 AND id {comparison} $2 AND output IS NULL"
        f" ORDER BY id {order} LIMIT $3",
        *(tenant, start, limit + 1),
    )
    return Page([name for (name,) in rows[:limit]], len(rows) > limit)
