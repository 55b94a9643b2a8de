"""What a running response waits for: the outputs of its client's tools. They go when it ends, like its log."""

from collections.abc import Collection

from antiphon.stores.base import Lost, Submission
from antiphon.stores.sql.operation import Operation, sought, sql
from antiphon.stores.sql.responses import SEEN

_WAIT = """
UPDATE responses SET waited = 1 WHERE tenant = $1 AND id = $2 AND fence = $3 AND ended IS NULL RETURNING fence
"""
_EXPECT = """
INSERT INTO outputs (tenant, id, call, output) VALUES ($1, $2, $3, NULL) ON CONFLICT (tenant, id, call) DO NOTHING
"""
_FILL = """
UPDATE outputs SET output = $4 WHERE tenant = $1 AND id = $2 AND call = $3 AND output IS NULL RETURNING call
"""
_KNOWN = "SELECT call, output IS NULL FROM outputs WHERE tenant = $1 AND id = $2"


def expect(tenant: str, response_id: str, fence: int, call_ids: Collection[str]) -> Operation[None]:
    """What a former owner expected and got is there."""
    if not (yield sql(_WAIT, tenant, response_id, fence)):
        raise Lost(response_id)
    for call_id in call_ids:
        yield sql(_EXPECT, tenant, response_id, call_id)


def submit(tenant: str, response_id: str, call_id: str, output: bytes, now: float) -> Operation[Submission]:
    """The response is held meanwhile: it does not end with an output that was taken and nobody read."""
    response_id = sought(response_id)
    rows = yield sql(f"SELECT ended FROM responses WHERE {SEEN} {{lock}}", tenant, response_id, now)
    if not rows:
        return "unknown"
    if rows[0][0] is not None:
        return "ended"
    if (yield sql(_FILL, tenant, response_id, sought(call_id), output)):
        return "taken"
    known: dict[str, bool] = dict((yield sql(_KNOWN, tenant, response_id)))
    if call_id in known:
        return "answered"
    return "not pending" if any(known.values()) else "not waiting"


def of(tenant: str, response_id: str) -> Operation[dict[str, bytes | None]]:
    rows = yield sql(
        "SELECT call, output FROM outputs WHERE tenant = $1 AND id = $2 ORDER BY call", tenant, sought(response_id)
    )
    return {call: None if output is None else bytes(output) for call, output in rows}
