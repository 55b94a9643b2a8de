"""Contract suite of stores: files, uploads, and blocks of content.

Covers `stores/sql/files.py`.
"""

import asyncio

import pytest

from antiphon.errors import InvalidValue, StorageLimitReached
from antiphon.ids import new_dashed_id, new_id
from antiphon.stores.base import FileQuota, FileRow, UploadRow
from antiphon.stores.sql.store import Store
from antiphon.testing.rows.response_rows import TENANT, Clock
from antiphon.testing.store_tests.responses import MALFORMED_IDS

QUOTA = FileQuota(1000, 1_000_000)


def make_file(
    clock: Clock, digest: bytes = b"", size: int = 10, purpose: str = "user_data", lifetime: float | None = None
) -> FileRow:
    name = new_dashed_id("file")
    return FileRow(
        id=name,
        created=clock(),
        expires=None if lifetime is None else clock() + lifetime,
        size=size,
        filename="välue.txt",
        purpose=purpose,
        digest=digest or name.encode(),
        content=name,
    )


async def add_file(store: Store, row: FileRow) -> FileRow:
    return await store.add_file(TENANT, row, QUOTA)


def make_upload(clock: Clock, lifetime: int | None = None) -> UploadRow:
    return UploadRow(
        id=new_id("upload"),
        created=clock(),
        expires=clock() + 3600,
        status="pending",
        size=10,
        filename="a.txt",
        purpose="user_data",
        lifetime=lifetime,
    )


async def test_a_file_is_read_as_added_by_its_tenant_only(store: Store, clock: Clock) -> None:
    row = make_file(clock, lifetime=10.0)
    assert await add_file(store, row) == row
    assert await store.file(TENANT, row.id) == row
    assert await store.file("other", row.id) is None
    assert await store.delete_file("other", row.id) is None
    for name in MALFORMED_IDS:
        assert await store.file(TENANT, name) is None


async def test_files_with_the_same_content_share_it_until_the_last_one_is_deleted(store: Store, clock: Clock) -> None:
    first, second, foreign = (make_file(clock, b"same") for _ in range(3))
    await add_file(store, first)
    assert (await add_file(store, second)).content == first.content
    assert (await store.add_file("other", foreign, QUOTA)).content == foreign.content
    assert await store.delete_file(TENANT, first.id) == []
    assert await store.delete_file(TENANT, second.id) == [first.content]
    assert await store.delete_file(TENANT, second.id) is None
    assert await store.find_unused(first.content, foreign.content) == [first.content]


async def test_content_that_a_new_file_shares_is_not_reported_as_unused(
    store: Store, other_store: Store, clock: Clock
) -> None:
    for _ in range(10):
        first = await add_file(store, make_file(clock, b"same"))
        second, unused = await asyncio.gather(
            other_store.add_file(TENANT, make_file(clock, b"same"), QUOTA), store.delete_file(TENANT, first.id)
        )
        assert unused is not None
        assert (second.content in unused) is False
        assert await store.delete_file(TENANT, second.id) == [second.content]


async def test_the_quota_bounds_the_number_and_the_bytes_of_all_files(store: Store, clock: Clock) -> None:
    quota = FileQuota(2, 100)
    await store.add_file(TENANT, make_file(clock, size=60), quota)
    with pytest.raises(StorageLimitReached, match="60 are used") as refused:
        await store.add_file(TENANT, make_file(clock, size=41), quota)
    assert (refused.value.status, refused.value.param) == (400, "file")
    await store.add_file(TENANT, make_file(clock, size=40), quota)
    with pytest.raises(StorageLimitReached, match="At most 2 files"):
        await store.add_file(TENANT, make_file(clock, size=0), quota)
    await store.add_file("other", make_file(clock, size=100), quota)


async def test_concurrent_files_stay_within_the_quota(store: Store, other_store: Store, clock: Clock) -> None:
    stores = [store, other_store] * 5
    adding = [one.add_file(TENANT, make_file(clock, size=30), FileQuota(100, 100)) for one in stores]
    results = await asyncio.gather(*adding, return_exceptions=True)
    assert sum(isinstance(one, FileRow) for one in results) == 3
    assert sum(isinstance(one, StorageLimitReached) for one in results) == 7


