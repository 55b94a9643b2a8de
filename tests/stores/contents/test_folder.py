"""Content in a folder; `tests/contracts/test_contents.py` has what all content stores do."""

import asyncio
import threading

import pytest

from antiphon.stores.contents.folder import _run_to_end

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
