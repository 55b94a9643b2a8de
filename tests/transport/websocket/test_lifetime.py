"""ConnectionLifetime: the expiry of a WebSocket connection, and the warning before it."""

import asyncio
from time import time

import pytest

from antiphon.transport.websocket.connection import ConnectionLifetime

pytestmark = pytest.mark.anyio


class LifetimeRecorder:
    """Records the calls of a ConnectionLifetime: the time of expiry for a warning, None for the expiry."""

    def __init__(self) -> None:
        self.calls: asyncio.Queue[int | None] = asyncio.Queue()

    def start(self, lifetime: float, warning: float) -> ConnectionLifetime:
        return ConnectionLifetime(lifetime, warning, self.calls.put_nowait, lambda: self.calls.put_nowait(None))

    async def wait_for_call(self) -> int | None:
        async with asyncio.timeout(30):
            return await self.calls.get()


@pytest.mark.shows("F2.1", "F2.2")
async def test_the_warning_precedes_the_expiry() -> None:
    recorder, began = LifetimeRecorder(), time()
    recorder.start(0.02, 0.01)
    expires_at = await recorder.wait_for_call()
    assert expires_at is not None
    assert began - 1 < expires_at < time() + 1  # rounded down to seconds
    assert await recorder.wait_for_call() is None


@pytest.mark.parametrize("warning", [0.0, 0.01, 1.0], ids=["none", "equal to the lifetime", "longer than the lifetime"])
async def test_there_is_no_warning_if_it_is_disabled_or_not_shorter_than_the_lifetime(warning: float) -> None:
    recorder = LifetimeRecorder()
    recorder.start(0.01, warning)
    assert await recorder.wait_for_call() is None
    assert recorder.calls.empty()


async def test_a_stopped_lifetime_calls_nothing() -> None:
    recorder = LifetimeRecorder()
    recorder.start(0.0, 0.0).stop()
    await asyncio.sleep(0)
    assert recorder.calls.empty()
