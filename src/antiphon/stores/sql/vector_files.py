"""Files of vector stores, and the batches in which they were added."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from antiphon.errors import StorageLimitReached
from antiphon.stores.base import Page, PageQuery
from antiphon.stores.sql import vector_stores
from antiphon.stores.sql.operation import Operation, read_page, sanitise_id, sql
from antiphon.stores.sql.text_index import TextIndex
from antiphon.stores.vector_rows import (
    AttributeValue,
    NewVectorFile,
    VectorBatchRow,
    VectorFileRow,
    VectorFileStatus,
    VectorStoreRow,
)

_FILENAME = (
    "(SELECT filename FROM files WHERE files.tenant = vector_files.tenant AND files.id = vector_files.file) AS filename"
)
COLUMNS = (
    f"store, file, {_FILENAME}, created, status, error_code, error_message, chunk_tokens, overlap_tokens, attributes, "
    "usage_bytes, batch"
)
ROW = "tenant = $1 AND store = $2 AND file = $3"
_FILE_EXISTS = "SELECT 1 FROM files WHERE tenant = $1 AND id = $2 AND (expires IS NULL OR expires > $3) {lock}"
# A new row has a greater fence than any that the same file had in this store before it was removed: its chunks of that
# time may not be deleted yet, and a former owner may still write.
_ADD = """
INSERT INTO vector_files (tenant, store, file, created, status, chunk_tokens, overlap_tokens, attributes, usage_bytes,
    batch, until, fence, attempts, visible, embedder, changed)
VALUES ($1, $2, $3, $4, 'in_progress', $5, $6, $7, 0, $8, 0,
    (SELECT version FROM vector_stores WHERE vector_stores.tenant = $1 AND id = $2), 0, 0, '', 0)
ON CONFLICT (tenant, store, file) DO UPDATE SET created = excluded.created, status = 'in_progress', error_code = NULL,
    error_message = NULL, chunk_tokens = excluded.chunk_tokens, overlap_tokens = excluded.overlap_tokens,
    attributes = excluded.attributes, batch = excluded.batch, owner = NULL, until = 0, attempts = 0,
    fence = vector_files.fence + 1
