"""A short run of the disk fault drill: nothing is lost or damaged, and the server recovers together with the disk."""

import asyncio
from functools import partial
from pathlib import Path

import pytest

from drills.disk import drill as disk
from drills.disk.bad_disk import Fault, can_mount, can_trace
from drills.disk.trials import DiskTally, FaultPlan
from drills.harness.findings import Findings

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

SECONDS = 280.0
DISK_FULL = Fault(calls="pwrite64", file="-wal", error="ENOSPC", nth=9)
SYNC_ERROR = Fault(calls="fdatasync,fsync", file="-wal", error="EIO", nth=3)


def _assert_passed(findings: Findings, tally: DiskTally) -> None:
    assert findings.reported == []
    assert findings.trials
    assert tally.responses
    assert not tally.corrupt
    assert not tally.lost


@pytest.mark.shows("B.3")
@pytest.mark.needs("strace")
@pytest.mark.skipif(not can_trace(), reason="permission: this user may not trace processes")
async def test_failing_system_calls_lose_no_acknowledged_response() -> None:
    findings, tally = Findings("disk"), DiskTally()

    def plans(store: Path) -> list[FaultPlan]:
        fails = partial(disk.make_fault_plan, store)
        return [fails(DISK_FULL, stops=True), fails(SYNC_ERROR, stops=True, kills=True)]

    async with asyncio.timeout(SECONDS):
        await disk.run_on_file(plans, tally, findings)
    _assert_passed(findings, tally)
    assert tally.kills == 1
    assert len(tally.recoveries) == 1


async def test_a_file_size_limit_is_reported_and_the_server_recovers_without_it() -> None:
    findings, tally = Findings("disk"), DiskTally()
    async with asyncio.timeout(SECONDS):
        await disk.run_on_file(lambda _: disk.plan_size_limits(step=50), tally, findings)
    _assert_passed(findings, tally)


@pytest.mark.skipif(not can_mount(), reason="permission: this user may not mount anything")
async def test_a_disk_that_fills_up_is_reported_in_time() -> None:
    findings, tally = Findings("disk"), DiskTally()
    async with asyncio.timeout(SECONDS):
        await disk.run_on_small_disk(50, tally, findings)
    _assert_passed(findings, tally)
