"""Bodies of MCP servers, as they are read."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from antiphon.egress.mcp_transport import _MeteredStream

pytestmark = pytest.mark.anyio


async def test_a_body_that_arrives_without_pause_leaves_turns_to_other_tasks() -> None:
    turns = 0

    async def arrive() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b"x"

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(count_turns())
    assert [part async for part in _MeteredStream(arrive(), None, is_event_stream=False)] == [b"x"] * 100
    other.cancel()
    assert turns > 50
