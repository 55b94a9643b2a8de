"""Small work runs on the event loop, large work in a thread."""

import threading

import pytest

from antiphon.threads import MAX_INLINE_BYTES, run_sized

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("size", [0, MAX_INLINE_BYTES, MAX_INLINE_BYTES + 1])
async def test_only_work_on_many_bytes_runs_in_a_thread(size: int) -> None:
    thread = await run_sized(size, threading.current_thread)
    assert (thread is threading.current_thread()) == (size <= MAX_INLINE_BYTES)


async def test_arguments_are_passed_on() -> None:
    assert await run_sized(0, int, "11", base=2) == 3
