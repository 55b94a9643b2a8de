"""When silence is broken, and when it is not."""

import asyncio
from collections.abc import Awaitable

import pytest

from antiphon.protocol.types.events import Event, OutputTextDelta
from antiphon.transport.websocket.timers import Silence

pytestmark = pytest.mark.anyio

INTERVAL = 0.02


class Outlet:
    def __init__(self, last: Event | None) -> None:
        self.last = last
        self.nudges: asyncio.Queue[Event | None] = asyncio.Queue()

    def tell(self, events: list[Event]) -> Awaitable[None] | None:
        self.last = events[-1]
        return None

    def nudge(self) -> None:
        self.nudges.put_nowait(self.last)

    async def end(self) -> None: ...


class Source:
    """Says whether it waits. `outlet`: where something was told whenever one looks."""

    def __init__(self, waits: bool, outlet: Outlet | None = None) -> None:
        self._waits = waits
        self._outlet = outlet
        self.looked: asyncio.Queue[None] = asyncio.Queue()

    @property
    def waits(self) -> bool:
        self.looked.put_nowait(None)
        if self._outlet is not None:
            self._outlet.last = delta()
        return self._waits

    async def looks(self, times: int) -> None:
        async with asyncio.timeout(30):
            for _ in range(times):
                await self.looked.get()

    async def drive(self, tell: object) -> None: ...

    async def result(self) -> bytes:
        return b""

    def leave(self) -> None: ...


def delta() -> Event:
    return OutputTextDelta(item_id="msg_1", output_index=0, content_index=0, delta="a")


@pytest.mark.shows("A.46")
async def test_silence_is_broken_again_and_again_while_an_engine_is_waited_for() -> None:
    outlet = Outlet(last := delta())
    began = asyncio.get_running_loop().time()
    with Silence(Source(waits=True), outlet, INTERVAL):
        async with asyncio.timeout(30):
            assert [await outlet.nudges.get(), await outlet.nudges.get()] == [last, last]
    assert asyncio.get_running_loop().time() - began >= 2 * INTERVAL


async def test_it_is_left_alone_while_nobody_else_is_waited_for() -> None:
    """A client that does not read what was told is not told more."""
    outlet, source = Outlet(delta()), Source(waits=False)
    with Silence(source, outlet, INTERVAL):
        await source.looks(12)
    assert outlet.nudges.empty()


async def test_it_is_no_silence_where_something_was_told() -> None:
    outlet = Outlet(delta())
    source = Source(waits=True, outlet=outlet)
    with Silence(source, outlet, INTERVAL):
        await source.looks(12)
    assert outlet.nudges.empty()


async def test_nothing_comes_after_the_end_or_without_an_interval() -> None:
    outlet, source, clock = Outlet(delta()), Source(waits=True), Source(waits=True)
    with Silence(source, outlet, INTERVAL):
        """It ends at once."""
    with Silence(source, outlet, 0.0), Silence(clock, Outlet(None), INTERVAL):
        await clock.looks(8)
    assert source.looked.empty()
    assert outlet.nudges.empty()
