"""Python child processes: their output, the limits on it, and the counted outcomes."""

import asyncio
from pathlib import Path

import pytest

from antiphon.child_process import OUTCOMES, run_python

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
