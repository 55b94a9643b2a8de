"""Idempotency-Keys and approvals of tool calls, which both make something happen at most once; API keys of clients; and
values that all servers on the store share.

The first request with an Idempotency-Key holds it until the key expires or its response is deleted. A foreground
response that was cancelled because its client disconnected does not hold its key: a repeated request starts a new
response.

An approval is marked as used before the call; a concurrent second caller gets "used".

API keys are looked up by id here; digests are compared by the caller, in constant time.
"""

from collections.abc import Collection
from typing import Any

from antiphon.errors import InvalidValue, KeyReused
from antiphon.stores.base import ApiKey, Approval, ApprovalVerdict, IdempotencyKey, Page
from antiphon.stores.sql.operation import (
    AFTER_LAST,
    BEFORE_FIRST,
    Operation,
    autocommit_sql,
    direction,
    sanitise_id,
    sql,
    start_id,
)

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
    """Return the id of the response that holds the key. Raises KeyReused if it came with another body."""
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
    """Record an approval request. A repeated request replaces the earlier one unless that was used."""
    yield sql(_REQUEST, tenant, request_id, digest, expires)


def find_approval(now: float, tenant: str, request_id: str) -> Operation[Approval | None]:
    """Return the approval; None if it was never requested or has expired."""
    rows = yield sql(_APPROVAL, tenant, sanitise_id(request_id), now)
    return Approval(bytes(rows[0][0]), bool(rows[0][1])) if rows else None


def use_approval(now: float, tenant: str, request_id: str, digest: bytes) -> Operation[ApprovalVerdict]:
    """Consume the approval right before the call is made: a call may be made once, and only as it was requested.

    Returns "ok" exactly once, across all callers; any other result changes nothing.
    """
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


def deny_approval(tenant: str, request_id: str) -> Operation[None]:
    """Note that the client has denied the call, so that it is no longer pending."""
    yield autocommit_sql("UPDATE approvals SET denied = 1 WHERE tenant = $1 AND id = $2", tenant, request_id)


def page_approvals(now: float, tenant: str, after: str | None, limit: int, descending: bool) -> Operation[Page[str]]:
    """Return the ids of approval requests that were not answered. Raises InvalidValue(param="after")."""
    start = yield from start_id("approvals", tenant, after, descending)
    comparison, order = direction(descending)
    rows = yield sql(
        f"SELECT id FROM approvals WHERE tenant = $1 AND used = 0 AND denied = 0 AND expires > $2"
        f" AND id {comparison} $3 ORDER BY id {order} LIMIT $4",
        *(tenant, now, start, limit + 1),
    )
    return Page([name for (name,) in rows[:limit]], len(rows) > limit)


def drop_expired(limit: int, now: float) -> Operation[None]:
    yield sql(_DELETE_KEYS, now, limit)
    yield sql(_DELETE_APPROVALS, now, limit)


_API_KEY_COLUMNS = "id, digest, tenant, name, scopes, created, expires, revoked"
_ADD_API_KEY = (
    f"INSERT INTO api_keys ({_API_KEY_COLUMNS}) VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT (id) DO NOTHING"
)
_REVOKE_API_KEY = f"UPDATE api_keys SET revoked = COALESCE(revoked, $2) WHERE id = $1 RETURNING {_API_KEY_COLUMNS}"
# The IN list always has this many values, padded with "", so that the database prepares one statement.
_BATCH_SIZE = 64
_FIND_API_KEYS = (
    f"SELECT {_API_KEY_COLUMNS} FROM api_keys WHERE id IN ({', '.join(f'${n + 1}' for n in range(_BATCH_SIZE))})"
)


def add_api_key(key: ApiKey) -> Operation[None]:
    times = (key.created, key.expires, key.revoked)
    yield autocommit_sql(_ADD_API_KEY, key.id, key.digest, key.tenant, key.name, " ".join(sorted(key.scopes)), *times)


def find_api_keys(ids: Collection[str]) -> Operation[list[ApiKey]]:
    """Return the keys that exist among these ids, including revoked and expired ones."""
    found: list[ApiKey] = []
    names = [sanitise_id(name) for name in ids]
    for start in range(0, len(names), _BATCH_SIZE):
        batch = names[start : start + _BATCH_SIZE]
        rows = yield sql(_FIND_API_KEYS, *batch, *[""] * (_BATCH_SIZE - len(batch)))
        found += map(_to_api_key, rows)
    return found


def list_api_keys() -> Operation[list[ApiKey]]:
    """Return all keys ever created, in order of creation."""
    rows = yield sql(f"SELECT {_API_KEY_COLUMNS} FROM api_keys ORDER BY id")
    return [_to_api_key(row) for row in rows]


def page_api_keys(tenant: str | None, after: str | None, limit: int, descending: bool) -> Operation[Page[ApiKey]]:
    """Return a page of the keys of all tenants, or of one. Raises InvalidValue(param="after") for an unknown cursor."""
    start = AFTER_LAST if descending else BEFORE_FIRST
    if after is not None:
        if not (yield sql("SELECT id FROM api_keys WHERE id = $1", sanitise_id(after))):
            raise InvalidValue(f"There is nothing with the id {after!r} in this list.", param="after")
        start = after
    comparison, order = direction(descending)
    condition, values = ("", ()) if tenant is None else ("AND tenant = $3", (sanitise_id(tenant),))
    text = f"SELECT {_API_KEY_COLUMNS} FROM api_keys WHERE id {comparison} $1 {condition} ORDER BY id {order} LIMIT $2"
    rows = yield sql(text, start, limit + 1, *values)
    return Page([_to_api_key(row) for row in rows[:limit]], len(rows) > limit)


def has_api_keys() -> Operation[bool]:
    """Return whether a key was ever created: revoking the last one does not admit unauthenticated clients."""
    return bool((yield sql("SELECT 1 FROM api_keys LIMIT 1")))


def revoke_api_key(now: float, key_id: str) -> Operation[ApiKey | None]:
    """Revoke a key from now on; repeating it changes nothing. Returns None if there is no such key."""
    rows = yield autocommit_sql(_REVOKE_API_KEY, sanitise_id(key_id), now)
    return _to_api_key(rows[0]) if rows else None


def get_or_insert_shared(name: str, new: bytes) -> Operation[bytes]:
    """Return the shared value under this name, inserting `new` if there is none: the first server decides.

    A stored value never changes and is never removed.
    """
    yield sql("INSERT INTO shared (name, value) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING", name, new)
    rows = yield sql("SELECT value FROM shared WHERE name = $1", name)
    return bytes(rows[0][0])


def _to_api_key(row: tuple[Any, ...]) -> ApiKey:
    key_id, digest, tenant, name, scopes, *times = row
    return ApiKey(key_id, bytes(digest), tenant, name, frozenset(scopes.split()), *times)
