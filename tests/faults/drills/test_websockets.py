"""`make drills ARGS=sockets` in its shortest form: sockets without use, and clients that do not read."""

import asyncio

import pytest

from drills.harness.findings import Findings
from drills.load.websockets import Crowd, sockets

pytestmark = pytest.mark.anyio


async def test_idle_and_unread_sockets_are_small_and_leave_nothing_behind() -> None:
    findings = Findings("sockets")
    async with asyncio.timeout(280):
        await sockets(Crowd(idle=200, silent=10, asked=5, stall_seconds=4.0), findings)
    assert findings.trials == 2 * (200 + 10) + 8 * 5
    assert findings.shown == []
    small = [figure for figure in findings.figures if "KiB" in figure.name]
    assert len(small) == 4
    assert [str(figure) for figure in small if figure.missed] == []