"""
_ADD_BATCH = """
INSERT INTO vector_batches (tenant, store, id, created, cancelled) VALUES ($1, $2, $3, $4, 0)
ON CONFLICT (tenant, store, id) DO NOTHING
"""
_DISCARD_ATTEMPT = """
INSERT INTO vector_garbage (store, file, fence) SELECT store, file, fence FROM vector_files
WHERE {condition} AND owner IS NOT NULL {lock} ON CONFLICT (store, file, fence) DO NOTHING
"""
_BATCH = "WHERE tenant = $1 AND store = $2 AND id = $3"
_CANCELLABLE = "tenant = $1 AND store = $2 AND batch = $3 AND status = 'in_progress' AND visible = 0"


def create_vector_store(
    index: TextIndex, tenant: str, row: VectorStoreRow, max_stores: int, files: Sequence[NewVectorFile] = ()
) -> Operation[list[str]]:
    """Add a vector store with files. Returns the ids of files that do not exist; then adds nothing.

    Raises StorageLimitReached if the tenant has `max_stores` already.
    """
    if unknown := (yield from _find_unknown(row.created, tenant, files)):
        return unknown
    yield from vector_stores.insert_vector_store(index, tenant, row, max_stores)
    return (yield from add_vector_files(row.created, tenant, row.id, files, None, len(files)))


def add_vector_files(
    now: float, tenant: str, store: str, files: Sequence[NewVectorFile], batch: str | None, max_files: int
) -> Operation[list[str]]:
    """Add files to index, with a batch if it has an id. Returns the ids of files that do not exist; then adds nothing.

    A file that the store has already is indexed again, and searches find its former chunks until then. Raises
    UnknownVectorStore, VectorStoreExpired, or StorageLimitReached if the store would have more than `max_files`.
    """
    yield from vector_stores.find_version(now, tenant, store, "{lock}")
    if unknown := (yield from _find_unknown(now, tenant, files)):
        return unknown
    if batch is not None:
        yield sql(_ADD_BATCH, tenant, store, batch, now)
    for new in files:
        yield from discard_attempt(ROW, tenant, store, new.file)
        attributes = vector_stores.encode_json(new.attributes)
        yield sql(_ADD, tenant, store, new.file, now, new.chunk_tokens, new.overlap_tokens, attributes, batch)
    rows = yield sql("SELECT COUNT(*) FROM vector_files WHERE tenant = $1 AND store = $2", tenant, store)
    if rows[0][0] > max_files:
        raise StorageLimitReached(f"A vector store has at most {max_files:,} files: use another one.", param="file_id")
    return []


def get_vector_file(tenant: str, store: str, file: str) -> Operation[VectorFileRow | None]:
    rows = yield sql(f"SELECT {COLUMNS} FROM vector_files WHERE {ROW}", tenant, sanitise_id(store), sanitise_id(file))
    return to_vector_file(rows[0]) if rows else None


def page_vector_files(
    tenant: str, store: str, query: PageQuery, status: VectorFileStatus | None = None, batch: str | None = None
) -> Operation[Page[VectorFileRow]]:
    """Return one page, ordered by creation time. Raises InvalidValue for an unknown cursor."""
    scope = {"tenant": tenant, "store": sanitise_id(store), "status": status, "batch": batch}
    scope = {column: value for column, value in scope.items() if value is not None}
    rows, has_more = yield from read_page(f"SELECT {COLUMNS} FROM vector_files", "file", scope, query)
    return Page([to_vector_file(row) for row in rows], has_more)


def set_vector_attributes(
    tenant: str, store: str, file: str, attributes: Mapping[str, AttributeValue]
) -> Operation[VectorFileRow | None]:
    text = f"UPDATE vector_files SET attributes = $4 WHERE {ROW} RETURNING visible"
    encoded = vector_stores.encode_json(attributes)
    if not (yield sql(text, tenant, sanitise_id(store), sanitise_id(file), encoded)):
        return None
    yield from vector_stores.bump_version(tenant, store)
    return (yield from get_vector_file(tenant, store, file))


def is_indexed(tenant: str, store: str) -> Operation[bool]:
    """Return whether no file waits to be found. One that is indexed again is found meanwhile."""
    waiting = "tenant = $1 AND store = $2 AND status = 'in_progress' AND visible = 0"
    return not (yield sql(f"SELECT 1 FROM vector_files WHERE {waiting} LIMIT 1", tenant, sanitise_id(store)))


def remove_vector_file(tenant: str, store: str, file: str) -> Operation[bool]:
    """Remove a file from a vector store. Returns whether it was there."""
    text = f"DELETE FROM vector_files WHERE {ROW} RETURNING fence, visible"
    rows = yield sql(text, tenant, sanitise_id(store), sanitise_id(file))
    for fence, visible in rows:
        yield from discard_chunks(store, file, fence, visible)
        yield from vector_stores.bump_version(tenant, store, fence)
    return bool(rows)


def remove_from_all(tenant: str, file: str) -> Operation[None]:
    """Remove a file that is deleted from all vector stores."""
    for (store,) in (yield sql("SELECT store FROM vector_files WHERE tenant = $1 AND file = $2", tenant, file)):
        yield from remove_vector_file(tenant, store, file)


def get_vector_batch(tenant: str, store: str, batch: str) -> Operation[VectorBatchRow | None]:
    store, batch = sanitise_id(store), sanitise_id(batch)
    text = f"SELECT created, cancelled FROM vector_batches {_BATCH}"
    for created, cancelled in (yield sql(text, tenant, store, batch)):
        counts, _ = yield from vector_stores.count_files(tenant, store, "AND batch = $3", batch)
        return VectorBatchRow(id=batch, store=store, created=created, cancelled=bool(cancelled), counts=counts)
    return None


def cancel_vector_batch(tenant: str, store: str, batch: str) -> Operation[VectorBatchRow | None]:
    """Cancel the files of a batch that no search finds yet."""
    store, batch = sanitise_id(store), sanitise_id(batch)
    yield sql(f"UPDATE vector_batches SET cancelled = 1 {_BATCH}", tenant, store, batch)
    yield from discard_attempt(_CANCELLABLE, tenant, store, batch)
    yield sql(f"UPDATE vector_files SET status = 'cancelled', owner = NULL WHERE {_CANCELLABLE}", tenant, store, batch)
    return (yield from get_vector_batch(tenant, store, batch))


def _find_unknown(now: float, tenant: str, files: Sequence[NewVectorFile]) -> Operation[list[str]]:
    """Return the ids of files that do not exist, and lock the others."""
    unknown = []
    for new in files:
        if not (yield sql(_FILE_EXISTS, tenant, sanitise_id(new.file), now)):
            unknown.append(new.file)
    return unknown


def discard_attempt(condition: str, *values: Any) -> Operation[None]:
    """List the chunks that the owners of jobs have written as garbage."""
    yield sql(_DISCARD_ATTEMPT.replace("{condition}", condition), *values)


def discard_chunks(store: str, file: str, *fences: int) -> Operation[None]:
    """List the chunks that were written under these fences as garbage."""
    for fence in set(fences) - {0}:
        yield sql(vector_stores.DISCARD, store, file, fence)


def to_vector_file(row: tuple[Any, ...]) -> VectorFileRow:
    values = dict(zip(VectorFileRow.__struct_fields__, row, strict=True))
    return VectorFileRow(**values | {"attributes": msgspec.json.decode(values["attributes"])})
