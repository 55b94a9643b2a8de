"""A response goes: its row too, unless a stored descendant needs it: that keeps input and output, nothing else.

visible ──▶ removed
   └──▶ hidden (some response continues it) ──▶ removed, with the last one that did
"""

from collections.abc import Mapping

import msgspec

from antiphon.stores.sql import idempotency_keys
from antiphon.stores.sql.operation import Operation, sql
from antiphon.stores.sql.responses import hold
from antiphon.stores.sql.totals import Tally

# What those who continue a response need of its JSON; below a name, what they need of that.
Kept = Mapping[str, "Kept | None"]
_OF_REQUEST: Kept = {"input": None, "asked": {"input": None}}
_OF_RESPONSE: Kept = {"id": None, "status": None, "output": None}

_HIDE = """
UPDATE responses SET hidden = 1, request = $3, response = $4, tape = NULL, bytes = $5, expires = NULL, deadline = NULL,
    conversation = NULL, owner = NULL, lease = NULL, ended = $6, status = $7, fence = $8
WHERE tenant = $1 AND id = $2
"""
# Whoever takes a child away holds its hidden ancestors first: of two at once, the later one then sees the last go.
_HOLD = """
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
DELETE FROM responses WHERE tenant = $1 AND id IN (SELECT id FROM gone) RETURNING id, bytes, hidden
"""
_REMOVE_ONE = "DELETE FROM responses WHERE tenant = $1 AND id = $2 RETURNING id, bytes, hidden"

_parts = msgspec.json.Decoder(dict[str, msgspec.Raw])


def delete(tenant: str, response_id: str, now: float) -> Operation[bool]:
    if not (yield from hold(tenant, response_id, now)):
        return False
    tally = Tally()
    yield from forget(tenant, response_id, now, tally)
    yield from tally.book()
    return True


def forget(tenant: str, response_id: str, now: float, tally: Tally) -> Operation[None]:
    """One that is locked, and is not hidden."""
    yield from idempotency_keys.drop(tenant, response_id)
    rows = yield sql("SELECT previous, ended, waited FROM responses WHERE tenant = $1 AND id = $2", tenant, response_id)
    previous, ended, waited = rows[0]
    if ended is None:
        yield sql("DELETE FROM live WHERE tenant = $1 AND id = $2", tenant, response_id)
        if waited:
            yield sql("DELETE FROM outputs WHERE tenant = $1 AND id = $2", tenant, response_id)
    if (yield sql("SELECT 1 FROM responses WHERE tenant = $1 AND previous = $2 LIMIT 1", tenant, response_id)):
        yield from _hide(tenant, response_id, now, tally)
        return
    if previous is not None:
        yield sql(_HOLD, tenant, response_id)
    for gone, size, hidden in (yield sql(_REMOVE if previous else _REMOVE_ONE, tenant, response_id)):
        tally.add(tenant, gone, -1, -hidden, -size)


def _hide(tenant: str, response_id: str, now: float, tally: Tally) -> Operation[None]:
    rows = yield sql(
        "SELECT request, response, bytes, ended, status, fence FROM responses WHERE tenant = $1 AND id = $2",
        tenant,
        response_id,
    )
    request, response, before, ended, status, fence = rows[0]
    if ended is None:  # its owner is told when it comes back
        ended, status, fence = now, "cancelled", fence + 1
    request, response = bytes(_cut(request, _OF_REQUEST)), bytes(_cut(response, _OF_RESPONSE))
    size = len(request) + len(response)
    yield sql(_HIDE, tenant, response_id, request, response, size, ended, status, fence)
    tally.add(tenant, response_id, 0, 1, size - before)


def _cut(document: bytes | msgspec.Raw, kept: Kept) -> msgspec.Raw:
    parts = _parts.decode(document)
    left = {name: _cut(parts[name], below) if below else parts[name] for name, below in kept.items() if name in parts}
    return msgspec.Raw(msgspec.json.encode(left))
