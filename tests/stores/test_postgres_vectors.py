"""The text index of PostgreSQL, and pgvector: servers without it, servers that get it later, and HNSW indexes of large
stores.
"""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import pytest

from antiphon.service.vector_stores.index_cache import IndexCache
from antiphon.service.vector_stores.memory_index import MemoryIndex
from antiphon.stores import postgres_pool, postgres_vectors
from antiphon.stores.postgres import PostgresStore
from antiphon.stores.sql import vector_points
from antiphon.stores.sql.operation import Operation
from antiphon.testing.rows.response_rows import TENANT, TTL, Clock
from antiphon.testing.rows.vector_rows import create_vector_store, index_texts
from tests.service.vector_stores.vectors import draw_clustered
from tests.support.services import Postgres

pytestmark = [pytest.mark.anyio, pytest.mark.needs("postgresql")]

DIMENSIONS = 32
WAITING = "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
INDEXES = "SELECT relname FROM pg_class WHERE relname LIKE 'hnsw%' AND relkind = 'i'"
clock = Clock()


@pytest.fixture(autouse=True)
def long_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a long deadline, so that a busy machine does not exceed it."""
    monkeypatch.setattr(postgres_pool, "DEADLINE", 60.0)


@asynccontextmanager
async def open_store(url: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(url, TTL, clock)
    await store.open()
    yield store
    await store.close()


def get_name(url: str) -> str:
    return urlsplit(url).path[1:]


def get_restricted_url(postgres: Postgres, url: str) -> str:
    """Return the URL of a user who may create tables, but no extensions."""
    postgres.run_sql("DROP ROLE IF EXISTS restricted; CREATE ROLE restricted LOGIN")
    postgres.run_sql("GRANT CREATE ON SCHEMA public TO restricted", get_name(url))
    return postgres.url(get_name(url), "restricted")


async def add_vectors(store: PostgresStore, name: str, count: int, seed: int = 1) -> list[bytes]:
    vectors = draw_clustered(random.Random(seed), count, DIMENSIONS)
    texts = [f"{number}" for number in range(count)]
    await index_texts(store, clock, name, texts, vectors=[[one] for one in vectors], dimensions=DIMENSIONS)
    return vectors


async def count_nearest(store: PostgresStore, name: str, query: bytes) -> int:
    index = await IndexCache(store, 10**9).get(TENANT, name)
    return len(await index.vectors.find_nearest(query, None))


async def test_a_search_by_words_reads_no_entries_beside_the_index(postgres: Postgres, postgres_url: str) -> None:
    async with open_store(postgres_url) as store:
        name = await create_vector_store(store, clock)
        await index_texts(store, clock, name, [f"text {number}" for number in range(50)])
        pages = postgres.run_sql("SELECT gin_clean_pending_list('vector_chunks_lexemes')", get_name(postgres_url))
        assert pages == "0\n"


async def test_a_server_without_the_extension_searches_in_memory_until_it_has_it(
    postgres: Postgres, postgres_url: str
) -> None:
    url = get_restricted_url(postgres, postgres_url)
    async with open_store(url) as former:
        assert not former.has_points
        name = await create_vector_store(former, clock)
        [query, *_] = await add_vectors(former, name, 5)
        index = await IndexCache(former, 10**9).get(TENANT, name)
        assert isinstance(index.vectors, MemoryIndex)
        postgres.run_sql("CREATE EXTENSION vector", get_name(url))
        async with open_store(url) as store:
            assert store.has_points
            assert await count_nearest(store, name, query) == 5
            await add_vectors(former, name, 3, seed=2)  # by a server that searches in memory
            assert await count_nearest(store, name, query) == 8
            await former.delete_vector_store(TENANT, name)
            while await former.purge_vector_chunks(100):
                pass
            assert await store.count_points(name, "embedder") == {}
    assert postgres.run_sql("SELECT COUNT(*) FROM vector_points", get_name(url)) == "0\n"


async def test_an_extension_that_was_removed_and_installed_again_gets_all_vectors(
    postgres: Postgres, postgres_url: str
) -> None:
    async with open_store(postgres_url) as store:
        name = await create_vector_store(store, clock)
        [query, *_] = await add_vectors(store, name, 5)
        assert await count_nearest(store, name, query) == 5
    postgres.run_sql("DROP EXTENSION vector CASCADE", get_name(postgres_url))
    async with open_store(postgres_url) as store:
        assert await count_nearest(store, name, query) == 5


async def test_vectors_are_copied_while_another_server_deletes_their_chunks(postgres_url: str) -> None:
    async with open_store(postgres_url) as store:
        name = await create_vector_store(store, clock)
        [query, *_] = await add_vectors(store, name, 5)
        assert await count_nearest(store, name, query) == 5
        other = await postgres_pool.connect(postgres_url)
        await other.execute("DELETE FROM vector_point_files")
        await other.execute("BEGIN; DELETE FROM vector_embeddings")
        copying = asyncio.create_task(store.add_points(TENANT, name, "embedder", DIMENSIONS, None, 100))
        while not copying.done() and not await other.fetchval(WAITING):
            pass
        await other.execute("COMMIT")
        assert await copying is None
        await other.close()
        assert await store.count_points(name, "embedder") == {}


async def test_an_old_extension_is_not_used(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_vectors, "_MIN_VERSION", (99, 0))
    async with open_store(postgres_url) as store:
        assert not store.has_points
        assert not store.maintain_points()


def test_the_index_that_is_used_is_described() -> None:
    assert postgres_vectors.describe_pgvector("0.8.1", "0.8.2") == "Vectors are searched with pgvector 0.8.1."
    assert "The next start creates" in postgres_vectors.describe_pgvector(None, "0.10.0")
    for versions in ((None, None), ("0.7.4", "0.8.2"), (None, "0.5.1")):
        assert "in memory: the database has no pgvector 0.8" in postgres_vectors.describe_pgvector(*versions)


async def test_a_large_store_has_an_hnsw_index_of_its_own_while_it_is_large(
    postgres: Postgres, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (postgres_vectors, vector_points):
        monkeypatch.setattr(module, "EXACT_VECTORS", 100)
    database = get_name(postgres_url)
    async with open_store(postgres_url) as store:
        small, large = await create_vector_store(store, clock), await create_vector_store(store, clock)
        await add_vectors(store, small, 100)
        [query, *_] = await add_vectors(store, large, 400)
        for name in (small, large):
            await count_nearest(store, name, query)
        assert store.maintain_points()
        await store._builds.wait_all()
        name = f"hnsw_{large}_{DIMENSIONS}"
        assert postgres.run_sql(INDEXES, database).split() == [name]
        plan = await explain(postgres_url, vector_points.find_points(large, [1], 400, query, 10))
        assert f"Index Scan using {name}" in plan
        assert "Sort" not in plan
        plan = await explain(postgres_url, vector_points.find_points(large, [1], 100, query, 10))
        assert name not in plan, "few vectors are compared exactly"
        assert await count_nearest(store, large, query) == 200

        postgres.run_sql(f"UPDATE pg_index SET indisvalid = false WHERE indexrelid = '{name}'::regclass", database)
        await postgres_vectors.build_indexes(postgres_url)
        valid = f"SELECT indisvalid FROM pg_index WHERE indexrelid = '{name}'::regclass"
        assert postgres.run_sql(valid, database) == "t\n"

        await store.delete_vector_store(TENANT, large)
        while await store.purge_vector_chunks(100):
            pass
        await postgres_vectors.build_indexes(postgres_url)
        assert postgres.run_sql(INDEXES, database) == ""


async def explain(url: str, operation: Operation[list[int]]) -> str:
    """Return the plan of the last statement of an operation."""
    connection = await postgres_pool.connect(url)
    try:
        async with connection.transaction():
            await postgres_vectors.prepare_connection(connection)
            statement = next(operation)
            if "set_config" in statement.text:
                await connection.execute(statement.text)
                statement = operation.send([])
            rows = await connection.fetch(f"EXPLAIN {statement.text}", *statement.values)
    finally:
        await connection.close()
    return "\n".join(row[0] for row in rows)


async def test_one_server_at_a_time_builds_indexes_and_a_failure_is_logged(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_store(postgres_url):
        connection = await postgres_pool.connect(postgres_url)
        await connection.execute(f"SELECT pg_advisory_lock({postgres_vectors._BUILD_LOCK})")
        await postgres_vectors.build_indexes(postgres_url)
        await connection.close()
    assert "could not be built" not in caplog.text
    await postgres_vectors.build_indexes("postgresql://127.0.0.1:1/state")
    assert "could not be built" in caplog.text
