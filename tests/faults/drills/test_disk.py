"""The drill of bad disks in its shortest form: nothing is lost or damaged, and all is well when the disk is."""

import asyncio
from functools import partial
from pathlib import Path

import pytest

from drills.disk import drill as disk
from drills.disk.bad_disk import Fault, can_mount, can_trace
from drills.disk.trials import Plan, Tally
from drills.harness.findings import Findings

pytestmark = pytest.mark.anyio

SECONDS = 280.0
FULL = Fault(calls="pwrite64", file="-wal", error="ENOSPC", nth=9)
ILL = Fault(calls="fdatasync,fsync", file="-wal", error="EIO", nth=3)


def _met(findings: Findings, tally: Tally) -> None:
    assert findings.shown == []
    assert findings.trials
    assert tally.responses
    assert not tally.corrupt
    assert not tally.lost


@pytest.mark.shows("B.3")
@pytest.mark.needs("strace")
@pytest.mark.skipif(not can_trace(), reason="this user may not trace processes")
async def test_calls_that_fail_lose_nothing_that_was_acknowledged() -> None:
    findings, tally = Findings("disk"), Tally()

    def plans(store: Path) -> list[Plan]:
        fails = partial(disk.fails, store)
        return [fails(FULL, stops=True), fails(ILL, stops=True, kills=True)]

    async with asyncio.timeout(SECONDS):
        await disk.on_file(plans, tally, findings)
    _met(findings, tally)
    assert tally.kills == 1
    assert len(tally.recoveries) == 1


async def test_files_that_may_not_grow_are_told_and_it_is_over_when_they_may() -> None:
    findings, tally = Findings("disk"), Tally()
    async with asyncio.timeout(SECONDS):
        await disk.on_file(lambda _: disk.stints(step=50), tally, findings)
    _met(findings, tally)


@pytest.mark.skipif(not can_mount(), reason="this user may not mount anything")
async def test_a_disk_that_gets_full_is_told_in_good_time() -> None:
    findings, tally = Findings("disk"), Tally()
    async with asyncio.timeout(SECONDS):
        await disk.on_small_disk(50, tally, findings)
    _met(findings, tally)
