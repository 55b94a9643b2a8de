"""Tests the sweeper of files; `transport/endpoints/test_files.py` tests the operations.

Covers `service/files.py`.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from time import time

import pytest

from antiphon.errors import BodyTooLarge
from antiphon.protocol.types.files import ExpiresAfter, FileFields
from antiphon.service.files import Files
from antiphon.service.persistence.store_maintenance import FileSweeper
from antiphon.stores.base import FileQuota
from antiphon.stores.contents.folder import FolderContents
from antiphon.stores.sql.operation import Operation, sql
from antiphon.stores.sql.store import Store
from antiphon.testing.rows.response_rows import Clock
from antiphon.testing.rows.vector_rows import create_vector_store, index_texts

pytestmark = pytest.mark.anyio
TENANT = "tenant"
REQUEST = FileFields(purpose="user_data")


@pytest.fixture
def clock() -> Clock:
    clock = Clock()
    clock.now = time()
    return clock


@pytest.fixture
async def contents(tmp_path: Path) -> FolderContents:
    contents = FolderContents(tmp_path)
    await contents.open()
    return contents


@pytest.fixture
def files(store: Store, contents: FolderContents) -> Files:
    return Files(store, contents, FileQuota(100, 1000))


async def iterate(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - a log has no event
            await asyncio.sleep(0.005)


def list_stored(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*") if path.is_file()}


async def test_content_that_a_crash_left_without_a_row_is_deleted(
    store: Store, contents: FolderContents, files: Files, tmp_path: Path
) -> None:
    stored = await files.create(TENANT, "a.txt", REQUEST, await files.write(iterate(b"kept"), 10))
    orphan = await files.write(iterate(b"orphan"), 10)
    sweeper = FileSweeper(store, contents)
    await sweeper.delete_unused(time() - 3600)
    assert list_stored(tmp_path) == {stored.id, orphan.key}
    await sweeper.delete_unused(time() + 3600)
    assert list_stored(tmp_path) == {stored.id}


async def test_expired_files_are_deleted_with_their_content(
    store: Store, contents: FolderContents, files: Files, clock: Clock, tmp_path: Path
) -> None:
    request = FileFields(purpose="user_data", expires_after=ExpiresAfter(anchor="created_at", seconds=3600))
    await files.create(TENANT, "a.txt", request, await files.write(iterate(b"hello"), 10))
    await FileSweeper(store, contents).expire()
    assert len(list_stored(tmp_path)) == 1
    clock.now += 3601.0
    await FileSweeper(store, contents).expire()
    assert list_stored(tmp_path) == set()


async def test_the_sweeper_indexes_the_words_of_earlier_versions_again(
    store: Store, contents: FolderContents, clock: Clock
) -> None:
    def forget_words() -> Operation[None]:
        yield sql("UPDATE vector_chunks SET words = 0")

    await index_texts(store, clock, await create_vector_store(store, clock), ["some text"])
    await store._run(forget_words, write=True)
    await FileSweeper(store, contents).expire()
    assert await store.index_words_again(1) == 0


async def test_the_sweeper_starts_with_what_a_crash_left_and_survives_a_failing_store(
    store: Store, contents: FolderContents, files: Files, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await store.close()
    sweeping = asyncio.create_task(FileSweeper(store, contents).run_forever())
    await wait_until(lambda: "sweeping the files failed: The store is closed." in caplog.text)
    assert not sweeping.done()
    sweeping.cancel()
    await asyncio.wait([sweeping])


async def test_content_above_the_limit_is_rejected_and_leaves_nothing(files: Files, tmp_path: Path) -> None:
    with pytest.raises(BodyTooLarge):
        await files.write(iterate(b"12345", b"67890", b"1"), 10)
    assert list_stored(tmp_path) == set()
