"""Deletion of responses. A row that a stored descendant needs is hidden and retains only its input and output.

visible ──▶ removed
   └──▶ hidden (another response continues it) ──▶ removed, together with the last of its descendants
"""

from collections.abc import Mapping

import msgspec

from antiphon.stores.sql import idempotency_keys
from antiphon.stores.sql.operation import Operation, sql
from antiphon.stores.sql.responses import lock_visible
from antiphon.stores.sql.totals import TotalsDelta

# The JSON fields of a response that its descendants need; a nested mapping selects fields of a nested object.
RetainedFields = Mapping[str, "RetainedFields | None"]
_REQUEST_FIELDS: RetainedFields = {"input": None, "asked": {"input": None}}
_RESPONSE_FIELDS: RetainedFields = {"id": None, "status": None, "output": None}

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
DELETE FROM responses WHERE tenant = $1 AND id IN (SELECT id FROM gone) RETURNING id, bytes, hidden
"""
_REMOVE_ONE = "DELETE FROM responses WHERE tenant = $1 AND id = $2 RETURNING id, bytes, hidden"

_object_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])


def delete(tenant: str, response_id: str, now: float) -> Operation[bool]:
    if not (yield from lock_visible(tenant, response_id, now)):
        return False
    delta = TotalsDelta()
    yield from remove_response(tenant, response_id, now, delta)
    yield from delta.record()
    return True


def remove_response(tenant: str, response_id: str, now: float, delta: TotalsDelta) -> Operation[None]:
    """Remove or hide a response that is locked and not hidden."""
    yield from idempotency_keys.drop(tenant, response_id)
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
    for removed_id, size, hidden in (yield sql(_REMOVE if previous else _REMOVE_ONE, tenant, response_id)):
        delta.add(tenant, removed_id, -1, -hidden, -size)


def _hide(tenant: str, response_id: str, now: float, delta: TotalsDelta) -> Operation[None]:
    rows = yield sql(
        "SELECT request, response, bytes, ended, status, fence FROM responses WHERE tenant = $1 AND id = $2",
        tenant,
        response_id,
    )
    request, response, old_size, ended, status, fence = rows[0]
    if ended is None:  # the owner gets OwnershipLost at its next write
        ended, status, fence = now, "cancelled", fence + 1
    request, response = bytes(_trim(request, _REQUEST_FIELDS)), bytes(_trim(response, _RESPONSE_FIELDS))
    size = len(request) + len(response)
    yield sql(_HIDE, tenant, response_id, request, response, size, ended, status, fence)
    delta.add(tenant, response_id, 0, 1, size - old_size)


def _trim(document: bytes | msgspec.Raw, fields: RetainedFields) -> msgspec.Raw:
    parts = _object_decoder.decode(document)
    trimmed = {
        name: _trim(parts[name], nested) if nested else parts[name] for name, nested in fields.items() if name in parts
    }
    return msgspec.Raw(msgspec.json.encode(trimmed))
