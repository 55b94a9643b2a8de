"""The bomb box in its shortest form: some of its rows, and what they leave behind."""

import asyncio
from pathlib import Path

import pytest

from drills.bombs.box import Box, bombs, box
from drills.bombs.distinct import Times as Schemas
from drills.bombs.distinct import distinct, unlike
from drills.bombs.failures import STAGES, Left, failures
from drills.bombs.failures import Times as Failures
from drills.bombs.twins import twins
from drills.harness.findings import Findings
from drills.harness.storage_locations import Place

pytestmark = pytest.mark.anyio

SECONDS = 280.0


@pytest.mark.shows("H6.4", "H6.9")
async def test_some_of_the_box_is_refused_at_once_and_costs_next_to_nothing() -> None:
    findings = Findings("bombs")
    async with asyncio.timeout(SECONDS):
        await bombs(Box(step=29, tries=6, pdfs=False), findings)
    assert findings.trials > 35
    assert findings.shown == []


def test_the_box_is_large_and_no_two_rows_of_it_have_one_name() -> None:
    names = [bomb.name for bomb in box("/nowhere")]
    assert len(names) > 1_000
    assert len(set(names)) == len(names)


@pytest.mark.shows("H6.8")
async def test_sqlite_and_postgresql_answer_alike(tmp_path: Path, postgres_url: str) -> None:
    findings = Findings("bombs-twins")
    async with asyncio.timeout(SECONDS):
        await twins(37, findings, Place(folder=tmp_path, store=postgres_url))
    assert findings.trials > 30
    assert findings.shown == []


async def test_failures_at_every_stage_leave_no_files_or_tasks_behind() -> None:
    findings = Findings("bombs-failures")
    async with asyncio.timeout(SECONDS):
        await failures(Failures(len(STAGES), 2 * len(STAGES)), findings)
    assert [sentence for sentence in findings.shown if "RSS" not in sentence] == []  # so few say nothing of memory


def test_what_is_left_is_told_by_name() -> None:
    before = Left(files=20, threads=3, tasks=5, rss=100_000_000)
    assert Left(files=20, threads=9, tasks=5, rss=101_000_000).beyond(before) == []
    told = Left(files=21, threads=3, tasks=6, rss=103_000_000).beyond(before)
    assert [sentence.split()[0] for sentence in told] == ["files", "tasks", "RSS"]


async def test_schemas_of_which_no_two_are_alike_leave_nothing_on_the_disk() -> None:
    findings = Findings("bombs-schemas")
    async with asyncio.timeout(SECONDS):
        await distinct(Schemas(100, 200), findings)
    assert findings.shown == []
    assert len({str(unlike(number)) for number in range(1_000)}) == 1_000
