"""The drills of a crowd in their shortest form: everybody is answered, and who is refused is told when to come back."""

import asyncio

import pytest

from drills.harness.findings import Findings
from drills.load import noisy, overload

pytestmark = pytest.mark.anyio


@pytest.mark.shows("H.4")
async def test_far_too_many_requests_are_refused_in_good_order_and_the_others_answered() -> None:
    findings = Findings("overload")
    async with asyncio.timeout(280):
        await overload.overload(overload.Times(1.0, 2.0), findings)
    assert findings.trials > 200
    assert findings.shown == []
    figures = {figure.name: figure for figure in findings.figures}
    assert not figures["memory MiB"].missed
    assert not figures["back to normal s"].missed


@pytest.mark.shows("H.4")
async def test_a_quiet_tenant_is_answered_beside_a_loud_one() -> None:
    findings = Findings("noisy")
    async with asyncio.timeout(280):
        await noisy.noisy(noisy.Times(1.5), findings)
    assert findings.trials > 200
    assert findings.shown == []
