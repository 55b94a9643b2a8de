"""A short run of the tenant drill: data of one tenant is invisible to others, and no request is served without a
key.
"""

import asyncio

import pytest

from drills.harness.findings import Findings
from drills.tenants.drill import tenants

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
SECONDS = 280.0


@pytest.mark.shows("H.1", "H.2")
async def test_tenants_are_isolated_and_requests_without_a_key_are_rejected() -> None:
    findings = Findings("tenants")
    async with asyncio.timeout(SECONDS):
        await tenants("sqlite", 29, findings)
    assert findings.trials > 500
    assert findings.reported == []
