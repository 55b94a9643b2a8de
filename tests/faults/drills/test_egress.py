"""A short run of the egress drill: no spelling of a URL leads to a connection to a forbidden address."""

import asyncio

import pytest

from drills.egress.address_spellings import make_spellings
from drills.egress.drill import egress
from drills.egress.url_fields import FIELDS, PAGES, SERVERS
from drills.harness.findings import Findings

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


async def _run_drill(step: int, *allowed: str) -> Findings:
    findings = Findings("egress")
    async with asyncio.timeout(280):
        await egress(step, findings, allowed)
    return findings


@pytest.mark.shows("E.11", "E.12")
async def test_no_url_spelling_in_any_field_reaches_a_canary() -> None:
    findings = await _run_drill(71)
    assert findings.reported == []
    assert findings.trials > 20 * len([*FIELDS, *SERVERS, *PAGES])


async def test_the_drill_detects_canaries_that_are_reached() -> None:
    findings = await _run_drill(211, "127.0.0.0/8")
    assert findings.violations
    assert {figure.name: figure.value for figure in findings.figures}["reached"] > 0


def test_there_are_at_least_400_spellings() -> None:
    assert len(make_spellings(8000, "192.0.2.2")) >= 400
