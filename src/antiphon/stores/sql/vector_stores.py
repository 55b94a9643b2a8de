"""Vector stores: their rows, their expiry, and the removal of their files.

Files disappear from searches at once. Their chunks may be many, so they are only listed as garbage here;
`vector_jobs.purge_vector_chunks` deletes them a few at a time.
"""

from typing import Any

import msgspec
from msgspec import UNSET
from msgspec.structs import asdict

from antiphon.errors import StorageLimitReached, UnknownVectorStore, VectorStoreExpired
from antiphon.stores.base import Page, PageQuery
from antiphon.stores.sql import totals
from antiphon.stores.sql.operation import Operation, read_page, sanitise_id, sql
from antiphon.stores.sql.text_index import TextIndex
from antiphon.stores.vector_rows import FileCounts, StoreVersion, VectorStoreRow, VectorStoreUpdate

DAY = 86400.0
_TOUCH_SECONDS = 60.0  # between two writes of the last use
_COLUMNS = (
    "id, created, name, description, metadata, days, last_active, expires, embedder, dimensions, version, expired"
)
_STORE = "tenant = $1 AND id = $2"
_FIELDS = _COLUMNS.split(", ")
_INSERT = f"""
INSERT INTO vector_stores (tenant, {_COLUMNS}) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)
ON CONFLICT (tenant, id) DO NOTHING RETURNING id
"""
_COUNTS = """
SELECT status, COUNT(*), CAST(SUM(usage_bytes) AS BIGINT) FROM vector_files WHERE tenant = $1 AND store = $2
GROUP BY status
"""
_TOUCH = """
UPDATE vector_stores SET last_active = $3, expires = $3 + CAST(days * 86400 AS DOUBLE PRECISION)
WHERE tenant = $1 AND id = $2 AND expired = 0 AND last_active < $4
"""
_UPDATE = """
UPDATE vector_stores SET name = $3, metadata = $4, days = $5, expires = $6 WHERE tenant = $1 AND id = $2
"""
_DUE = """
SELECT tenant, id FROM vector_stores WHERE expired = 0 AND expires IS NOT NULL AND expires <= $1 LIMIT $2 {skip}
"""
_BUMP = """
UPDATE vector_stores SET version = 1 + CASE WHEN version < $3 THEN CAST($3 AS BIGINT) ELSE version END
WHERE tenant = $1 AND id = $2 RETURNING version
"""
_DISCARD_ALL = """
INSERT INTO vector_garbage (store, file, fence) SELECT store, file, {fence} FROM vector_files
WHERE tenant = $1 AND store = $2 AND {fence} > 0 ON CONFLICT (store, file, fence) DO NOTHING
"""
DISCARD = """
INSERT INTO vector_garbage (store, file, fence) VALUES ($1, $2, $3) ON CONFLICT (store, file, fence) DO NOTHING
"""


def insert_vector_store(index: TextIndex, tenant: str, row: VectorStoreRow, max_stores: int) -> Operation[None]:
    """Add an empty vector store. Raises StorageLimitReached if the tenant has `max_stores`."""
    yield totals.lock_tenant(tenant)
    values = {**asdict(row), "metadata": encode_json(row.metadata), "expired": int(row.expired)}
    if not (yield sql(_INSERT, tenant, *[values[field] for field in _FIELDS])):
        return  # it was added by a call whose reply was lost
    count = (yield sql("SELECT COUNT(*) FROM vector_stores WHERE tenant = $1", tenant))[0][0]
    if count > max_stores:
        raise StorageLimitReached(f"At most {max_stores:,} vector stores can be stored: delete some.")
    yield from index.create(row.id)


def get_vector_store(tenant: str, store: str) -> Operation[VectorStoreRow | None]:
    rows = yield sql(f"SELECT {_COLUMNS} FROM vector_stores WHERE {_STORE}", tenant, sanitise_id(store))
    return (yield from _to_row(tenant, rows[0])) if rows else None


def page_vector_stores(tenant: str, query: PageQuery) -> Operation[Page[VectorStoreRow]]:
    """Return one page, ordered by creation time. Raises InvalidValue for an unknown cursor."""
    rows, has_more = yield from read_page(f"SELECT {_COLUMNS} FROM vector_stores", "id", {"tenant": tenant}, query)
    stores = []
    for row in rows:
        stores.append((yield from _to_row(tenant, row)))
    return Page(stores, has_more)


