"""Deletion of responses and conversations: on request, after expiry, and above a tenant's bounds.

A row that a stored descendant needs is hidden and retains only its input and output:

    visible ──▶ removed
       └──▶ hidden (another response continues it) ──▶ removed, together with the last of its descendants

A sweep removes expired rows and, above the bounds, the oldest ones. Running responses and the responses and
conversations they continue are never removed. Responses are evicted by age, conversations by their time of last use. A
hidden response counts as removed; its bytes are freed with the last descendant. An evicted conversation is closed, and
the next sweep purges its items.
"""

from collections.abc import Mapping
from heapq import merge
from typing import Any

import msgspec

from antiphon.stores.base import RetentionBounds
from antiphon.stores.sql import keys, totals
from antiphon.stores.sql.conversations import name_holder
from antiphon.stores.sql.files import release_images
from antiphon.stores.sql.operation import Operation, inline, read_pieces, remove_pieces, sql, write_pieces
from antiphon.stores.sql.responses import lock_visible
from antiphon.stores.sql.totals import TotalsDelta

# The JSON fields of a response that its descendants need; a nested mapping selects fields of a nested object.
RetainedFields = Mapping[str, "RetainedFields | None"]
_REQUEST_FIELDS: RetainedFields = {"input": None, "asked": {"input": None}}
_RESPONSE_FIELDS: RetainedFields = {"id": None, "status": None, "output": None}

_SELECT = "SELECT request, response, bytes, ended, status, fence FROM responses WHERE tenant = $1 AND id = $2"
_HIDE = """
UPDATE responses SET hidden = 1, request = $3, response = $4, tape = NULL, bytes = $5, expires = NULL, deadline = NULL,
    conversation = NULL, owner = NULL, lease = NULL, ended = $6, status = $7, fence = $8
WHERE tenant = $1 AND id = $2
"""
# Lock the hidden ancestors before removing a child: of two concurrent removals, the later one sees the last child go.
_LOCK_ANCESTORS = """
WITH RECURSIVE up (id, previous) AS (
    SELECT id, previous FROM responses WHERE tenant = $1 AND id = $2
    UNION ALL
    SELECT r.id, r.previous FROM up CROSS JOIN responses r
    WHERE r.tenant = $1 AND r.id = up.previous AND r.hidden = 1
)
SELECT id FROM responses WHERE tenant = $1 AND id IN (SELECT id FROM up) {lock}
"""
_REMOVE = """
WITH RECURSIVE gone (id, previous) AS (
    SELECT id, previous FROM responses WHERE tenant = $1 AND id = $2
    UNION ALL
    SELECT r.id, r.previous FROM gone CROSS JOIN responses r
    WHERE r.tenant = $1 AND r.id = gone.previous AND r.hidden = 1 AND NOT EXISTS (
        SELECT 1 FROM responses child WHERE child.tenant = $1 AND child.previous = r.id AND child.id <> gone.id
    )
)
DELETE FROM responses WHERE tenant = $1 AND id IN (SELECT id FROM gone) RETURNING id, bytes, hidden, LENGTH(request)
"""
_REMOVE_ONE = "DELETE FROM responses WHERE tenant = $1 AND id = $2 RETURNING id, bytes, hidden, LENGTH(request)"

_object_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])


def delete(now: float, tenant: str, response_id: str) -> Operation[bool]:
    """Hide a response at once, and remove every row that no stored descendant needs.

    That includes hidden ancestors which only this response retained. The owner of a running one gets OwnershipLost.
    """
    if not (yield from lock_visible(tenant, response_id, now)):
        return False
    delta = TotalsDelta()
    yield from remove_response(tenant, response_id, now, delta)
    yield from delta.record()
    return True


