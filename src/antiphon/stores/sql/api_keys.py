"""Keys that let clients in. They are looked for by their ids, and compared elsewhere, in constant time."""

from collections.abc import Collection
from typing import Any

from antiphon.stores.base import ApiKey
from antiphon.stores.sql.operation import Operation, alone, sought, sql

_COLUMNS = "id, digest, tenant, name, scopes, created, expires, revoked"
_ADD = f"INSERT INTO api_keys ({_COLUMNS}) VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT (id) DO NOTHING"
_REVOKE = f"UPDATE api_keys SET revoked = COALESCE(revoked, $2) WHERE id = $1 RETURNING {_COLUMNS}"
_AT_ONCE = 64  # always as many, some of them empty: so it is one statement, which a database prepares once
_FIND = f"SELECT {_COLUMNS} FROM api_keys WHERE id IN ({', '.join(f'${n + 1}' for n in range(_AT_ONCE))})"


def add(key: ApiKey) -> Operation[None]:
    times = (key.created, key.expires, key.revoked)
    yield alone(_ADD, key.id, key.digest, key.tenant, key.name, " ".join(sorted(key.scopes)), *times)


def find(ids: Collection[str]) -> Operation[list[ApiKey]]:
    found: list[ApiKey] = []
    names = [sought(name) for name in ids]
    for start in range(0, len(names), _AT_ONCE):
        some = names[start : start + _AT_ONCE]
        rows = yield sql(_FIND, *some, *[""] * (_AT_ONCE - len(some)))
        found += map(_key, rows)
    return found


def every() -> Operation[list[ApiKey]]:
    """Those that were made first come first."""
    rows = yield sql(f"SELECT {_COLUMNS} FROM api_keys ORDER BY id")
    return [_key(row) for row in rows]


def any_there() -> Operation[bool]:
    return bool((yield sql("SELECT 1 FROM api_keys LIMIT 1")))


def revoke(key_id: str, now: float) -> Operation[ApiKey | None]:
    """Once: when it was revoked first is when it was revoked."""
    rows = yield alone(_REVOKE, sought(key_id), now)
    return _key(rows[0]) if rows else None


def _key(row: tuple[Any, ...]) -> ApiKey:
    name, digest, tenant, label, scopes, created, expires, revoked = row
    return ApiKey(
        id=name,
        digest=bytes(digest),
        tenant=tenant,
        name=label,
        scopes=frozenset(scopes.split()),
        created=created,
        expires=expires,
        revoked=revoked,
    )
