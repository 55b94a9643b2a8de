"""Outputs of client tools that a running response waits for. They are removed when it ends, like its live log."""

from collections.abc import Collection

from antiphon.stores.base import OutputSubmission, OwnershipLost
from antiphon.stores.sql.operation import Operation, sanitise_id, sql
from antiphon.stores.sql.responses import VISIBLE

_MARK_WAITED = """
UPDATE responses SET waited = 1 WHERE tenant = $1 AND id = $2 AND fence = $3 AND ended IS NULL RETURNING fence
"""
_EXPECT = """
INSERT INTO outputs (tenant, id, call, output) VALUES ($1, $2, $3, NULL) ON CONFLICT (tenant, id, call) DO NOTHING
"""
_FILL = """
UPDATE outputs SET output = $4 WHERE tenant = $1 AND id = $2 AND call = $3 AND output IS NULL RETURNING call
"""
_PENDING = "SELECT call, output IS NULL FROM outputs WHERE tenant = $1 AND id = $2"


def expect(tenant: str, response_id: str, fence: int, call_ids: Collection[str]) -> Operation[None]:
    """Mark calls as pending. Calls that a former owner registered retain their outputs."""
    if not (yield sql(_MARK_WAITED, tenant, response_id, fence)):
        raise OwnershipLost(response_id)
    for call_id in call_ids:
        yield sql(_EXPECT, tenant, response_id, call_id)


def submit(tenant: str, response_id: str, call_id: str, output: bytes, now: float) -> Operation[OutputSubmission]:
    """Store an output. The response row is locked meanwhile, so it cannot end without reading an accepted output."""
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


def read_all(tenant: str, response_id: str) -> Operation[dict[str, bytes | None]]:
    rows = yield sql(
        "SELECT call, output FROM outputs WHERE tenant = $1 AND id = $2 ORDER BY call", tenant, sanitise_id(response_id)
    )
    return {call: None if output is None else bytes(output) for call, output in rows}
