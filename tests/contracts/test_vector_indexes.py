"""Every index of vectors: in memory with numpy and without, and pgvector, which compares all vectors or uses HNSW.

Covers `service/vector_stores/pgvector_index.py`, `service/vector_stores/vector_index.py` and
`stores/sql/vector_points.py`.
"""

import random
import struct
from collections.abc import AsyncIterator, Sequence
from operator import mul

import msgspec
import pytest

from antiphon.core.file_search import SearchRequest
from antiphon.protocol.types.filters import Filter
from antiphon.service.vector_stores import memory_index, pgvector_index
from antiphon.service.vector_stores.search import VectorSearch
from antiphon.service.vector_stores.sign_bits import PythonBits
from antiphon.stores import postgres_pool, postgres_vectors
from antiphon.stores.postgres import PostgresStore
from antiphon.stores.sql import vector_points
from antiphon.stores.sql.store import Store
from antiphon.stores.sqlite import SqliteStore
from antiphon.stores.vector_rows import AttributeValue, IndexResult
from antiphon.testing.rows.response_rows import TENANT, TTL, Clock
from antiphon.testing.rows.vector_rows import claim_one, create_vector_store, index_texts, make_chunks, make_new_file
from tests.service.vector_stores.vectors import draw_clustered, draw_near

pytestmark = pytest.mark.anyio

DIMENSIONS = 96
POSTGRES = pytest.mark.needs("postgresql")
KINDS = ["numpy", "python", pytest.param("pgvector", marks=POSTGRES), pytest.param("hnsw", marks=POSTGRES)]
RECALL = {"numpy": 0.98, "python": 0.98, "pgvector": 1.0, "hnsw": 0.93}


class IndexSetup:
    """A store with an index of this kind, and the vectors that were written, by their text."""

    def __init__(self, kind: str, store: Store, clock: Clock) -> None:
        self.kind = kind
        self.store = store
        self.clock = clock
        self.random = random.Random(7)
        self.query = b""
        self.search = VectorSearch(store, self)

    async def embed(self, tenant: str, model: str, texts: Sequence[str]) -> list[bytes]:
        return [self.query for _ in texts]

    async def create(self) -> str:
        return await create_vector_store(self.store, self.clock)

    async def add(
        self, name: str, vectors: Sequence[bytes], embedder: str = "embedder", **attributes: AttributeValue
    ) -> str:
        """Add a file whose chunks have these vectors; the text of a chunk is its vector."""
        file = await index_texts(
            self.store,
            self.clock,
            name,
            [vector.hex() for vector in vectors],
            vectors=[[vector] for vector in vectors],
            embedder=embedder,
            dimensions=len(vectors[0]) // 2,
            attributes=attributes,
        )
        await self.build()
        return file

    async def build(self) -> None:
        """Build the HNSW indexes. A first search copies the vectors."""
        if self.kind == "hnsw" and isinstance(self.store, PostgresStore):
            await postgres_vectors.build_indexes(self.store.url)

    async def find(self, stores: Sequence[str], query: bytes, condition: Filter | None = None) -> list[bytes]:
        self.query = query
        request = SearchRequest(stores=[*stores], queries=["-"], ranker="none", filters=condition)
        return [bytes.fromhex(hit.text) for hit in await self.search.search(TENANT, request)]

    def draw(self, count: int, dimensions: int = DIMENSIONS) -> list[bytes]:
        return draw_clustered(self.random, count, dimensions)


