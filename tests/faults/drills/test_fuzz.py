"""A short run of `make drills ARGS=fuzz`: a thousand mutations of recorded client requests cause no server error."""

import asyncio

import pytest

from drills.fuzz.bodies import RequestMutator, load_recordings
from drills.fuzz.drill import FuzzAmount, fuzz
from drills.fuzz.openapi import run_schemathesis
from drills.harness.findings import Findings
from tests.support.server_process import run_server

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
MUTATIONS = 1_000


async def test_no_mutated_request_causes_a_server_error() -> None:
    findings = Findings("fuzz")
    async with asyncio.timeout(280):
        await fuzz("sqlite", FuzzAmount(MUTATIONS, 0), findings)
    assert findings.trials == MUTATIONS
    assert findings.reported == []


async def test_a_path_behaves_as_its_openapi_schema_says() -> None:
    findings = Findings("fuzz")
    with run_server("--engine", "fake", "--store", "memory") as live:
        async with asyncio.timeout(280):
            await run_schemathesis(live.port, 3, findings, "/v1/detokenize")
    assert findings.trials > 10
    assert findings.reported == []


def test_the_number_of_a_mutation_determines_its_request() -> None:
    one, other = RequestMutator([*load_recordings()]), RequestMutator([*load_recordings()])
    sent = [one.mutate(number, {}) for number in range(300)]
    assert sent == [other.mutate(number, {}) for number in range(300)]
    assert len({each.body for each in sent}) > 200
    assert {each.by_socket for each in sent} == {True, False}
