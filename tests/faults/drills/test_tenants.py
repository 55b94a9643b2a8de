"""The drill of tenants in its shortest form: nothing of one is seen by another, and nobody comes in without a key."""

import asyncio

import pytest

from drills.harness.findings import Findings
from drills.tenants.drill import tenants

pytestmark = pytest.mark.anyio
SECONDS = 280.0


@pytest.mark.shows("H.1", "H.2")
async def test_the_wall_between_tenants_holds_and_so_does_the_edge() -> None:
    findings = Findings("tenants")
    async with asyncio.timeout(SECONDS):
        await tenants("sqlite", 29, findings)
    assert findings.trials > 500
    assert findings.shown == []
