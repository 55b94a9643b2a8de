import asyncio
from pathlib import Path

import pytest

from antiphon.child_process import OUTCOMES, said_by

pytestmark = pytest.mark.anyio

PROGRAMS = {
    "done": "import sys; sys.stdout.write(sys.stdin.read().upper())",
    "failed": "import sys; sys.exit(3)",
    "killed": "print('x' * 1_000_000, flush=True); import time; time.sleep(3600)",
}


@pytest.mark.parametrize("outcome", PROGRAMS)
async def test_what_came_of_a_program_is_counted(outcome: str) -> None:
    before = OUTCOMES[outcome]
    async with asyncio.timeout(60):
        said = await said_by(["-c", PROGRAMS[outcome]], b"hello", most=1000)
    assert OUTCOMES[outcome] == before + 1
    if outcome == "done":
        assert said == b"HELLO"


async def test_a_program_that_nobody_waits_for_any_more_is_killed(tmp_path: Path) -> None:
    before, begun = OUTCOMES["killed"], tmp_path / "begun"
    program = f"import pathlib, time; pathlib.Path({str(begun)!r}).touch(); time.sleep(3600)"
    waiting = asyncio.create_task(said_by(["-c", program], b"", most=1000))
    async with asyncio.timeout(60):
        while not begun.exists():  # noqa: ASYNC110 - another process does it
            await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert OUTCOMES["killed"] == before + 1
