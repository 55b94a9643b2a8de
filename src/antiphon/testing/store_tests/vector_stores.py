"""Contract suite of stores: vector stores, their files and batches.

Covers `stores/sql/vector_stores.py` and `stores/sql/vector_files.py`.
"""

import asyncio

import pytest
from msgspec.structs import replace

from antiphon.errors import InvalidValue, StorageLimitReached, UnknownVectorStore, VectorStoreExpired
from antiphon.ids import new_id
from antiphon.stores.base import PageQuery
from antiphon.stores.sql.store import Store
from antiphon.stores.vector_rows import FileCounts, IndexResult, VectorStoreRow, VectorStoreUpdate
from antiphon.testing.rows.response_rows import TENANT, Clock, make_claim
from antiphon.testing.rows.vector_rows import (
    EMBEDDER,
    add_stored_file,
    attach_file,
    claim_one,
    create_vector_store,
    index_texts,
    make_new_file,
)
from antiphon.testing.store_tests.responses import MALFORMED_IDS

DAY = 86400


async def read_store(store: Store, name: str) -> VectorStoreRow:
    row = await store.vector_store(TENANT, name)
    assert row is not None
    return row


async def test_a_vector_store_is_read_as_created_by_its_tenant_only(store: Store, clock: Clock) -> None:
    row = VectorStoreRow(
        id=new_id("vs"),
        created=clock(),
        name="näme",
        description="text",
        metadata={"a": "b"},
        days=2,
        last_active=clock(),
        expires=clock() + 2 * DAY,
    )
    await store.create_vector_store(TENANT, row, 1)
    assert await store.vector_store(TENANT, row.id) == row
    assert await store.vector_store("other", row.id) is None
    assert await store.update_vector_store("other", row.id, VectorStoreUpdate(name="mine")) is None
    assert not await store.delete_vector_store("other", row.id)
    for name in MALFORMED_IDS:
        assert await store.vector_store(TENANT, name) is None
        with pytest.raises(UnknownVectorStore):
            await store.vector_store_version(TENANT, name)


async def test_a_tenant_has_at_most_a_number_of_vector_stores(store: Store, other_store: Store, clock: Clock) -> None:
    rows = [VectorStoreRow(id=new_id("vs"), created=clock(), last_active=clock()) for _ in range(6)]
    creating = [
        one.create_vector_store(TENANT, row, 3) for one, row in zip([store, other_store] * 3, rows, strict=True)
    ]
    results = await asyncio.gather(*creating, return_exceptions=True)
    assert [type(one) for one in results if one != []] == [StorageLimitReached] * 3
    assert len((await store.page_vector_stores(TENANT, PageQuery())).rows) == 3
    await store.create_vector_store("other", replace(rows[0], id=new_id("vs")), 1)


async def test_an_update_changes_only_its_fields(store: Store, clock: Clock) -> None:
    name = await create_vector_store(store, clock)
    before = await read_store(store, name)
    renamed = await store.update_vector_store(TENANT, name, VectorStoreUpdate(name="new"))
    assert renamed == replace(before, name="new") == await store.vector_store(TENANT, name)
    limited = await store.update_vector_store(TENANT, name, VectorStoreUpdate(days=3, metadata={}))
    assert limited == replace(before, name="new", metadata={}, days=3, expires=before.last_active + 3 * DAY)
    unlimited = await store.update_vector_store(TENANT, name, VectorStoreUpdate(days=None))
    assert unlimited == replace(before, name="new", metadata={})


async def test_pages_go_both_ways_and_neither_skip_nor_repeat(store: Store, clock: Clock) -> None:
    names = []
    for number in range(6):
        clock.now += number % 2  # some are created at the same time
        names.append(await create_vector_store(store, clock))
    rows = sorted([await read_store(store, name) for name in names], key=lambda row: (row.created, row.id))
    ids = [row.id for row in rows]
    await create_vector_store(store, clock, tenant="other")

    async def page(**query: object) -> tuple[list[str], bool]:
        found = await store.page_vector_stores(TENANT, PageQuery(**query))  # type: ignore[arg-type]  # by name
        return [row.id for row in found.rows], found.has_more

    assert await page(limit=4) == (ids[:1:-1], True)
    assert await page(after=ids[2], limit=4) == (ids[1::-1], False)
    assert await page(before=ids[2], limit=2) == (ids[4:2:-1], True)
    assert await page(before=ids[2], limit=4, descending=False) == (ids[:2], False)
    assert await page(after=ids[1], limit=2, descending=False) == (ids[2:4], True)
    assert await page(after=ids[0], before=ids[3], descending=False) == (ids[1:3], False)
    for param in ("after", "before"):
        with pytest.raises(InvalidValue) as refused:
            await page(**{param: "vs_unknown"})
        assert refused.value.param == param


