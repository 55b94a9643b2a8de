"""The drills of loops and their secrets in their shortest form: a tool's effect is had once, whatever dies meanwhile,
and a credential is known to nobody but the server it is for."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from drills.harness.findings import Findings
from drills.harness.storage_locations import Place
from drills.tool_loop.credentials import secret, traces
from drills.tool_loop.kill9 import Point, loop, points
from drills.tool_loop.mirror_server import DEEDS
from drills.tool_loop.zombie import loop_zombie

pytestmark = pytest.mark.anyio

Drill = Callable[[Findings], Coroutine[Any, Any, None]]
SECONDS = 280.0


async def _carried_out(name: str, drill: Drill) -> dict[str, float]:
    findings = Findings(name)
    async with asyncio.timeout(SECONDS):
        await drill(findings)
    assert findings.trials
    assert findings.shown == []
    return {figure.name: figure.value for figure in findings.figures}


@pytest.mark.shows("E.9")
async def test_a_kill_in_a_call_repeats_no_effect() -> None:
    chosen = [Point(name="approved", scene="approved", seen="counted", slow="after")]
    figures = await _carried_out("loop", lambda found: loop("sqlite", chosen, found))
    assert figures["effects"] > 0
    assert figures["repeated"] == 0


async def test_a_server_that_slept_through_its_lease_repeats_no_effect(tmp_path: Path, postgres_url: str) -> None:
    shared, chosen = Place(folder=tmp_path, store=postgres_url), [Point(name="called", seen="called", slow="before")]
    figures = await _carried_out("loop-zombie", lambda found: loop_zombie(shared, chosen, found))
    assert figures["repeated"] == 0


@pytest.mark.shows("E.8")
async def test_a_credential_is_found_nowhere_but_at_its_server() -> None:
    figures = await _carried_out("secret", lambda found: secret("sqlite", found, len(DEEDS), ("json",)))
    assert figures["responses"] > 0


def test_every_phase_of_a_loop_has_its_point() -> None:
    chosen = points(1000)
    assert {point.scene for point in chosen} == {"call", "approved", "asking", "outputs"}
    assert {point.seen for point in chosen} >= {"listing", "called", "counted", "answered"}
    assert sum(point.name != "random" for point in chosen) > 50


def test_a_secret_is_recognised_in_every_disguise() -> None:
    packed = [trace for trace in traces("canary-0123456789") if b"canary" not in trace]
    assert len(packed) >= 5
