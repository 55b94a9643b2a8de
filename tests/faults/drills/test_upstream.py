"""The drill of the hostile upstream, in its shortest form."""

import asyncio

import pytest

from drills.engines.event_mutations import CHANGES
from drills.engines.hostile_upstream import Defects, Upstream
from drills.engines.http_framing import HEADS
from drills.engines.playbook import play, sounds
from drills.engines.responses_judge import FAILED
from drills.engines.upstream import Drill
from drills.harness.findings import Findings
from tests.engines.http.stubs.recorded_streams import WIRES

pytestmark = pytest.mark.anyio

TRIALS = 250


@pytest.mark.shows("C.28")
async def test_whatever_an_engine_sends_ends_in_time_and_the_same_for_a_stream_and_for_json() -> None:
    hostile, findings = Upstream(), Findings("upstream")
    with Defects() as defects:
        async with asyncio.timeout(280), hostile.fronted({wire.kind for wire in WIRES.values()}) as clients:
            await Drill(hostile, clients, findings).play_all(TRIALS)
    assert (findings.shown, defects.seen, hostile.visits) == ([], [], 0)
    fates = {figure.name: figure.value for figure in findings.figures}
    assert fates["completed"] + fates.get("incomplete", 0) > TRIALS / 10
    assert fates[FAILED] > TRIALS / 3


async def test_a_stream_that_was_left_alone_ends_well() -> None:
    for number in range(2000):
        one = play(number)
        if not one.what:
            assert one.sound
            assert one.may_end_well
            break
    assert all(sounds(wire.body) for wire in WIRES.values())


def test_every_way_to_harm_a_stream_occurs_and_the_same_every_time() -> None:
    plays = [play(number) for number in range(1200)]
    words = {word for one in plays for word in one.what.split()}
    assert words >= {change.__name__ for change in CHANGES} | {head.__name__ for head in HEADS}
    assert words >= {"giant", "bytes", "gzip", "frames", "returns", "close", "reset", "silent"}
    assert [play(number).pieces for number in (3, 33, 333)] == [plays[number].pieces for number in (3, 33, 333)]
