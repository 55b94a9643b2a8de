"""What has expired goes, and beyond a tenant's bounds the oldest; never what runs, nor what a running one continues.

What goes when a tenant has more than its bounds allow: the oldest first, conversations by when they were last used.

A response that others continue is only hidden, and counts as gone: its bytes follow with the last of those. A
conversation is closed, and its items are purged by the next sweep.
"""

from heapq import merge

from antiphon.stores.base import Bounds
from antiphon.stores.sql import approvals, totals
from antiphon.stores.sql.deletion import forget
from antiphon.stores.sql.operation import Operation, sql
from antiphon.stores.sql.totals import Tally

_OLDEST = """
SELECT ended, id FROM responses WHERE tenant = $1 AND expires IS NOT NULL ORDER BY expires, created LIMIT $2 {skip}
"""
_NOBODY_USES = """
NOT EXISTS (
    SELECT 1 FROM responses
    WHERE responses.tenant = $1 AND responses.conversation = conversations.id AND responses.ended IS NULL
)
"""
_UNUSED = f"""
SELECT id FROM conversations WHERE tenant = $1 AND expires IS NULL AND {_NOBODY_USES} ORDER BY used LIMIT $2 {{skip}}
"""
# Also those that were deleted a while ago, whose items can still be referred to.
_HEAVY = f"""
SELECT used, id, bytes FROM conversations
WHERE tenant = $1 AND (expires IS NULL OR expires > $3) AND {_NOBODY_USES} ORDER BY used LIMIT $2 {{skip}}
"""
_CLOSE = "UPDATE conversations SET expires = $3, metadata = '{}' WHERE tenant = $1 AND id = $2"
_STRIDE = 50  # candidates that are looked at together when bytes decide


class Excess:
    """One tenant, and how much it has beyond its bounds."""

    def __init__(self, tenant: str, bounds: Bounds, has: tuple[int, int, int]) -> None:
        """`has`: visible entries, bytes, conversations."""
        entries, size, conversations = has
        self._tenant = tenant
        self._entries = 0 if bounds.entries is None else entries - bounds.entries
        self._bytes = 0 if bounds.bytes is None else size - bounds.bytes
        self._conversations = 0 if bounds.conversations is None else conversations - bounds.conversations
        self._closed = 0  # bytes that go with the conversations that are purged next time
        self._tally = Tally()

    def evict(self, most: int, now: float) -> Operation[int]:
        count = 0
        if self._conversations > 0:
            unused = yield sql(_UNUSED, self._tenant, min(self._conversations, most))
            for (conversation_id,) in unused:
                yield from self._close(conversation_id, now)
            count += len(unused)
        if self._entries > 0:
            oldest = yield sql(_OLDEST, self._tenant, min(self._entries, most - count))
            for _, response_id in oldest:
                yield from forget(self._tenant, response_id, now, self._tally)
            count += len(oldest)
        if not count:  # else the bytes are looked at when all that has been closed is gone
            count += yield from self._shrink(most, now)
        yield from self._tally.book()
        return count

    def _shrink(self, most: int, now: float) -> Operation[int]:
        count = 0
        while self._too_large():
            stride = min(_STRIDE, most - count)
            responses = yield sql(_OLDEST, self._tenant, stride)
            conversations = yield sql(_HEAVY, self._tenant, stride, now)
            for _, name, *size in merge(responses, conversations):
                if count == most or not self._too_large():
                    break
                if size:
                    yield from self._close(name, now)
                    self._closed += size[0]
                else:
                    yield from forget(self._tenant, name, now, self._tally)
                count += 1
            if count == most or not (responses or conversations):
                break
        return count

    def _too_large(self) -> bool:
        return self._bytes + self._tally.of(self._tenant)[2] > self._closed

    def _close(self, conversation_id: str, now: float) -> Operation[None]:
        rows = yield sql(
            "SELECT expires FROM conversations WHERE tenant = $1 AND id = $2", self._tenant, conversation_id
        )
        yield sql(_CLOSE, self._tenant, conversation_id, now)
        if rows[0][0] is None:
            self._tally.add(self._tenant, conversation_id, conversations=-1)


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
