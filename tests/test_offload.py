"""Work off the event loop: large work in threads; Python child processes, their output and the counted
outcomes; background tasks."""

import asyncio
import threading
from pathlib import Path

import pytest

from antiphon.offload import MAX_INLINE_BYTES, OUTCOMES, BackgroundTasks, run_python, run_sized

pytestmark = pytest.mark.anyio

PROGRAMS = {
    "done": "import sys; sys.stdout.write(sys.stdin.read().upper())",
    "failed": "import sys; sys.exit(3)",
    "killed": "print('x' * 1_000_000, flush=True); import time; time.sleep(3600)",
}


@pytest.mark.parametrize("outcome", PROGRAMS)
async def test_the_outcome_of_a_program_is_counted(outcome: str) -> None:
    before = OUTCOMES[outcome]
    async with asyncio.timeout(60):
        output = await run_python(["-c", PROGRAMS[outcome]], b"hello", max_bytes=1000)
    assert OUTCOMES[outcome] == before + 1
    if outcome == "done":
        assert output == b"HELLO"


async def test_a_program_whose_caller_is_cancelled_is_killed(tmp_path: Path) -> None:
    before, started = OUTCOMES["killed"], tmp_path / "begun"
    program = f"import pathlib, time; pathlib.Path({str(started)!r}).touch(); time.sleep(3600)"
    waiting = asyncio.create_task(run_python(["-c", program], b"", max_bytes=1000))
    async with asyncio.timeout(60):
        while not started.exists():  # noqa: ASYNC110 - another process creates the file
            await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert OUTCOMES["killed"] == before + 1


@pytest.mark.parametrize("size", [0, MAX_INLINE_BYTES, MAX_INLINE_BYTES + 1])
async def test_only_work_on_many_bytes_runs_in_a_thread(size: int) -> None:
    thread = await run_sized(size, threading.current_thread)
    assert (thread is threading.current_thread()) == (size <= MAX_INLINE_BYTES)


async def test_arguments_are_passed_on() -> None:
    assert await run_sized(0, int, "11", base=2) == 3


async def test_a_failing_task_is_logged_and_does_not_affect_others(caplog: pytest.LogCaptureFixture) -> None:
    tasks, go_on, done = BackgroundTasks(), asyncio.Event(), asyncio.Event()

    async def broken() -> None:
        raise ZeroDivisionError("secret")

    async def healthy() -> None:
        await go_on.wait()
        done.set()

    tasks.start(broken())
    tasks.start(healthy())
    for _ in range(3):
        await asyncio.sleep(0)
    assert len(tasks) == 1
    assert "secret" in caplog.text
    go_on.set()
    await tasks.wait_all()
    assert done.is_set()


async def test_closing_waits_for_the_grace_period_and_then_cancels_tasks() -> None:
    tasks, ended = BackgroundTasks(), []

    async def work(name: str, seconds: float) -> None:
        try:
            await asyncio.sleep(seconds)
            ended.append(name)
        except asyncio.CancelledError:
            ended.append(f"{name} cancelled")
            raise

    tasks.start(work("short", 0.0))
    tasks.start(work("long", 60.0))
    async with asyncio.timeout(30):
        await tasks.close(grace=0.05)
    assert ended == ["short", "long cancelled"]
    assert len(tasks) == 0
