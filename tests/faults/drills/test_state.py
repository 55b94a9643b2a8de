"""Short runs of the drills of stored state: whatever happens to a server, acknowledged responses stay as they are."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from drills.harness.findings import Findings
from drills.harness.storage_locations import StorageLocation
from drills.state.disconnects import disconnects
from drills.state.files import files
from drills.state.idempotency import idempotency
from drills.state.kill9 import KillPlan, kill9
from drills.state.nth_failure import FailureMode, run_trial
from drills.state.pairs import pairs
from drills.state.replays import replays
from drills.state.workers import workers
from drills.state.zombie import zombie

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

Drill = Callable[[Findings], Coroutine[Any, Any, None]]
SECONDS = 280.0


@pytest.fixture
def postgres_location(tmp_path: Path, postgres_url: str) -> StorageLocation:
    """The location of a PostgreSQL database."""
    return StorageLocation(folder=tmp_path, store=postgres_url)


async def _run_drill(name: str, drill: Drill) -> Findings:
    findings = Findings(name)
    async with asyncio.timeout(SECONDS):
        await drill(findings)
    assert findings.trials
    assert findings.reported == []
    return findings


@pytest.mark.shows("B.3", "B.7", "A1.3")
async def test_no_acknowledged_response_is_lost_stuck_or_changed_by_a_kill() -> None:
    plans = [KillPlan(), KillPlan("store.finish:after:4")]
    findings = await _run_drill("kill9", lambda found: kill9("sqlite", plans, found))
    findings.check_figures()
    assert findings.reported == []


async def test_a_kill_loses_no_acknowledged_file_and_leaves_no_content_behind() -> None:
    points = ["", "store.add_file:before:3", "store.complete_upload:after:1", "store.delete_file:after:1"]
    findings = await _run_drill("files", lambda found: files("sqlite", points, found))
    assert findings.figures[0].value > 0  # content without a row was found, and deleted


async def test_disconnects_at_the_first_event_leak_nothing() -> None:
    await _run_drill("disconnects", lambda found: disconnects(40, found))


@pytest.mark.shows("A.4", "A.5", "B.5")
async def test_every_replay_is_the_exact_remainder_even_after_a_restart() -> None:
    await _run_drill("replays", lambda found: replays("sqlite", 25, found))


@pytest.mark.shows("B.2", "B.5")
async def test_two_servers_on_one_database_act_as_one(postgres_location: StorageLocation) -> None:
    await _run_drill("pairs", lambda found: pairs(postgres_location, 1, found))


@pytest.mark.shows("B.7")
async def test_a_server_that_resumes_after_its_lease_expired_changes_nothing(
    postgres_location: StorageLocation,
) -> None:
    await _run_drill("zombie", lambda found: zombie(postgres_location, 2, found))


@pytest.mark.shows("B.3", "B.7", "H.10")
async def test_killed_and_stopped_workers_lose_nothing() -> None:
    await _run_drill("workers", lambda found: workers("sqlite", 4, found))


@pytest.mark.shows("B.12", "B.13")
async def test_one_idempotency_key_is_one_run_even_across_a_kill() -> None:
    await _run_drill("idempotency", lambda found: idempotency("sqlite", 2, found))


@pytest.mark.parametrize("mode", ["instead", "afterwards"])
async def test_a_single_store_failure_violates_no_guarantee(mode: FailureMode) -> None:
    findings = Findings("nth-failure")
    async with asyncio.timeout(SECONDS):
        for nth in range(3, 100, 11):
            await run_trial(nth, mode, findings)
    assert findings.reported == []
