"""Idempotency-Keys and approvals of tool calls, which both make something happen at most once.

The first request with an Idempotency-Key holds it until the key expires or its response is deleted. A foreground
response that was cancelled because its client disconnected does not hold its key: a repeated request starts a new
response.

An approval is marked as used before the call; a concurrent second caller gets "used".
"""

from antiphon.errors import KeyReused
from antiphon.stores.base import Approval, ApprovalVerdict, IdempotencyKey
from antiphon.stores.sql.operation import Operation, sanitise_id, sql

_TAKE = """
INSERT INTO keys (tenant, name, digest, response, expires) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (tenant, name) DO NOTHING RETURNING response
"""
_VALID = """
SELECT id FROM responses WHERE tenant = $1 AND id = $2 AND hidden = 0 AND (expires IS NULL OR expires > $3)
    AND (background = 1 OR status <> 'cancelled')
"""
# A server that crashed before it reported the request may have requested another call under the same id.
_REQUEST = """
INSERT INTO approvals (tenant, id, digest, used, expires) VALUES ($1, $2, $3, 0, $4)
ON CONFLICT (tenant, id) DO UPDATE SET digest = excluded.digest, expires = excluded.expires WHERE approvals.used = 0
"""
_APPROVAL = "SELECT digest, used FROM approvals WHERE tenant = $1 AND id = $2 AND expires > $3"
_DELETE_EXPIRED = """
DELETE FROM {table} WHERE (tenant, {column}) IN (SELECT tenant, {column} FROM {table} WHERE expires <= $1 LIMIT $2)
"""
_DELETE_KEYS = _DELETE_EXPIRED.format(table="keys", column="name")
_DELETE_APPROVALS = _DELETE_EXPIRED.format(table="approvals", column="id")


def take_key(tenant: str, key: IdempotencyKey, response_id: str, now: float) -> Operation[str | None]:
    """Assign the key to this response. Returns the id of the response that already holds it, or None."""
    while not (yield sql(_TAKE, tenant, key.name, key.digest, response_id, key.expires)):
        holder = yield from find_key(now, tenant, key, "{lock}")
        if holder is not None:
            return holder
        yield sql("DELETE FROM keys WHERE tenant = $1 AND name = $2", tenant, key.name)
    return None


def find_key(now: float, tenant: str, key: IdempotencyKey, lock: str = "") -> Operation[str | None]:
    """Return the id of the response that holds the key."""
    rows = yield sql(
        f"SELECT digest, response, expires FROM keys WHERE tenant = $1 AND name = $2 {lock}", tenant, key.name
    )
    for digest, holder, expires in rows:
        if expires > now and (yield sql(_VALID, tenant, holder, now)):
            if digest != key.digest:
                raise KeyReused("This Idempotency-Key was already used with another request.", param="Idempotency-Key")
            return str(holder)
    return None


def drop_key(tenant: str, response_id: str) -> Operation[None]:
    yield sql("DELETE FROM keys WHERE tenant = $1 AND response = $2", tenant, response_id)


def ask_approval(tenant: str, request_id: str, digest: bytes, expires: float) -> Operation[None]:
    yield sql(_REQUEST, tenant, request_id, digest, expires)


def find_approval(now: float, tenant: str, request_id: str) -> Operation[Approval | None]:
    rows = yield sql(_APPROVAL, tenant, sanitise_id(request_id), now)
    return Approval(bytes(rows[0][0]), bool(rows[0][1])) if rows else None


def use_approval(now: float, tenant: str, request_id: str, digest: bytes) -> Operation[ApprovalVerdict]:
    rows = yield sql(f"{_APPROVAL} {{lock}}", tenant, sanitise_id(request_id), now)
    if not rows:
        return "unknown"
    requested_digest, used = rows[0]
    if used:
        return "used"
    if bytes(requested_digest) != digest:
        return "changed"
    yield sql("UPDATE approvals SET used = 1 WHERE tenant = $1 AND id = $2", tenant, request_id)
    return "ok"


def drop_expired(limit: int, now: float) -> Operation[None]:
    yield sql(_DELETE_KEYS, now, limit)
    yield sql(_DELETE_APPROVALS, now, limit)
