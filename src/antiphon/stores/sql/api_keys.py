"""API keys of clients, and values that all servers on the store share.

Keys are looked up by id here; digests are compared by the caller, in constant time.
"""

from collections.abc import Collection
from typing import Any

from antiphon.stores.base import ApiKey
from antiphon.stores.sql.operation import Operation, autocommit_sql, sanitise_id, sql

_COLUMNS = "id, digest, tenant, name, scopes, created, expires, revoked"
_ADD = f"INSERT INTO api_keys ({_COLUMNS}) VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT (id) DO NOTHING"
_REVOKE = f"UPDATE api_keys SET revoked = COALESCE(revoked, $2) WHERE id = $1 RETURNING {_COLUMNS}"
# The IN list always has this many values, padded with "", so that the database prepares one statement.
_BATCH_SIZE = 64
_FIND = f"SELECT {_COLUMNS} FROM api_keys WHERE id IN ({', '.join(f'${n + 1}' for n in range(_BATCH_SIZE))})"


def add(key: ApiKey) -> Operation[None]:
    times = (key.created, key.expires, key.revoked)
    yield autocommit_sql(_ADD, key.id, key.digest, key.tenant, key.name, " ".join(sorted(key.scopes)), *times)


def find(ids: Collection[str]) -> Operation[list[ApiKey]]:
    found: list[ApiKey] = []
    names = [sanitise_id(name) for name in ids]
    for start in range(0, len(names), _BATCH_SIZE):
        batch = names[start : start + _BATCH_SIZE]
        rows = yield sql(_FIND, *batch, *[""] * (_BATCH_SIZE - len(batch)))
        found += map(_to_api_key, rows)
    return found


def list_all() -> Operation[list[ApiKey]]:
    """Return all keys, oldest first."""
    rows = yield sql(f"SELECT {_COLUMNS} FROM api_keys ORDER BY id")
    return [_to_api_key(row) for row in rows]


def has_any() -> Operation[bool]:
    return bool((yield sql("SELECT 1 FROM api_keys LIMIT 1")))


def revoke(now: float, key_id: str) -> Operation[ApiKey | None]:
    """Revoke a key. The time of the first revocation is retained."""
    rows = yield autocommit_sql(_REVOKE, sanitise_id(key_id), now)
    return _to_api_key(rows[0]) if rows else None


def get_or_insert_shared(name: str, new: bytes) -> Operation[bytes]:
    """Return the shared value under this name, inserting `new` if there is none: the first server decides."""
    yield sql("INSERT INTO shared (name, value) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING", name, new)
    rows = yield sql("SELECT value FROM shared WHERE name = $1", name)
    return bytes(rows[0][0])


def _to_api_key(row: tuple[Any, ...]) -> ApiKey:
    key_id, digest, tenant, label, scopes, created, expires, revoked = row
    return ApiKey(
        id=key_id,
        digest=bytes(digest),
        tenant=tenant,
        name=label,
        scopes=frozenset(scopes.split()),
        created=created,
        expires=expires,
        revoked=revoked,
    )
