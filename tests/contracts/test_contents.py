"""Contract suite of content stores, over every registered one.

Covers `stores/contents/base.py`, `stores/contents/folder.py` and `stores/contents/database.py`.
"""

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from antiphon.errors import Unavailable
from antiphon.stores.contents.base import ContentStore
from antiphon.stores.contents.folder import FolderContents
from antiphon.stores.registry import CONTENTS, make_contents, make_store

pytestmark = pytest.mark.anyio
FAR_FUTURE = 1e12
BLOCK = 256 * 1024


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.needs("s3") if name == "s3" else ()) for name in CONTENTS])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    match request.param:
        case "s3":
            return str(request.getfixturevalue("bucket_url"))
        case "store":
            return "store"
        case _:
            return str(tmp_path / "new" / "files")


@pytest.fixture
async def contents(location: str) -> AsyncIterator[ContentStore]:
    store = make_store("memory", 1000.0)
    await store.open()
    contents = make_contents(location, "memory", store)
    await contents.open()
    yield contents
    await store.close()


async def iterate(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


async def read(contents: ContentStore, key: str, start: int, end: int) -> bytes:
    return b"".join([piece async for piece in contents.read(key, start, end)])


async def list_keys(contents: ContentStore, before: float = FAR_FUTURE) -> list[str]:
    return sorted([key async for page in contents.list_keys(before) for key in page])


@pytest.mark.parametrize(
    "pieces",
    [[b"hello"], [b"he", b"", b"llo"], [b"x" * BLOCK], [b"x" * (BLOCK - 1), b"yz"], [os.urandom(1024 * 1024 + 1)] * 11],
)
async def test_content_is_read_as_written_whole_and_in_ranges(contents: ContentStore, pieces: Sequence[bytes]) -> None:
    whole = b"".join(pieces)
    await contents.write("key_1", iterate(*pieces))
    assert await read(contents, "key_1", 0, len(whole)) == whole
    for start, end in ((1, 4), (len(whole) - 2, len(whole)), (len(whole) // 2, len(whole) // 2 + 2), (2, 2)):
        assert await read(contents, "key_1", start, end) == whole[start:end]


async def test_empty_content_can_be_written(contents: ContentStore) -> None:
    await contents.write("key_1", iterate())
    assert await read(contents, "key_1", 0, 0) == b""


async def test_content_that_fails_to_arrive_leaves_nothing(contents: ContentStore) -> None:
    async def fail() -> AsyncIterator[bytes]:
        yield b"x" * (2 * BLOCK)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await contents.write("key_1", fail())
    assert await list_keys(contents) == []
    with pytest.raises(Unavailable):
        await read(contents, "key_1", 0, 1)


async def test_a_cancelled_write_leaves_nothing(contents: ContentStore) -> None:
    arrived = asyncio.Event()

    async def hang() -> AsyncIterator[bytes]:
        yield b"x" * (2 * BLOCK)
        arrived.set()
        await asyncio.Event().wait()

    writing = asyncio.create_task(contents.write("key_1", hang()))
    await arrived.wait()
    writing.cancel()
    await asyncio.wait([writing])
    assert await list_keys(contents) == []


async def test_deleted_content_is_gone_and_deleting_it_again_is_no_error(contents: ContentStore) -> None:
    for key in ("key_1", "key_2"):
        await contents.write(key, iterate(b"hello"))
    assert await list_keys(contents) == ["key_1", "key_2"]
    for _ in range(2):
        await contents.delete(["key_1"])
        assert await list_keys(contents) == ["key_2"]
    with pytest.raises(Unavailable):
        await read(contents, "key_1", 0, 5)


async def test_only_content_written_before_a_time_is_listed(contents: ContentStore) -> None:
    await contents.write("key_1", iterate(b"hello"))
    assert await list_keys(contents, before=1.0) == []


async def test_a_read_beyond_the_end_is_an_error(contents: ContentStore) -> None:
    await contents.write("key_1", iterate(b"hello"))
    with pytest.raises(Unavailable):
        await read(contents, "key_1", 0, 6)


async def test_a_folder_with_an_unfinished_file_is_cleared_of_it_by_the_next_listing(tmp_path: Path) -> None:
    contents = FolderContents(tmp_path)
    await contents.open()
    unfinished = tmp_path / "incoming" / "key_1"
    unfinished.write_bytes(b"left by a crash")
    assert await list_keys(contents, before=1.0) == []
    assert unfinished.exists()
    assert await list_keys(contents) == []
    assert not unfinished.exists()


async def test_a_full_disk_is_an_error_that_names_the_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    contents = FolderContents(tmp_path)
    await contents.open()
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(Unavailable, match="No space left on device"):
        await contents.write("key_1", iterate(b"hello"))
    assert await list_keys(contents) == []


async def test_files_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    contents = FolderContents(tmp_path / "files")
    await contents.open()
    await contents.write("key_1", iterate(b"hello"))
    path = tmp_path / "files" / "_1" / "key_1"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