@pytest.fixture(params=KINDS)
async def setup(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[IndexSetup]:
    clock, kind = Clock(), request.param
    monkeypatch.setattr(postgres_pool, "DEADLINE", 60.0)
    store: Store = SqliteStore(":memory:", TTL, clock)
    if kind == "numpy":
        pytest.importorskip("numpy")
    elif kind == "python":
        monkeypatch.setattr(memory_index, "make_sign_bits", PythonBits)
    else:
        store = PostgresStore(request.getfixturevalue("postgres_url"), TTL, clock)
    if kind == "hnsw":
        for module in (postgres_vectors, vector_points):
            monkeypatch.setattr(module, "EXACT_VECTORS", 0)
    await store.open()
    assert store.has_points == (kind in ("pgvector", "hnsw"))
    yield IndexSetup(kind, store, clock)
    await store.close()


def rank_exactly(query: bytes, vectors: Sequence[bytes]) -> list[bytes]:
    layout = f"<{len(query) // 2}e"
    numbers = struct.unpack(layout, query)
    return sorted(vectors, key=lambda vector: -sum(map(mul, numbers, struct.unpack(layout, vector))))


async def test_the_nearest_are_found_as_by_an_exact_search(setup: IndexSetup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pgvector_index, "_PAGE", 99)
    name, other = await setup.create(), await setup.create()
    vectors = setup.draw(1500)
    for start in range(0, 1500, 300):
        await setup.add(name, vectors[start : start + 300])
    await setup.add(other, setup.draw(300))
    await setup.find([name, other], vectors[0])
    await setup.build()
    found = 0
    for query in [draw_near(setup.random, vector) for vector in setup.random.sample(vectors, 20)]:
        hits = await setup.find([name], query)
        assert hits == rank_exactly(query, hits)
        found += len({*hits}.intersection(rank_exactly(query, vectors)[:10]))
    assert found / 200 >= RECALL[setup.kind]


async def test_filters_select_files_before_the_search(setup: IndexSetup) -> None:
    name = await setup.create()
    near = setup.draw(1)[0]
    for _ in range(4):
        await setup.add(name, [draw_near(setup.random, near) for _ in range(150)], year=2025)
    allowed = setup.draw(15)
    await setup.add(name, allowed, year=2026)
    await setup.find([name], near)
    await setup.build()
    condition = msgspec.convert({"type": "eq", "key": "year", "value": 2026}, Filter)
    assert await setup.find([name], near, condition) == rank_exactly(near, allowed)[:10]
    nothing = msgspec.convert({"type": "eq", "key": "year", "value": 1}, Filter)
    assert await setup.find([name], near, nothing) == []


async def test_stores_are_searched_apart_and_together(setup: IndexSetup) -> None:
    first, second, third = [await setup.create() for _ in range(3)]
    vectors = [setup.draw(5) for _ in range(3)]
    for name, own in zip([first, second, third], vectors, strict=True):
        await setup.add(name, own)
    query = vectors[0][0]
    assert await setup.find([second], query) == rank_exactly(query, vectors[1])
    both = rank_exactly(query, vectors[0] + vectors[2])
    assert await setup.find([first, third], query) == both


async def test_removed_and_replaced_files_are_not_found(setup: IndexSetup) -> None:
    name = await setup.create()
    kept, removed, former, new = [setup.draw(4) for _ in range(4)]
    await setup.add(name, kept)
    file, replaced = await setup.add(name, removed), await setup.add(name, former)
    query = removed[0]
    assert len(await setup.find([name], query)) == 10
    await setup.build()
    await setup.store.remove_vector_file(TENANT, name, file)
    await setup.store.add_vector_files(TENANT, name, [make_new_file(replaced)], None, 10)
    job = await claim_one(setup.store, setup.clock)
    await setup.store.write_chunks(job.key, make_chunks([one.hex() for one in new], [[one] for one in new]))
    assert await setup.find([name], query) == rank_exactly(query, kept + former)
    await setup.store.finish_vector_file(job.key, IndexResult(embedder="embedder", dimensions=DIMENSIONS))
    assert await setup.find([name], query) == rank_exactly(query, kept + new)
    while await setup.store.purge_vector_chunks(3):
        pass
    await setup.build()
    assert await setup.find([name], query) == rank_exactly(query, kept + new)
    if setup.store.has_points:
        assert sorted((await setup.store.count_points(name, "embedder")).values()) == [4, 4]


async def test_a_store_is_embedded_again_with_other_dimensions_and_back(setup: IndexSetup) -> None:
    name = await setup.create()
    first, second, third = setup.draw(3), setup.draw(3, 32), setup.draw(3)
    await setup.add(name, first)
    assert {*await setup.find([name], first[0])} == {*first}
    await setup.build()
    await setup.add(name, second, embedder="other")
    assert {*await setup.find([name], second[0])} == {*second}
    await setup.build()
    await setup.add(name, third)
    assert {*await setup.find([name], third[0])} == {*first, *third}


async def test_a_file_without_vectors_changes_nothing(setup: IndexSetup) -> None:
    name = await setup.create()
    vectors = setup.draw(3)
    await setup.add(name, vectors)
    await index_texts(setup.store, setup.clock, name, ["-"], vectors=[[]], dimensions=0)
    assert await setup.find([name], vectors[0]) == rank_exactly(vectors[0], vectors)


async def test_a_chunk_with_several_vectors_is_found_once(setup: IndexSetup) -> None:
    name = await setup.create()
    one, two, far = setup.draw(3)
    texts = [one.hex(), far.hex()]
    await index_texts(setup.store, setup.clock, name, texts, vectors=[[one, two], [far]], dimensions=DIMENSIONS)
    assert (await setup.find([name], two))[0] == one
    assert len(await setup.find([name], two)) == 2
