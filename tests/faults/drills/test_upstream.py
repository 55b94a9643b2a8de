"""A short run of the drill of the hostile upstream."""

import asyncio

import pytest

from drills.engines.event_mutations import MUTATIONS
from drills.engines.hostile_upstream import DefectLog, HostileUpstream
from drills.engines.http_framing import FRAMINGS
from drills.engines.playbook import has_proper_end, make_play
from drills.engines.responses_judge import FAILED
from drills.engines.upstream import UpstreamDrill
from drills.harness.findings import Findings
from tests.engines.http.stubs.recorded_streams import RECORDED_STREAMS

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

TRIALS = 250


@pytest.mark.shows("C.28")
async def test_hostile_responses_end_in_time_and_equally_for_streams_and_json() -> None:
    hostile, findings = HostileUpstream(), Findings("upstream")
    with DefectLog() as defects:
        async with (
            asyncio.timeout(280),
            hostile.run_servers({wire.kind for wire in RECORDED_STREAMS.values()}) as clients,
        ):
            await UpstreamDrill(hostile, clients, findings).play_all(TRIALS)
    assert (findings.reported, defects.seen, hostile.visits) == ([], [], 0)
    fates = {figure.name: figure.value for figure in findings.figures}
    assert fates["completed"] + fates.get("incomplete", 0) > TRIALS / 10
    assert fates[FAILED] > TRIALS / 3


async def test_an_unmodified_stream_completes() -> None:
    for number in range(2000):
        one = make_play(number)
        if not one.changes:
            assert one.proper_end
            assert one.may_complete
            break
    assert all(has_proper_end(wire.body) for wire in RECORDED_STREAMS.values())


def test_every_mutation_occurs_and_is_reproducible() -> None:
    plays = [make_play(number) for number in range(1200)]
    mutations = {mutation for one in plays for mutation in one.changes.split()}
    assert mutations >= {change.__name__ for change in MUTATIONS} | {head.__name__ for head in FRAMINGS}
    assert mutations >= {"giant", "bytes", "gzip", "frames", "returns", "close", "reset", "silent"}
    assert [make_play(number).pieces for number in (3, 33, 333)] == [plays[number].pieces for number in (3, 33, 333)]
