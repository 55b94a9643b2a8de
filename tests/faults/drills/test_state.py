"""The drills of `make drills`, each in its shortest form: whatever happens to a server, what it said stays true."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from drills.harness.findings import Findings
from drills.harness.storage_locations import Place
from drills.state.disconnects import disconnects
from drills.state.idempotency import idempotency
from drills.state.kill9 import Plan, kill9
from drills.state.nth_failure import Way, trial
from drills.state.pairs import pairs
from drills.state.replays import replays
from drills.state.workers import workers
from drills.state.zombie import zombie

pytestmark = pytest.mark.anyio

Drill = Callable[[Findings], Coroutine[Any, Any, None]]
SECONDS = 280.0


@pytest.fixture
def shared(tmp_path: Path, postgres_url: str) -> Place:
    """A database of PostgreSQL."""
    return Place(folder=tmp_path, store=postgres_url)


async def _carried_out(name: str, drill: Drill) -> Findings:
    findings = Findings(name)
    async with asyncio.timeout(SECONDS):
        await drill(findings)
    assert findings.trials
    assert findings.shown == []
    return findings


@pytest.mark.shows("B.3", "B.7", "A1.3")
async def test_nothing_that_was_acknowledged_is_lost_stuck_or_changed_by_a_kill() -> None:
    plans = [Plan(), Plan("store.finish:after:4")]
    await _carried_out("kill9", lambda found: kill9("sqlite", plans, found))


async def test_clients_that_leave_at_the_first_event_leave_nothing_behind() -> None:
    await _carried_out("disconnects", lambda found: disconnects(40, found))


@pytest.mark.shows("A.4", "A.5", "B.5")
async def test_every_replay_is_the_exact_rest_also_after_a_restart() -> None:
    await _carried_out("replays", lambda found: replays("sqlite", 25, found))


@pytest.mark.shows("B.2", "B.5")
async def test_two_servers_on_one_database_are_one(shared: Place) -> None:
    await _carried_out("pairs", lambda found: pairs(shared, 1, found))


@pytest.mark.shows("B.7")
async def test_a_server_that_wakes_up_after_its_lease_changes_nothing(shared: Place) -> None:
    await _carried_out("zombie", lambda found: zombie(shared, 1, found))


@pytest.mark.shows("B.3", "B.7", "H.10")
async def test_workers_that_die_or_are_stopped_lose_nothing() -> None:
    await _carried_out("workers", lambda found: workers("sqlite", 4, found))


@pytest.mark.shows("B.12", "B.13")
async def test_one_key_is_one_run_also_across_a_kill() -> None:
    await _carried_out("idempotency", lambda found: idempotency("sqlite", 2, found))


@pytest.mark.parametrize("way", ["instead", "afterwards"])
async def test_a_store_that_fails_once_breaks_no_promise(way: Way) -> None:
    findings = Findings("nth-failure")
    async with asyncio.timeout(SECONDS):
        for nth in range(3, 100, 11):
            await trial(nth, way, findings)
    assert findings.shown == []
