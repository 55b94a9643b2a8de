"""The drill of the way out in its shortest form: nothing connects to where nobody may go, whatever a URL looks like."""

import asyncio

import pytest

from drills.egress.address_spellings import spellings
from drills.egress.drill import egress
from drills.egress.url_fields import FIELDS, PAGES, SERVERS
from drills.harness.findings import Findings

pytestmark = pytest.mark.anyio


async def _carried_out(step: int, *open_too: str) -> Findings:
    findings = Findings("egress")
    async with asyncio.timeout(280):
        await egress(step, findings, open_too)
    return findings


@pytest.mark.shows("E.11", "E.12")
async def test_no_spelling_in_no_field_reaches_a_canary() -> None:
    findings = await _carried_out(71)
    assert findings.shown == []
    assert findings.trials > 20 * len([*FIELDS, *SERVERS, *PAGES])


async def test_the_drill_sees_what_gets_through() -> None:
    findings = await _carried_out(211, "127.0.0.0/8")
    assert findings.violations
    assert {figure.name: figure.value for figure in findings.figures}["reached"] > 0


def test_there_are_spellings_enough() -> None:
    assert len(spellings(8000, "192.0.2.2")) >= 400
