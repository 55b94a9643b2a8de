"""A short run of `make drills ARGS=pool`: an engine is killed before the first token of a run."""

import asyncio

import pytest

from drills.engines.pool import pool
from drills.harness.findings import Findings

pytestmark = [
    pytest.mark.anyio, pytest.mark.slow, pytest.mark.needs("llamacpp"), pytest.mark.real_model,
]  # fmt: skip


@pytest.mark.shows("C.23", "C.25", "C.28")
async def test_runs_of_a_killed_engine_move_or_fail_without_hanging() -> None:
    findings = Findings("pool")
    async with asyncio.timeout(280):
        await pool([0], findings)
    assert findings.trials
    assert findings.reported == []
