"""Idempotency-Keys: the first request that comes with one has it, until it expires or its response is gone.

A response that ended because its client left is no answer to anybody: whoever comes again under its key begins anew.
"""

from antiphon.errors import KeyReused
from antiphon.stores.base import Key
from antiphon.stores.sql.operation import Operation, sql

_TAKE = """
INSERT INTO keys (tenant, name, digest, response, expires) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (tenant, name) DO NOTHING RETURNING response
"""
_VALID = """
SELECT id FROM responses WHERE tenant = $1 AND id = $2 AND hidden = 0 AND (expires IS NULL OR expires > $3)
    AND (background = 1 OR status <> 'cancelled')
"""


def take(tenant: str, key: Key, response_id: str, now: float) -> Operation[str | None]:
    """For this response; gives the id of the one that has it already."""
    while not (yield sql(_TAKE, tenant, key.name, key.digest, response_id, key.expires)):
        holder = yield from find(tenant, key, now, "{lock}")
        if holder is not None:
            return holder
        yield sql("DELETE FROM keys WHERE tenant = $1 AND name = $2", tenant, key.name)
    return None


def find(tenant: str, key: Key, now: float, lock: str = "") -> Operation[str | None]:
    """The id of the response that has it."""
    rows = yield sql(
        f"SELECT digest, response, expires FROM keys WHERE tenant = $1 AND name = $2 {lock}", tenant, key.name
    )
    for digest, holder, expires in rows:
        if expires > now and (yield sql(_VALID, tenant, holder, now)):
            return _checked(holder, digest, key)
    return None


def drop(tenant: str, response_id: str) -> Operation[None]:
    yield sql("DELETE FROM keys WHERE tenant = $1 AND response = $2", tenant, response_id)


def _checked(holder: str, digest: bytes, key: Key) -> str:
    if digest != key.digest:
        raise KeyReused("This Idempotency-Key came with another request before.", param="Idempotency-Key")
    return holder
