import asyncio

import pytest

from antiphon.confined import OUTCOMES, said_by

pytestmark = pytest.mark.anyio

PROGRAMS = {
    "done": "import sys; sys.stdout.write(sys.stdin.read().upper())",
    "failed": "import sys; sys.exit(3)",
    "killed": "print('x' * 1_000_000, flush=True); import time; time.sleep(3600)",
}


@pytest.mark.parametrize("outcome", PROGRAMS)
async def test_what_came_of_a_program_is_counted(outcome: str) -> None:
    before = OUTCOMES[outcome]
    async with asyncio.timeout(30):
        said = await said_by(["-c", PROGRAMS[outcome]], b"hello", most=1000)
    assert OUTCOMES[outcome] == before + 1
    if outcome == "done":
        assert said == b"HELLO"


async def test_a_program_that_nobody_waits_for_any_more_is_killed() -> None:
    before = OUTCOMES["killed"]
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await said_by(["-c", "import time; time.sleep(3600)"], b"", most=1000)
    assert OUTCOMES["killed"] == before + 1
