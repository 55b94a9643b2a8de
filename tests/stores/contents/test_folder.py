"""Content in a folder; `tests/contracts/test_contents.py` has what all content stores do."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from antiphon.errors import Unavailable
from antiphon.stores.contents.folder import FolderContents, _list_files, _run_to_end

pytestmark = pytest.mark.anyio


async def send(*pieces: bytes, fails: bool = False) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece
    if fails:
        raise OSError


async def test_no_descriptor_and_no_temporary_file_remains(tmp_path: Path) -> None:
    contents = FolderContents(tmp_path / "a" / "b")
    await contents.open()
    await contents.open()  # of another worker
    before = os.listdir("/proc/self/fd")
    for key in ("file_1aa", "file_2aa"):  # in the same folder
        await contents.write(key, send(b"ab", b"c"))
        assert b"".join([piece async for piece in contents.read(key, 1, 3)]) == b"bc"
    with pytest.raises(Unavailable):
        await contents.write("file_3aa", send(b"a", fails=True))
    assert os.listdir("/proc/self/fd") == before
    assert sorted(path.name for path in (tmp_path / "a" / "b").rglob("file_*")) == ["file_1aa", "file_2aa"]


async def test_content_and_its_names_are_synced_in_this_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    contents = FolderContents(tmp_path)
    await contents.open()
    await contents.write("file_1aa", send(b"a"))
    assert synced == [str(tmp_path / "incoming" / "file_1aa"), str(tmp_path / "aa"), str(tmp_path)]


async def test_work_on_a_descriptor_is_awaited_however_often_the_task_is_cancelled() -> None:
    started, release = threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        release.wait(30)

    task = asyncio.create_task(_run_to_end(work))
    await asyncio.to_thread(started.wait, 30)
    for _ in range(3):
        task.cancel()
        await asyncio.wait([task], timeout=0.01)
        assert not task.done()
    release.set()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_only_files_from_before_a_time_are_listed(tmp_path: Path) -> None:
    for name, seconds in (("old", 9.0), ("same", 10.0), ("new", 11.0)):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (seconds, seconds))
    assert [path.name for path in _list_files(tmp_path, 10.0)] == ["old"]