async def test_pages_of_files_neither_skip_nor_repeat(store: Store, clock: Clock) -> None:
    rows = [await add_file(store, make_file(clock, purpose=("batch", "vision")[n % 2])) for n in range(5)]
    rows.sort(key=lambda row: row.id)  # ids of one millisecond are in no order
    await store.add_file("other", make_file(clock), QUOTA)
    newest = await store.page_files(TENANT, None, 3, True)
    assert ([row.id for row in newest.rows], newest.has_more) == ([row.id for row in rows[:1:-1]], True)
    oldest = await store.page_files(TENANT, rows[1].id, 10, False)
    assert ([row.id for row in oldest.rows], oldest.has_more) == ([row.id for row in rows[2:]], False)
    batch = await store.page_files(TENANT, None, 10, False, "batch")
    assert [row.id for row in batch.rows] == [row.id for row in rows if row.purpose == "batch"]
    with pytest.raises(InvalidValue) as refused:
        await store.page_files(TENANT, "file-unknown", 1, True)
    assert refused.value.param == "after"


async def test_an_expired_file_is_gone_before_and_after_the_sweep(store: Store, clock: Clock) -> None:
    row, kept = make_file(clock, lifetime=10.0), make_file(clock)
    for one in (row, kept):
        await add_file(store, one)
    assert await store.expire_files() == []
    clock.now += 10.0
    assert await store.file(TENANT, row.id) is None
    assert [one.id for one in (await store.page_files(TENANT, None, 10, True)).rows] == [kept.id]
    assert await store.delete_file(TENANT, row.id) is None
    assert await store.expire_files() == [row.content]
    assert await store.expire_files() == []


async def test_a_completed_upload_becomes_a_file_and_frees_its_parts(store: Store, clock: Clock) -> None:
    upload, file = make_upload(clock, 60), make_file(clock)
    await store.create_upload(TENANT, upload)
    assert await store.upload(TENANT, upload.id) == upload
    assert await store.upload("other", upload.id) is None
    assert await store.add_part(TENANT, upload.id, "part_1", 4, "content 1")
    assert not await store.add_part("other", upload.id, "part_2", 4, "content 2")
    assert await store.parts(TENANT, upload.id) == {"part_1": (4, "content 1")}
    assert await store.find_unused("content 1", "content 2") == ["content 2"]
    assert await store.complete_upload(TENANT, upload.id, file, QUOTA) == (file, ["content 1"])
    completed = await store.upload(TENANT, upload.id)
    assert completed is not None
    assert (completed.status, completed.file) == ("completed", file.id)
    assert await store.complete_upload(TENANT, upload.id, make_file(clock), QUOTA) is None
    assert not await store.add_part(TENANT, upload.id, "part_3", 4, "content 3")
    assert await store.cancel_upload(TENANT, upload.id) is None


async def test_the_content_of_an_upload_that_equals_an_earlier_file_is_unused(store: Store, clock: Clock) -> None:
    upload, first, second = make_upload(clock), make_file(clock, b"same"), make_file(clock, b"same")
    await add_file(store, first)
    await store.create_upload(TENANT, upload)
    completed = await store.complete_upload(TENANT, upload.id, second, QUOTA)
    assert completed is not None
    assert (completed[0].content, completed[1]) == (first.content, [second.content])


async def test_cancelled_and_expired_uploads_free_their_parts(store: Store, clock: Clock) -> None:
    cancelled, expired = make_upload(clock), make_upload(clock)
    for upload in (cancelled, expired):
        await store.create_upload(TENANT, upload)
        await store.add_part(TENANT, upload.id, "part_1", 4, f"content of {upload.id}")
    assert await store.cancel_upload(TENANT, cancelled.id) == [f"content of {cancelled.id}"]
    assert await store.cancel_upload(TENANT, cancelled.id) is None
    clock.now += 3600.0
    assert await store.upload(TENANT, expired.id) is None
    assert not await store.add_part(TENANT, expired.id, "part_2", 4, "late")
    assert await store.expire_files() == [f"content of {expired.id}"]


async def test_blocks_of_content_are_read_listed_and_deleted(store: Store, clock: Clock) -> None:
    large = b"x" * 300_000
    await store.add_block("a", 0, large)
    await store.add_block("a", 1, b"end")
    await store.add_block("b", 0, b"")
    assert [await store.block("a", number) for number in range(3)] == [large, b"end", None]
    assert await store.page_contents(clock() + 1, "", 10) == ["a", "b"]
    assert await store.page_contents(clock() + 1, "a", 10) == ["b"]
    assert await store.page_contents(clock(), "", 10) == []
    await store.delete_contents(["a", "unknown"])
    assert await store.page_contents(clock() + 1, "", 10) == ["b"]
