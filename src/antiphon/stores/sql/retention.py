"""Retention: removes expired rows and, above a tenant's bounds, the oldest rows.

Running responses and the responses and conversations they continue are never removed. Responses are evicted by age,
conversations by their time of last use. A response that others continue is only hidden and counts as removed; its bytes
are freed with the last descendant. An evicted conversation is closed, and the next sweep purges its items.
"""

from heapq import merge

from antiphon.stores.base import RetentionBounds
from antiphon.stores.sql import approvals, totals
from antiphon.stores.sql.deletion import remove_response
from antiphon.stores.sql.operation import Operation, sql
from antiphon.stores.sql.totals import TotalsDelta

_OLDEST_RESPONSES = """
SELECT ended, id FROM responses WHERE tenant = $1 AND expires IS NOT NULL ORDER BY expires, created LIMIT $2 {skip}
"""
_NOT_IN_USE = """
NOT EXISTS (
    SELECT 1 FROM responses
    WHERE responses.tenant = $1 AND responses.conversation = conversations.id AND responses.ended IS NULL
)
"""
_UNUSED_CONVERSATIONS = f"""
SELECT id FROM conversations WHERE tenant = $1 AND expires IS NULL AND {_NOT_IN_USE} ORDER BY used LIMIT $2 {{skip}}
"""
# Includes recently deleted conversations, whose items can still be referenced.
_OLDEST_CONVERSATIONS = f"""
SELECT used, id, bytes FROM conversations
WHERE tenant = $1 AND (expires IS NULL OR expires > $3) AND {_NOT_IN_USE} ORDER BY used LIMIT $2 {{skip}}
"""
_CLOSE = "UPDATE conversations SET expires = $3, metadata = '{}' WHERE tenant = $1 AND id = $2"
_STRIDE = 50  # candidates read together when evicting by bytes


class TenantExcess:
    """Amounts by which a tenant exceeds its bounds."""

    def __init__(self, tenant: str, bounds: RetentionBounds, usage: tuple[int, int, int]) -> None:
        """`usage`: visible entries, bytes, conversations."""
        entries, size, conversations = usage
        self._tenant = tenant
        self._entries = 0 if bounds.entries is None else entries - bounds.entries
        self._bytes = 0 if bounds.bytes is None else size - bounds.bytes
        self._conversations = 0 if bounds.conversations is None else conversations - bounds.conversations
        self._closed_bytes = 0  # bytes of closed conversations, which the next sweep frees
        self._delta = TotalsDelta()

    def evict(self, limit: int, now: float) -> Operation[int]:
        """Evict at most `limit` rows and return how many."""
        count = 0
        if self._conversations > 0:
            unused = yield sql(_UNUSED_CONVERSATIONS, self._tenant, min(self._conversations, limit))
            for (conversation_id,) in unused:
                yield from self._close(conversation_id, now)
            count += len(unused)
        if self._entries > 0:
            oldest = yield sql(_OLDEST_RESPONSES, self._tenant, min(self._entries, limit - count))
            for _, response_id in oldest:
                yield from remove_response(self._tenant, response_id, now, self._delta)
            count += len(oldest)
        if not count:  # otherwise bytes are checked once the closed conversations are purged
            count += yield from self._shrink(limit, now)
        yield from self._delta.record()
        return count

    def _shrink(self, limit: int, now: float) -> Operation[int]:
        count = 0
        while self._is_too_large():
            stride = min(_STRIDE, limit - count)
            responses = yield sql(_OLDEST_RESPONSES, self._tenant, stride)
            conversations = yield sql(_OLDEST_CONVERSATIONS, self._tenant, stride, now)
            for _, row_id, *size in merge(responses, conversations):
                if count == limit or not self._is_too_large():
                    break
                if size:
                    yield from self._close(row_id, now)
                    self._closed_bytes += size[0]
                else:
                    yield from remove_response(self._tenant, row_id, now, self._delta)
                count += 1
            if count == limit or not (responses or conversations):
                break
        return count

    def _is_too_large(self) -> bool:
        return self._bytes + self._delta.sum_for(self._tenant)[2] > self._closed_bytes

    def _close(self, conversation_id: str, now: float) -> Operation[None]:
        rows = yield sql(
            "SELECT expires FROM conversations WHERE tenant = $1 AND id = $2", self._tenant, conversation_id
        )
        yield sql(_CLOSE, self._tenant, conversation_id, now)
        if rows[0][0] is None:
            self._delta.add(self._tenant, conversation_id, conversations=-1)


_DELETE_KEYS = """
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


def sweep(bounds: RetentionBounds, limit: int, now: float) -> Operation[int]:
    yield sql(_DELETE_KEYS, now, limit)
    yield from approvals.sweep(limit, now)
    count = yield from _expire(limit, now)
    count += yield from _purge(limit - count, now)
    if count < limit and bounds != RetentionBounds():
        for tenant, entries, hidden, size, conversations in (yield from totals.read_all()):
            excess = TenantExcess(tenant, bounds.apply_overrides(tenant), (entries - hidden, size, conversations))
            count += yield from excess.evict(limit - count, now)
    return count


def _expire(limit: int, now: float) -> Operation[int]:
    delta = TotalsDelta()
    rows = yield sql(_EXPIRED, now, limit)
    for tenant, response_id in rows:
        yield from remove_response(tenant, response_id, now, delta)
    yield from delta.record()
    return len(rows)


def _purge(limit: int, now: float) -> Operation[int]:
    """Delete the items of conversations that were deleted long enough ago, then the conversations."""
    delta = TotalsDelta()
    count = 0
    rows = yield sql("SELECT tenant, id FROM conversations WHERE expires <= $1 LIMIT $2 {skip}", now, limit)
    for tenant, conversation_id in rows:
        sizes = yield sql(_PURGE, tenant, conversation_id, limit - count)
        delta.add(tenant, conversation_id, size=-sum(size for (size,) in sizes))
        count += len(sizes)
        if count >= limit:
            break
        yield sql("DELETE FROM conversations WHERE tenant = $1 AND id = $2", tenant, conversation_id)
        count += 1
    yield from delta.record()
    return count
