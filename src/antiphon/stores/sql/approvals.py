"""Approvals of tool calls. An approval is marked as used before the call; a concurrent second caller gets "used"."""

from antiphon.stores.base import Approval, ApprovalVerdict
from antiphon.stores.sql.operation import Operation, sanitise_id, sql

# A server that crashed before it reported the request may have requested another call under the same id.
_INSERT = """
INSERT INTO approvals (tenant, id, digest, used, expires) VALUES ($1, $2, $3, 0, $4)
ON CONFLICT (tenant, id) DO UPDATE SET digest = excluded.digest, expires = excluded.expires WHERE approvals.used = 0
"""
_SELECT = "SELECT digest, used FROM approvals WHERE tenant = $1 AND id = $2 AND expires > $3"
_USE = "UPDATE approvals SET used = 1 WHERE tenant = $1 AND id = $2"


def add_request(tenant: str, request_id: str, digest: bytes, expires: float) -> Operation[None]:
    yield sql(_INSERT, tenant, request_id, digest, expires)


def find(tenant: str, request_id: str, now: float) -> Operation[Approval | None]:
    rows = yield sql(_SELECT, tenant, sanitise_id(request_id), now)
    return Approval(bytes(rows[0][0]), bool(rows[0][1])) if rows else None


def use(tenant: str, request_id: str, digest: bytes, now: float) -> Operation[ApprovalVerdict]:
    rows = yield sql(f"{_SELECT} {{lock}}", tenant, sanitise_id(request_id), now)
    if not rows:
        return "unknown"
    requested_digest, used = rows[0]
    if used:
        return "used"
    if bytes(requested_digest) != digest:
        return "changed"
    yield sql(_USE, tenant, request_id)
    return "ok"


def sweep(limit: int, now: float) -> Operation[None]:
    yield sql(
        "DELETE FROM approvals WHERE (tenant, id) IN (SELECT tenant, id FROM approvals WHERE expires <= $1 LIMIT $2)",
        now,
        limit,
    )
