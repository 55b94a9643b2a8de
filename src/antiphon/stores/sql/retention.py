"""What has expired goes, and beyond a tenant's bounds the oldest; never what runs, nor what a running one continues."""

from antiphon.stores.base import Bounds
from antiphon.stores.sql import approvals, totals
from antiphon.stores.sql.eviction import Excess
from antiphon.stores.sql.operation import Operation, sql
from antiphon.stores.sql.removal import forget
from antiphon.stores.sql.totals import Tally

_KEYS = """
DELETE FROM keys WHERE (tenant, name) IN (SELECT tenant, name FROM keys WHERE expires <= $1 LIMIT $2)
"""
_EXPIRED = """
SELECT tenant, id FROM responses WHERE tenant IN (SELECT tenant FROM totals) AND expires <= $1 LIMIT $2 {skip}
"""
_PURGE = """
DELETE FROM items WHERE tenant = $1 AND conversation = $2 AND position IN (
    SELECT position FROM items WHERE tenant = $1 AND conversation = $2 ORDER BY position LIMIT $3
)
RETURNING bytes
"""


def sweep(bounds: Bounds, most: int, now: float) -> Operation[int]:
    yield sql(_KEYS, now, most)
    yield from approvals.sweep(most, now)
    count = yield from _expire(most, now)
    count += yield from _purge(most - count, now)
    if count < most and bounds != Bounds():
        for tenant, entries, hidden, size, conversations in (yield from totals.of_all()):
            excess = Excess(tenant, bounds.of(tenant), (entries - hidden, size, conversations))
            count += yield from excess.evict(most - count, now)
    return count


def _expire(most: int, now: float) -> Operation[int]:
    tally = Tally()
    rows = yield sql(_EXPIRED, now, most)
    for tenant, response_id in rows:
        yield from forget(tenant, response_id, now, tally)
    yield from tally.book()
    return len(rows)


def _purge(most: int, now: float) -> Operation[int]:
    """The items of conversations that were deleted long enough ago, and then these themselves."""
    tally = Tally()
    count = 0
    rows = yield sql("SELECT tenant, id FROM conversations WHERE expires <= $1 LIMIT $2 {skip}", now, most)
    for tenant, conversation_id in rows:
        sizes = yield sql(_PURGE, tenant, conversation_id, most - count)
        tally.add(tenant, conversation_id, size=-sum(size for (size,) in sizes))
        count += len(sizes)
        if count >= most:
            break
        yield sql("DELETE FROM conversations WHERE tenant = $1 AND id = $2", tenant, conversation_id)
        count += 1
    yield from tally.book()
    return count
