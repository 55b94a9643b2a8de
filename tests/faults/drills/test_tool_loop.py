"""Short runs of the tool loop drills: the effect of a tool happens once, whatever crashes meanwhile, and a credential
reaches only the server that it belongs to.
"""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from drills.harness.findings import Findings
from drills.harness.storage_locations import StorageLocation
from drills.tool_loop.credentials import encode_variants, secret
from drills.tool_loop.kill9 import InterruptionPoint, loop, make_points
from drills.tool_loop.mirror_server import BEHAVIOURS
from drills.tool_loop.zombie import loop_zombie

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

Drill = Callable[[Findings], Coroutine[Any, Any, None]]
SECONDS = 280.0


async def _run_drill(name: str, drill: Drill) -> dict[str, float]:
    findings = Findings(name)
    async with asyncio.timeout(SECONDS):
        await drill(findings)
    assert findings.trials
    assert findings.reported == []
    return {figure.name: figure.value for figure in findings.figures}


@pytest.mark.shows("E.9")
async def test_a_kill_during_a_call_repeats_no_effect() -> None:
    chosen = [InterruptionPoint(name="approved", scene="approved", counter_event="counted", slow_phase="after")]
    figures = await _run_drill("loop", lambda found: loop("sqlite", chosen, found))
    assert figures["effects"] > 0
    assert figures["repeated"] == 0


async def test_a_server_that_lost_its_lease_repeats_no_effect(tmp_path: Path, postgres_url: str) -> None:
    shared, chosen = (
        StorageLocation(folder=tmp_path, store=postgres_url),
        [InterruptionPoint(name="called", counter_event="called", slow_phase="before")],
    )
    figures = await _run_drill("loop-zombie", lambda found: loop_zombie(shared, chosen, found))
    assert figures["repeated"] == 0


@pytest.mark.shows("E.8")
async def test_a_credential_is_found_only_at_its_server() -> None:
    figures = await _run_drill("secret", lambda found: secret("sqlite", found, len(BEHAVIOURS), ("json",)))
    assert figures["responses"] > 0


def test_every_phase_of_a_loop_has_a_kill_point() -> None:
    chosen = make_points(1000)
    assert {point.scene for point in chosen} == {"call", "approved", "asking", "outputs"}
    assert {point.counter_event for point in chosen} >= {"listing", "called", "counted", "answered"}
    assert sum(point.name != "random" for point in chosen) > 50


def test_a_secret_is_recognised_in_every_encoding() -> None:
    encoded = [trace for trace in encode_variants("canary-0123456789") if b"canary" not in trace]
    assert len(encoded) >= 5
