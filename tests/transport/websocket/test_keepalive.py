"""ResponseKeepAlive: when keep-alives are sent, and when not.

Covers `transport/websocket/timers.py`.
"""

import asyncio
from collections.abc import Awaitable

import pytest

from antiphon.protocol.types.events import Event, OutputTextDelta
from antiphon.transport.websocket.timers import ResponseKeepAlive

pytestmark = pytest.mark.anyio

INTERVAL = 0.02


class RecordingWriter:
    """A WebSocketEventWriter that records the keep-alives."""

    def __init__(self, last: Event | None) -> None:
        self.last = last
        self.keepalives: asyncio.Queue[Event | None] = asyncio.Queue()

    def emit(self, events: list[Event]) -> Awaitable[None] | None:
        self.last = events[-1]
        return None

    def send_keepalive(self) -> None:
        self.keepalives.put_nowait(self.last)

    async def end(self) -> None: ...


class FakeSource:
    """Reports whether it waits. `writer`: gets a new event at every poll."""

    def __init__(self, waits: bool, writer: RecordingWriter | None = None) -> None:
        self._waits = waits
        self._writer = writer
        self.polls: asyncio.Queue[None] = asyncio.Queue()

    @property
    def waits(self) -> bool:
        self.polls.put_nowait(None)
        if self._writer is not None:
            self._writer.last = make_delta()
        return self._waits

    async def wait_for_polls(self, times: int) -> None:
        async with asyncio.timeout(30):
            for _ in range(times):
                await self.polls.get()

    async def drive(self, emit: object) -> None: ...

    async def result(self) -> bytes:
        return b""

    def close(self) -> None: ...


def make_delta() -> Event:
    return OutputTextDelta(item_id="msg_1", output_index=0, content_index=0, delta="a")


@pytest.mark.shows("A.46")
async def test_keepalives_repeat_while_the_source_waits() -> None:
    writer = RecordingWriter(last := make_delta())
    began = asyncio.get_running_loop().time()
    with ResponseKeepAlive(FakeSource(waits=True), writer, INTERVAL):
        async with asyncio.timeout(30):
            assert [await writer.keepalives.get(), await writer.keepalives.get()] == [last, last]
    assert asyncio.get_running_loop().time() - began >= 2 * INTERVAL


async def test_no_keepalive_is_sent_while_the_source_does_not_wait() -> None:
    """A client that does not read its events gets no further data."""
    writer, source = RecordingWriter(make_delta()), FakeSource(waits=False)
    with ResponseKeepAlive(source, writer, INTERVAL):
        await source.wait_for_polls(12)
    assert writer.keepalives.empty()


async def test_events_suppress_keepalives() -> None:
    writer = RecordingWriter(make_delta())
    source = FakeSource(waits=True, writer=writer)
    with ResponseKeepAlive(source, writer, INTERVAL):
        await source.wait_for_polls(12)
    assert writer.keepalives.empty()


async def test_no_keepalive_is_sent_after_the_end_or_without_an_interval() -> None:
    writer, source, clock = RecordingWriter(make_delta()), FakeSource(waits=True), FakeSource(waits=True)
    with ResponseKeepAlive(source, writer, INTERVAL):
        """Ends at once."""
    with ResponseKeepAlive(source, writer, 0.0), ResponseKeepAlive(clock, RecordingWriter(None), INTERVAL):
        await clock.wait_for_polls(8)
    assert source.polls.empty()
    assert writer.keepalives.empty()
