"""`make drills ARGS=fuzz` in its shortest form: what clients sent, changed in a thousand ways, breaks nothing."""

import asyncio

import pytest

from drills.fuzz.bodies import Bodies, recorded
from drills.fuzz.drill import Amount, fuzz
from drills.fuzz.openapi import schemas
from drills.harness.findings import Findings
from tests.support.server_process import serving

pytestmark = pytest.mark.anyio
MUTATIONS = 1_000


async def test_no_change_of_what_clients_send_is_a_failure_of_the_server() -> None:
    findings = Findings("fuzz")
    async with asyncio.timeout(280):
        await fuzz("sqlite", Amount(MUTATIONS, 0), findings)
    assert findings.trials == MUTATIONS
    assert findings.shown == []


async def test_what_the_document_says_of_a_path_is_so() -> None:
    findings = Findings("fuzz")
    with serving("--engine", "fake", "--store", "memory") as live:
        async with asyncio.timeout(280):
            await schemas(live.port, 3, findings, "/v1/detokenize")
    assert findings.trials > 10
    assert findings.shown == []


def test_a_number_says_what_is_sent() -> None:
    one, other = Bodies([*recorded()]), Bodies([*recorded()])
    sent = [one.sent(number, {}) for number in range(300)]
    assert sent == [other.sent(number, {}) for number in range(300)]
    assert len({each.body for each in sent}) > 200
    assert {each.by_socket for each in sent} == {True, False}
