"""Conversions between rows of vector stores and the objects of the API, and the errors for unknown ids."""

from collections.abc import Sequence
from time import time
from typing import cast

from msgspec.structs import asdict

from antiphon.errors import InvalidValue, UnknownVectorStore
from antiphon.ids import quote_id
from antiphon.protocol.types import vector_stores as wire
from antiphon.protocol.types.filters import Attributes
from antiphon.stores import vector_rows as rows
from antiphon.stores.sql.store import Store


def make_new_file(file_id: str, strategy: wire.ChunkingStrategy | None, attributes: Attributes) -> rows.NewVectorFile:
    sizes = strategy.static if isinstance(strategy, wire.StaticChunking) else wire.DEFAULT_SIZES
    return rows.NewVectorFile(
        file=file_id,
        chunk_tokens=sizes.max_chunk_size_tokens,
        overlap_tokens=sizes.chunk_overlap_tokens,
        attributes=attributes,
    )


def to_store(row: rows.VectorStoreRow) -> wire.VectorStore:
    expired = row.expired or (row.expires is not None and row.expires <= time())
    return wire.VectorStore(
        id=row.id,
        created_at=int(row.created),
        name=row.name,
        description=row.description or None,
        usage_bytes=row.usage_bytes,
        file_counts=_to_counts(row.counts),
        status="expired" if expired else "in_progress" if row.counts.in_progress else "completed",
        expires_after=None if row.days is None else wire.VectorStoreExpiry(anchor="last_active_at", days=row.days),
        expires_at=None if row.expires is None else int(row.expires),
        last_active_at=int(row.last_active),
        metadata={**row.metadata},
    )


def to_file(row: rows.VectorFileRow) -> wire.VectorStoreFile:
    error = None
    if row.error_code is not None:
        error = wire.IndexingError(code=cast(wire.IndexingErrorCode, row.error_code), message=row.error_message or "")
    sizes = wire.ChunkSizes(max_chunk_size_tokens=row.chunk_tokens, chunk_overlap_tokens=row.overlap_tokens)
    return wire.VectorStoreFile(
        id=row.file,
        created_at=int(row.created),
        usage_bytes=row.usage_bytes,
        vector_store_id=row.store,
        status=row.status,
        last_error=error,
        chunking_strategy=wire.StaticChunking(static=sizes),
        attributes={**row.attributes},
    )


def to_batch(row: rows.VectorBatchRow) -> wire.VectorStoreFileBatch:
    counts = _to_counts(row.counts)
    ended: wire.FileStatus = "failed" if 0 < counts.total == counts.failed else "completed"
    return wire.VectorStoreFileBatch(
        id=row.id,
        created_at=int(row.created),
        status="cancelled" if row.cancelled else "in_progress" if counts.in_progress else ended,
        vector_store_id=row.store,
        file_counts=counts,
    )


async def find_store(store: Store, tenant: str, store_id: str) -> rows.VectorStoreRow:
    row = await store.vector_store(tenant, store_id)
    if row is None:
        raise UnknownVectorStore(store_id)
    return row


def check_files_exist(unknown: Sequence[str], file_ids: Sequence[str], param: str) -> None:
    """Raise for the first of these files that is unknown. `param` has a `{}` for its position."""
    if unknown:
        name = unknown[0]
        raise InvalidValue(f"There is no file {quote_id(name)}.", param=param.format(file_ids.index(name)))


def _to_counts(counts: rows.FileCounts) -> wire.VectorFileCounts:
    by_status = asdict(counts)
    return wire.VectorFileCounts(**by_status, total=sum(by_status.values()))
