"""Content in a folder; `tests/contracts/test_contents.py` has what all content stores do."""

import asyncio
import os
import threading
from pathlib import Path

import pytest

from antiphon.stores.contents.folder import _list_files, _run_to_end

pytestmark = pytest.mark.anyio


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
