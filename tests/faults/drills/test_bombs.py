"""A short run of the bomb drill: some of its requests, and the resources that they leak."""

import asyncio
from pathlib import Path

import pytest

from drills.bombs.box import BombSelection, bombs, list_bombs
from drills.bombs.distinct import SchemaCounts as Schemas
from drills.bombs.distinct import distinct, make_distinct
from drills.bombs.failures import STAGES, ResourceUsage, failures
from drills.bombs.failures import FailureCounts as Failures
from drills.bombs.twins import twins
from drills.harness.findings import Findings
from drills.harness.storage_locations import StorageLocation

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

SECONDS = 280.0


@pytest.mark.shows("H6.4", "H6.9")
async def test_a_sample_of_the_bombs_is_rejected_quickly_and_cheaply() -> None:
    findings = Findings("bombs")
    async with asyncio.timeout(SECONDS):
        await bombs(BombSelection(step=29, attempts=6, documents=False), findings)
    assert findings.trials > 35
    assert findings.reported == []
    assert {figure.name: figure.excess for figure in findings.figures}["grown MiB"] == ""


def test_there_are_more_than_1000_bombs_with_unique_names() -> None:
    names = [bomb.name for bomb in list_bombs("/nowhere")]
    assert len(names) > 1_000
    assert len(set(names)) == len(names)


@pytest.mark.shows("H6.8")
async def test_sqlite_and_postgresql_give_equal_responses(tmp_path: Path, postgres_url: str) -> None:
    findings = Findings("bombs-twins")
    async with asyncio.timeout(SECONDS):
        await twins(37, findings, StorageLocation(folder=tmp_path, store=postgres_url))
    assert findings.trials > 30
    assert findings.reported == []


async def test_failures_at_every_stage_leak_no_files_or_tasks() -> None:
    findings = Findings("bombs-failures")
    async with asyncio.timeout(SECONDS):
        await failures(Failures(len(STAGES), 2 * len(STAGES)), findings)
    # too few failures to judge the memory
    assert [sentence for sentence in findings.reported if "RSS" not in sentence] == []


def test_leaked_resources_are_reported_by_name() -> None:
    before = ResourceUsage(files=20, threads=3, tasks=5, rss=100_000_000)
    assert ResourceUsage(files=20, threads=9, tasks=5, rss=101_000_000).find_growth(before) == []
    leaks = ResourceUsage(files=21, threads=3, tasks=6, rss=103_000_000).find_growth(before)
    assert [sentence.split()[0] for sentence in leaks] == ["files", "tasks", "RSS"]


async def test_distinct_schemas_leave_no_files_on_disk() -> None:
    findings = Findings("bombs-schemas")
    async with asyncio.timeout(SECONDS):
        await distinct(Schemas(100, 200), findings)
    findings.check_figures()
    assert findings.reported == []
    assert len({str(make_distinct(number)) for number in range(1_000)}) == 1_000
