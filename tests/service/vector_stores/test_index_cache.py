"""Indexes of vector stores: what is loaded, updated and dropped.

Covers `service/vector_stores/memory_index.py`.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from antiphon.errors import UnknownVectorStore, VectorStoreExpired
from antiphon.service.vector_stores import index_cache, memory_index
from antiphon.service.vector_stores.index_cache import IndexCache, StoreIndex
from antiphon.service.vector_stores.memory_index import MemoryIndex
from antiphon.stores.sqlite import SqliteStore
from antiphon.stores.vector_rows import IndexResult, SearchableFile
from antiphon.testing.rows.response_rows import TENANT, TTL, Clock
from antiphon.testing.rows.vector_rows import claim_one, create_vector_store, index_texts, make_chunks, make_new_file
from tests.service.vector_stores.vectors import DIMENSIONS, embed_words

pytestmark = pytest.mark.anyio
MANY = 10**9


class CountingStore(SqliteStore):
    """Counts the chunks whose vectors are loaded."""

    loaded = 0

    async def load_vectors(self, *args: Any, **options: Any) -> Any:
        page = await super().load_vectors(*args, **options)
        self.loaded += len(page)
        return page


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def store(tmp_path: Path, clock: Clock) -> AsyncIterator[CountingStore]:
    store = CountingStore(str(tmp_path / "store.db"), TTL, clock)
    await store.open()
    yield store
    await store.close()


async def add_texts(store: SqliteStore, clock: Clock, name: str, *texts: str, embedder: str = "embedder") -> str:
    vectors = [[embed_words(text, embedder)] for text in texts]
    return await index_texts(store, clock, name, texts, vectors=vectors, embedder=embedder, dimensions=DIMENSIONS)


async def find_chunks(index: StoreIndex, query: str) -> set[int]:
    return {*await index.vectors.find_nearest(embed_words(query), None)}


def count_vectors(index: StoreIndex) -> int:
    """Return the number of vectors in memory, also of those that are not current."""
    assert isinstance(index.vectors, MemoryIndex)
    return len(index.vectors.bits)


async def test_an_index_is_loaded_once_and_then_updated(
    store: CountingStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_index, "_PAGE", 2)
    name, cache = await create_vector_store(store, clock), IndexCache(store, MANY)
    await add_texts(store, clock, name, "one", "two", "three")
    first, again = await asyncio.gather(cache.get(TENANT, name), cache.get(TENANT, name))
    assert again is first
    assert (count_vectors(first), store.loaded) == (3, 3)
    file = await add_texts(store, clock, name, "four")
    updated = await cache.get(TENANT, name)
    assert (count_vectors(updated), store.loaded, count_vectors(first)) == (4, 4, 3)
    assert file in updated.files
    assert await cache.get(TENANT, name) is updated


async def test_a_change_by_another_process_is_seen(store: CountingStore, clock: Clock, tmp_path: Path) -> None:
    other = SqliteStore(str(tmp_path / "store.db"), TTL, clock)
    await other.open()
    name, cache = await create_vector_store(store, clock), IndexCache(store, MANY)
    kept = await add_texts(store, clock, name, "otters")
    assert [*(await cache.get(TENANT, name)).files] == [kept]
    added = await add_texts(other, clock, name, "foxes")
    assert {*(await cache.get(TENANT, name)).files} == {kept, added}
    await other.set_vector_attributes(TENANT, name, added, {"a": 1})
    assert (await cache.get(TENANT, name)).files[added].attributes == {"a": 1}
    await other.remove_vector_file(TENANT, name, kept)
    index = await cache.get(TENANT, name)
    assert [*index.files] == [added]
    assert len(await find_chunks(index, "otters")) == 1
    await other.close()


async def test_vectors_of_removed_files_are_masked_and_dropped_once_they_are_the_most(
    store: CountingStore, clock: Clock
) -> None:
    name, cache = await create_vector_store(store, clock), IndexCache(store, MANY)
    files = [await add_texts(store, clock, name, f"text {number}") for number in range(4)]
    assert count_vectors(await cache.get(TENANT, name)) == 4
    for file, bits in zip(files[:3], (4, 4, 4), strict=True):
        await store.remove_vector_file(TENANT, name, file)
        index = await cache.get(TENANT, name)
        assert count_vectors(index) == bits
    assert len(await find_chunks(index, "text")) == 1
    files.append(await add_texts(store, clock, name, "text 4"))
    index = await cache.get(TENANT, name)
    assert (count_vectors(index), {*index.files}) == (2, {*files[3:]})


async def test_a_file_that_is_indexed_again_has_its_new_vectors_only(store: CountingStore, clock: Clock) -> None:
    name, cache = await create_vector_store(store, clock), IndexCache(store, MANY)
    file = await add_texts(store, clock, name, "old")
    former = await find_chunks(await cache.get(TENANT, name), "old")
    await store.add_vector_files(TENANT, name, [make_new_file(file)], None, 10)
    job = await claim_one(store, clock)
    await store.write_chunks(job.key, make_chunks(["new"], [[embed_words("new")]]))
    await store.finish_vector_file(job.key, IndexResult(embedder="embedder", dimensions=DIMENSIONS))
    current = await find_chunks(await cache.get(TENANT, name), "old")
    assert len(current) == 1
    assert current.isdisjoint(former)


async def test_vectors_of_another_embedder_are_never_mixed(store: CountingStore, clock: Clock) -> None:
    name, cache = await create_vector_store(store, clock), IndexCache(store, MANY)
    old = await add_texts(store, clock, name, "old")
    await cache.get(TENANT, name)
    new = await add_texts(store, clock, name, "new", embedder="other")
    index = await cache.get(TENANT, name)
    assert (index.state.embedder, count_vectors(index), {*index.files}) == ("other", 1, {old, new})


async def test_a_chunk_has_the_vectors_of_its_windows(store: CountingStore, clock: Clock) -> None:
    name, cache = await create_vector_store(store, clock), IndexCache(store, MANY)
    windows = [embed_words("one"), embed_words("two")]
    await index_texts(store, clock, name, ["one two"], vectors=[windows], dimensions=DIMENSIONS)
    index = await cache.get(TENANT, name)
    assert count_vectors(index) == 2
    assert len(await find_chunks(index, "two")) == 1


async def test_the_indexes_that_were_not_used_for_longest_are_dropped(store: CountingStore, clock: Clock) -> None:
    names = [await create_vector_store(store, clock) for _ in range(3)]
    for name in names:
        await add_texts(store, clock, name, "text")
    size = (await IndexCache(store, MANY).get(TENANT, names[0])).size
    cache = IndexCache(store, 2 * size)
    indexes = [await cache.get(TENANT, name) for name in names[:2]]
    assert await cache.get(TENANT, names[0]) is indexes[0]
    await cache.get(TENANT, names[2])
    assert await cache.get(TENANT, names[0]) is indexes[0]
    assert await cache.get(TENANT, names[1]) is not indexes[1]
    tiny = IndexCache(store, 0)
    assert await tiny.get(TENANT, names[0]) is await tiny.get(TENANT, names[0])


async def test_tenants_do_not_share_an_index_and_expired_stores_have_none(store: CountingStore, clock: Clock) -> None:
    name, cache = await create_vector_store(store, clock, days=1), IndexCache(store, MANY)
    await cache.get(TENANT, name)
    with pytest.raises(UnknownVectorStore, match=name):
        await cache.get("other", name)
    clock.now += 86400
    with pytest.raises(VectorStoreExpired, match=name):
        await cache.get(TENANT, name)


async def test_the_use_of_a_store_is_recorded(store: CountingStore, clock: Clock) -> None:
    name, cache = await create_vector_store(store, clock, days=1), IndexCache(store, MANY)
    clock.now += 3600
    await cache.get(TENANT, name)
    row = await store.vector_store(TENANT, name)
    assert row is not None
    assert (row.last_active, row.expires) == (clock(), clock() + 86400)


async def test_the_vectors_of_many_files_are_selected_beside_the_event_loop(
    store: CountingStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []
    select = MemoryIndex.select

    def note_thread(index: MemoryIndex, files: Mapping[str, SearchableFile]) -> MemoryIndex:
        threads.append(threading.current_thread())
        return select(index, files)

    monkeypatch.setattr(MemoryIndex, "select", note_thread)
    monkeypatch.setattr(index_cache, "_SELECT_BYTES", MANY)  # as if there were thousands of files
    name = await create_vector_store(store, clock)
    await add_texts(store, clock, name, "otter")
    await IndexCache(store, MANY).get(TENANT, name)
    assert threads
    assert threading.main_thread() not in threads
