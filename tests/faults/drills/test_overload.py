"""Short runs of the load drills: every request gets a response, and a rejected one states when to retry."""

import asyncio

import pytest

from drills.harness.findings import Findings
from drills.load import noisy, overload

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.quiet_cores]


@pytest.mark.shows("H.4")
async def test_excess_requests_are_rejected_and_the_others_answered() -> None:
    findings = Findings("overload")
    async with asyncio.timeout(280):
        await overload.overload(overload.Times(1.0, 2.0), findings)
    assert findings.trials > 200
    assert findings.reported == []
    figures = {figure.name: figure for figure in findings.figures}
    assert figures["memory MiB"].excess == ""
    assert figures["back to normal s"].excess == ""


@pytest.mark.shows("H.4")
async def test_a_quiet_tenant_is_served_beside_a_busy_one() -> None:
    findings = Findings("noisy")
    async with asyncio.timeout(280):
        await noisy.noisy(noisy.Times(1.5), findings)
    assert findings.trials > 200
    assert findings.reported == []