def update_vector_store(tenant: str, store: str, update: VectorStoreUpdate) -> Operation[VectorStoreRow | None]:
    """Change these fields, and return the row. `days` count from the last use."""
    yield sql(f"SELECT 1 FROM vector_stores WHERE {_STORE} {{lock}}", tenant, sanitise_id(store))
    row = yield from get_vector_store(tenant, store)
    if row is None:
        return None
    name = row.name if update.name is UNSET else update.name
    metadata = row.metadata if update.metadata is UNSET else update.metadata
    days = row.days if update.days is UNSET else update.days
    expires = None if days is None else row.last_active + days * DAY
    yield sql(_UPDATE, tenant, store, name, encode_json(metadata), days, expires)
    return (yield from get_vector_store(tenant, store))


def touch_vector_store(now: float, tenant: str, store: str) -> Operation[None]:
    """Record a use, which postpones the expiry; at most once a minute."""
    yield sql(_TOUCH, tenant, store, now, now - _TOUCH_SECONDS)


def delete_vector_store(tenant: str, store: str) -> Operation[bool]:
    """Delete a vector store. Returns whether it existed."""
    deleted = yield sql(f"DELETE FROM vector_stores WHERE {_STORE} RETURNING expired", tenant, sanitise_id(store))
    if deleted:
        yield from _remove_files(tenant, store)
    return bool(deleted)


def expire_vector_stores(now: float, limit: int = 20) -> Operation[int]:
    """Remove the files of at most `limit` vector stores that were not used for their number of days."""
    due = yield sql(_DUE, now, limit)
    for tenant, store in due:
        yield sql(f"UPDATE vector_stores SET expired = 1 WHERE {_STORE}", tenant, store)
        yield from _remove_files(tenant, store)
    return len(due)


def find_version(now: float, tenant: str, store: str, lock: str = "") -> Operation[StoreVersion]:
    """Return the version of a vector store. Raises UnknownVectorStore or VectorStoreExpired."""
    text = f"SELECT expired, expires, version, embedder, dimensions FROM vector_stores WHERE {_STORE} {lock}"
    rows = yield sql(text, tenant, sanitise_id(store))
    if not rows:
        raise UnknownVectorStore(store)
    expired, expires, *state = rows[0]
    if expired or (expires is not None and expires <= now):
        raise VectorStoreExpired(f"The vector store {store!r} has expired.", param="vector_store_id")
    return StoreVersion(*state)


def bump_version(tenant: str, store: str, fence: int = 0) -> Operation[int]:
    """Count a change of what a search finds, and return the new version, which is greater than this fence."""
    rows = yield sql(_BUMP, tenant, store, fence)
    return rows[0][0] if rows else 0


def count_files(tenant: str, store: str, condition: str = "", *values: Any) -> Operation[tuple[FileCounts, int]]:
    """Count the files of a vector store by status, and their bytes."""
    rows = yield sql(_COUNTS.replace("GROUP BY", f"{condition} GROUP BY"), tenant, store, *values)
    return FileCounts(**{status: count for status, count, _ in rows}), sum(size for _, _, size in rows)


def encode_json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _remove_files(tenant: str, store: str) -> Operation[None]:
    for fence in ("fence", "visible"):
        yield sql(_DISCARD_ALL.replace("{fence}", fence), tenant, store)
    yield sql(DISCARD, store, "", 0)
    for table in ("vector_files", "vector_batches"):
        yield sql(f"DELETE FROM {table} WHERE tenant = $1 AND store = $2", tenant, store)


def _to_row(tenant: str, row: tuple[Any, ...]) -> Operation[VectorStoreRow]:
    values = dict(zip(_FIELDS, row, strict=True))
    counts, usage_bytes = yield from count_files(tenant, values["id"])
    values |= {"metadata": msgspec.json.decode(values["metadata"]), "expired": bool(values["expired"])}
    return VectorStoreRow(**values, counts=counts, usage_bytes=usage_bytes)
