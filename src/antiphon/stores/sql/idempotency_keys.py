"""Idempotency-Keys: the first request with a key holds it until the key expires or its response is deleted.

A foreground response that was cancelled because its client disconnected does not hold its key: a repeated request
starts a new response.
"""

from antiphon.errors import KeyReused
from antiphon.stores.base import IdempotencyKey
from antiphon.stores.sql.operation import Operation, sql

_TAKE = """
INSERT INTO keys (tenant, name, digest, response, expires) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (tenant, name) DO NOTHING RETURNING response
"""
_VALID = """
SELECT id FROM responses WHERE tenant = $1 AND id = $2 AND hidden = 0 AND (expires IS NULL OR expires > $3)
    AND (background = 1 OR status <> 'cancelled')
"""


def take(tenant: str, key: IdempotencyKey, response_id: str, now: float) -> Operation[str | None]:
    """Assign the key to this response. Returns the id of the response that already holds it, or None."""
    while not (yield sql(_TAKE, tenant, key.name, key.digest, response_id, key.expires)):
        holder = yield from find(tenant, key, now, "{lock}")
        if holder is not None:
            return holder
        yield sql("DELETE FROM keys WHERE tenant = $1 AND name = $2", tenant, key.name)
    return None


def find(tenant: str, key: IdempotencyKey, now: float, lock: str = "") -> Operation[str | None]:
    """Return the id of the response that holds the key."""
    rows = yield sql(
        f"SELECT digest, response, expires FROM keys WHERE tenant = $1 AND name = $2 {lock}", tenant, key.name
    )
    for digest, holder, expires in rows:
        if expires > now and (yield sql(_VALID, tenant, holder, now)):
            return _check_digest(holder, digest, key)
    return None


def drop(tenant: str, response_id: str) -> Operation[None]:
    yield sql("DELETE FROM keys WHERE tenant = $1 AND response = $2", tenant, response_id)


def _check_digest(holder: str, digest: bytes, key: IdempotencyKey) -> str:
    if digest != key.digest:
        raise KeyReused("This Idempotency-Key was already used with another request.", param="Idempotency-Key")
    return holder
