"""What clients were asked to allow. Who makes the call marks it first: of two at once, one is told that it was used."""

from antiphon.stores.base import Approval, Verdict
from antiphon.stores.sql.operation import Operation, sought, sql

# A server that died before it could tell anybody may have asked for another call under the same id.
_ASK = """
INSERT INTO approvals (tenant, id, digest, used, expires) VALUES ($1, $2, $3, 0, $4)
ON CONFLICT (tenant, id) DO UPDATE SET digest = excluded.digest, expires = excluded.expires WHERE approvals.used = 0
"""
_FOUND = "SELECT digest, used FROM approvals WHERE tenant = $1 AND id = $2 AND expires > $3"
_USE = "UPDATE approvals SET used = 1 WHERE tenant = $1 AND id = $2"


def ask(tenant: str, request_id: str, digest: bytes, expires: float) -> Operation[None]:
    yield sql(_ASK, tenant, request_id, digest, expires)


def find(tenant: str, request_id: str, now: float) -> Operation[Approval | None]:
    rows = yield sql(_FOUND, tenant, sought(request_id), now)
    return Approval(bytes(rows[0][0]), bool(rows[0][1])) if rows else None


def use(tenant: str, request_id: str, digest: bytes, now: float) -> Operation[Verdict]:
    rows = yield sql(f"{_FOUND} {{lock}}", tenant, sought(request_id), now)
    if not rows:
        return "unknown"
    asked, used = rows[0]
    if used:
        return "used"
    if bytes(asked) != digest:
        return "changed"
    yield sql(_USE, tenant, request_id)
    return "ok"


def sweep(most: int, now: float) -> Operation[None]:
    yield sql(
        "DELETE FROM approvals WHERE (tenant, id) IN (SELECT tenant, id FROM approvals WHERE expires <= $1 LIMIT $2)",
        now,
        most,
    )
