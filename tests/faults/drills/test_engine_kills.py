"""A short run of `make drills ARGS=engine-kills`: an engine server behind an HTTP adapter is killed."""

import asyncio

import pytest

from drills.engines.engine_kills import engine_kills
from drills.harness.findings import Findings

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.mark.shows("C.28")
async def test_responses_of_a_killed_engine_server_complete_or_fail_with_a_code() -> None:
    findings = Findings("engine-kills")
    async with asyncio.timeout(280):
        await engine_kills(["vllm"], 1, findings)
    assert findings.trials
    assert findings.reported == []
