"""A short run of `make drills ARGS=sockets`: idle WebSockets, and clients that do not read."""

import asyncio

import pytest

from drills.harness.findings import Findings
from drills.load.websockets import SocketLoad, sockets

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.quiet_cores]


async def test_idle_and_unread_websockets_use_little_memory_and_leak_nothing() -> None:
    findings = Findings("sockets")
    async with asyncio.timeout(280):
        await sockets(SocketLoad(idle=200, unreading=10, requests=5, stall_seconds=4.0), findings)
    assert findings.trials == 4 * (200 + 10) + 8 * 5
    assert findings.reported == []
    small = [figure for figure in findings.figures if "KiB" in figure.name]
    assert len(small) == 4
    assert [figure.excess for figure in small if figure.excess] == []