def remove_response(tenant: str, response_id: str, now: float, delta: TotalsDelta) -> Operation[None]:
    """Remove or hide a response that is locked and not hidden."""
    yield from keys.drop_key(tenant, response_id)
    rows = yield sql("SELECT previous, ended, waited FROM responses WHERE tenant = $1 AND id = $2", tenant, response_id)
    previous, ended, waited = rows[0]
    if ended is None:
        yield sql("DELETE FROM live WHERE tenant = $1 AND id = $2", tenant, response_id)
        if waited:
            yield sql("DELETE FROM outputs WHERE tenant = $1 AND id = $2", tenant, response_id)
    if (yield sql("SELECT 1 FROM responses WHERE tenant = $1 AND previous = $2 LIMIT 1", tenant, response_id)):
        yield from _hide(tenant, response_id, now, delta)
        return
    if previous is not None:
        yield sql(_LOCK_ANCESTORS, tenant, response_id)
    removed = yield sql(_REMOVE if previous else _REMOVE_ONE, tenant, response_id)
    for removed_id, size, hidden, request_size in removed:
        delta.add(tenant, removed_id, -1, -hidden, -size)
        if not request_size:
            yield remove_pieces(tenant, removed_id)
        yield from release_images(tenant, removed_id)


def _hide(tenant: str, response_id: str, now: float, delta: TotalsDelta) -> Operation[None]:
    rows = yield sql(_SELECT, tenant, response_id)
    request, response, old_size, ended, status, fence = rows[0]
    if ended is None:  # the owner gets OwnershipLost at its next write
        ended, status, fence = now, "cancelled", fence + 1
    if not request:
        request = yield from read_pieces(tenant, response_id)
        yield remove_pieces(tenant, response_id)
    request = msgspec.json.encode(_select_fields(request, _REQUEST_FIELDS))
    response = msgspec.json.encode(_select_fields(response, _RESPONSE_FIELDS))
    size = len(request) + len(response)
    yield sql(_HIDE, tenant, response_id, inline(request), response, size, ended, status, fence)
    yield from write_pieces(tenant, response_id, request)
    delta.add(tenant, response_id, 0, 1, size - old_size)


def _select_fields(document: bytes | msgspec.Raw, fields: RetainedFields) -> dict[str, Any]:
    parts = _object_decoder.decode(document)
    return {
        name: _select_fields(parts[name], nested) if nested else parts[name]
        for name, nested in fields.items()
        if name in parts
    }


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
_EXPIRY = "SELECT expires FROM conversations WHERE tenant = $1 AND id = $2"
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
        rows = yield sql(_EXPIRY, self._tenant, conversation_id)
        yield sql(_CLOSE, self._tenant, conversation_id, now)
        if rows[0][0] is None:
            self._delta.add(self._tenant, conversation_id, conversations=-1)


_EXPIRED = """
SELECT tenant, id FROM responses WHERE tenant IN (SELECT tenant FROM totals) AND expires <= $1 LIMIT $2 {skip}
"""
_PURGE = """
DELETE FROM items WHERE tenant = $1 AND conversation = $2 AND position IN (
    SELECT position FROM items WHERE tenant = $1 AND conversation = $2 ORDER BY position LIMIT $3
)
RETURNING id, bytes, LENGTH(item)
"""


def sweep(now: float, bounds: RetentionBounds, limit: int = 500) -> Operation[int]:
    """Remove expired rows and, oldest first, rows above the bounds; never running responses.

    Removes at most `limit` rows and returns their number, so the caller repeats while it is not 0.
    """
    yield from keys.drop_expired(limit, now)
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
        purged = yield sql(_PURGE, tenant, conversation_id, limit - count)
        for item_id, size, inline_size in purged:
            delta.add(tenant, conversation_id, size=-size)
            if inline_size == 0:
                yield remove_pieces(tenant, name_holder(conversation_id, item_id))
        count += len(purged)
        if count >= limit:
            break
        yield sql("DELETE FROM conversations WHERE tenant = $1 AND id = $2", tenant, conversation_id)
        yield from release_images(tenant, conversation_id)
        count += 1
    yield from delta.record()
    return count