async def test_a_use_postpones_the_expiry_and_an_expired_store_has_no_files(store: Store, clock: Clock) -> None:
    name = await create_vector_store(store, clock, days=1)
    kept = await create_vector_store(store, clock)
    file = await index_texts(store, clock, name, ["text"])
    clock.now += DAY - 1
    await store.touch_vector_store(TENANT, name)
    clock.now += DAY - 1
    assert await store.vector_store_version(TENANT, name) == (1, EMBEDDER, 1)
    assert await store.expire_vector_stores() == 0
    clock.now += 1
    with pytest.raises(VectorStoreExpired) as refused:
        await store.vector_store_version(TENANT, name)
    assert refused.value.status == 400
    with pytest.raises(VectorStoreExpired):
        await store.add_vector_files(TENANT, name, [make_new_file(file)], None, 10)
    assert await store.expire_vector_stores() == 1
    assert await store.expire_vector_stores() == 0
    row = await read_store(store, name)
    assert (row.expired, row.counts, row.expires) == (True, FileCounts(), clock())
    assert await store.vector_file(TENANT, name, file) is None
    assert await store.search_text(TENANT, name, ["text"], 10) == []
    await store.touch_vector_store(TENANT, name)
    assert (await read_store(store, name)).expires == clock()
    await store.update_vector_store(TENANT, name, VectorStoreUpdate(days=None))
    with pytest.raises(VectorStoreExpired):  # its files are gone
        await store.vector_store_version(TENANT, name)
    assert await store.delete_vector_store(TENANT, name)
    assert not (await read_store(store, kept)).expired


async def test_a_use_is_written_once_a_minute(store: Store, clock: Clock) -> None:
    name = await create_vector_store(store, clock)
    created = clock()
    clock.now += 59
    await store.touch_vector_store(TENANT, name)
    assert (await read_store(store, name)).last_active == created
    clock.now += 2
    await store.touch_vector_store(TENANT, name)
    assert (await read_store(store, name)).last_active == created + 61


async def test_a_vector_store_is_created_with_all_of_its_files_or_not_at_all(store: Store, clock: Clock) -> None:
    row = VectorStoreRow(id=new_id("vs"), created=clock(), last_active=clock())
    files = [make_new_file(await add_stored_file(store, clock)), make_new_file("file-unknown")]
    assert await store.create_vector_store(TENANT, row, 1, files) == ["file-unknown"]
    assert await store.vector_store(TENANT, row.id) is None
    assert await store.create_vector_store(TENANT, row, 1, files[:1]) == []
    assert (await read_store(store, row.id)).counts == FileCounts(in_progress=1)


async def test_files_are_added_all_or_none(store: Store, clock: Clock) -> None:
    name, file = await create_vector_store(store, clock), await add_stored_file(store, clock)
    foreign = await add_stored_file(store, clock, "other")
    files = [make_new_file(one) for one in (file, foreign, "file-unknown")]
    assert await store.add_vector_files(TENANT, name, files, None, 10) == [foreign, "file-unknown"]
    assert await store.vector_file(TENANT, name, file) is None
    with pytest.raises(StorageLimitReached, match="at most 0 files"):
        await store.add_vector_files(TENANT, name, files[:1], None, 0)
    assert await store.vector_file(TENANT, name, file) is None
    with pytest.raises(UnknownVectorStore) as refused:
        await store.add_vector_files("other", name, [make_new_file(foreign)], None, 10)
    assert (refused.value.status, refused.value.param) == (404, "vector_store_id")


async def test_an_added_file_waits_to_be_indexed(store: Store, clock: Clock) -> None:
    name = await create_vector_store(store, clock)
    file = await attach_file(store, clock, name, {"year": 2026, "draft": True, "by": "\0ä", "share": 0.5})
    row = await store.vector_file(TENANT, name, file)
    assert row is not None
    assert (row.filename, row.status, row.chunk_tokens, row.batch) == (f"{file}.txt", "in_progress", 800, None)
    assert row.attributes == {"year": 2026, "draft": True, "by": "\0ä", "share": 0.5}
    assert (await read_store(store, name)).counts == FileCounts(in_progress=1)
    assert await store.vector_file("other", name, file) is None
    assert await store.vector_file(TENANT, name, "file-\0") is None


