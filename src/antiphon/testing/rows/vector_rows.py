"""Builders of vector stores for the tests of stores and searches."""

from collections.abc import Mapping, Sequence

from antiphon.ids import new_dashed_id, new_id
from antiphon.stores.base import FileQuota, FileRow
from antiphon.stores.sql.store import Store
from antiphon.stores.vector_rows import (
    AttributeValue,
    ClaimedVectorFile,
    IndexResult,
    NewVectorFile,
    TextChunk,
    VectorStoreRow,
)
from antiphon.testing.rows.response_rows import TENANT, Clock, make_claim

EMBEDDER = "embedder"
MAX_ATTEMPTS = 3


async def create_vector_store(store: Store, clock: Clock, *, days: int | None = None, tenant: str = TENANT) -> str:
    """Create a vector store and return its id."""
    row = VectorStoreRow(
        id=new_id("vs"),
        created=clock(),
        name="näme",
        metadata={"a": "b"},
        days=days,
        last_active=clock(),
        expires=None if days is None else clock() + days * 86400,
    )
    await store.create_vector_store(tenant, row, 1000)
    return row.id


async def add_stored_file(store: Store, clock: Clock, tenant: str = TENANT, lifetime: float | None = None) -> str:
    """Add a file and return its id."""
    name = new_dashed_id("file")
    row = FileRow(
        id=name,
        created=clock(),
        expires=None if lifetime is None else clock() + lifetime,
        size=10,
        filename=f"{name}.txt",
        purpose="user_data",
        digest=name.encode(),
        content=name,
    )
    await store.add_file(tenant, row, FileQuota(100_000, 1_000_000_000))
    return name


def make_new_file(file: str, attributes: Mapping[str, AttributeValue] | None = None) -> NewVectorFile:
    return NewVectorFile(file=file, chunk_tokens=800, overlap_tokens=400, attributes=attributes or {})


async def attach_file(
    store: Store,
    clock: Clock,
    vector_store: str,
    attributes: Mapping[str, AttributeValue] | None = None,
    batch: str | None = None,
    tenant: str = TENANT,
) -> str:
    """Add a file, and add it to a vector store. Returns its id."""
    file = await add_stored_file(store, clock, tenant)
    assert await store.add_vector_files(tenant, vector_store, [make_new_file(file, attributes)], batch, 1000) == []
    return file


async def claim_one(store: Store, clock: Clock, owner: str = "owner") -> ClaimedVectorFile:
    [job] = await store.claim_vector_files(make_claim(clock, owner), 1, MAX_ATTEMPTS)
    return job


def make_chunks(texts: Sequence[str], vectors: Sequence[Sequence[bytes]] = ()) -> list[TextChunk]:
    return [
        TextChunk(number=number, text=text, vectors=vectors[number] if vectors else [text[:4].ljust(4).encode()])
        for number, text in enumerate(texts)
    ]


async def index_texts(
    store: Store,
    clock: Clock,
    vector_store: str,
    texts: Sequence[str],
    *,
    vectors: Sequence[Sequence[bytes]] = (),
    attributes: Mapping[str, AttributeValue] | None = None,
    embedder: str = EMBEDDER,
    dimensions: int = 1,
) -> str:
    """Add a file with these chunks to a vector store, and return its id. No other file may be waiting."""
    file = await attach_file(store, clock, vector_store, attributes)
    job = await claim_one(store, clock)
    await store.write_chunks(job.key, make_chunks(texts, vectors))
    await store.finish_vector_file(job.key, IndexResult(usage_bytes=100, embedder=embedder, dimensions=dimensions))
    return file