async def test_new_attributes_are_a_change_of_the_store(store: Store, clock: Clock) -> None:
    name = await create_vector_store(store, clock)
    file = await index_texts(store, clock, name, ["text"], attributes={"a": 1})
    version = await store.vector_store_version(TENANT, name)
    changed = await store.set_vector_attributes(TENANT, name, file, {"b": "2"})
    assert changed == await store.vector_file(TENANT, name, file)
    assert changed is not None
    assert changed.attributes == {"b": "2"}
    assert (await store.list_searchable_files(TENANT, name))[file].attributes == {"b": "2"}
    assert await store.vector_store_version(TENANT, name) > version
    assert await store.set_vector_attributes("other", name, file, {}) is None


async def test_files_are_listed_by_status_and_batch(store: Store, clock: Clock) -> None:
    name, batch = await create_vector_store(store, clock), new_id("vsfb")
    done = await index_texts(store, clock, name, ["text"])
    clock.now += 1
    alone = await attach_file(store, clock, name)
    clock.now += 1
    together = await attach_file(store, clock, name, batch=batch)

    async def page(**filters: str) -> list[str]:
        found = await store.page_vector_files(TENANT, name, PageQuery(descending=False), **filters)  # type: ignore[arg-type]  # names
        return [row.file for row in found.rows]

    assert await page() == [done, alone, together]
    assert await page(status="in_progress") == [alone, together]
    assert await page(status="completed") == [done]
    assert await page(batch=batch) == [together]
    assert await page(batch=batch, status="completed") == []
    after = await store.page_vector_files(TENANT, name, PageQuery(after=together, limit=1))
    assert ([row.file for row in after.rows], after.has_more) == ([alone], True)


async def test_a_cancelled_batch_cancels_the_files_that_are_not_indexed(store: Store, clock: Clock) -> None:
    name, batch = await create_vector_store(store, clock), new_id("vsfb")
    files = [await attach_file(store, clock, name, batch=batch) for _ in range(2)]
    clock.now += 1
    job = await claim_one(store, clock)
    await store.finish_vector_file(job.key, IndexResult())
    row = await store.cancel_vector_batch(TENANT, name, batch)
    assert row == await store.vector_batch(TENANT, name, batch)
    assert row is not None
    assert (row.cancelled, row.counts) == (True, FileCounts(completed=1, cancelled=1))
    waiting = next(file for file in files if file != job.row.file)
    assert await store.claim_vector_files(make_claim(clock), 10, 3) == []
    await store.reindex_vector_files("other", 10)
    again = await store.cancel_vector_batch(TENANT, name, batch)
    assert again is not None
    assert again.counts == FileCounts(in_progress=1, cancelled=1), "a file that searches find is not cancelled"
    await store.finish_vector_file((await claim_one(store, clock)).key, IndexResult())
    assert await store.vector_batch("other", name, batch) is None
    assert await store.cancel_vector_batch(TENANT, name, "vsfb_unknown") is None
    await store.add_vector_files(TENANT, name, [make_new_file(waiting)], None, 10)
    assert (await claim_one(store, clock)).row.file == waiting


async def test_a_deleted_file_leaves_all_vector_stores(store: Store, clock: Clock) -> None:
    first, second = await create_vector_store(store, clock), await create_vector_store(store, clock)
    file = await index_texts(store, clock, first, ["text"])
    await store.add_vector_files(TENANT, second, [make_new_file(file)], None, 10)
    version = await store.vector_store_version(TENANT, first)
    await store.delete_file(TENANT, file)
    assert await store.search_text(TENANT, first, ["text"], 10) == []
    assert await store.vector_store_version(TENANT, first) > version
    for name in (first, second):
        assert await store.vector_file(TENANT, name, file) is None
    assert await store.claim_vector_files(make_claim(clock), 10, 3) == []


async def test_an_expired_file_leaves_its_vector_store(store: Store, clock: Clock) -> None:
    name = await create_vector_store(store, clock)
    file = await add_stored_file(store, clock, lifetime=10.0)
    await store.add_vector_files(TENANT, name, [make_new_file(file)], None, 10)
    clock.now += 10
    assert await store.add_vector_files(TENANT, name, [make_new_file(file)], None, 10) == [file]
    await store.expire_files()
    assert await store.vector_file(TENANT, name, file) is None
