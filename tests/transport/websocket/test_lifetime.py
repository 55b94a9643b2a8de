import asyncio
from time import time

import pytest

from antiphon.transport.websocket.timers import Clocks

pytestmark = pytest.mark.anyio


class Heard:
    def __init__(self) -> None:
        self.news: asyncio.Queue[int | None] = asyncio.Queue()

    def clocks(self, lifetime: float, warning: float) -> Clocks:
        return Clocks(lifetime, warning, self.news.put_nowait, lambda: self.news.put_nowait(None))

    async def next(self) -> int | None:
        async with asyncio.timeout(30):
            return await self.news.get()


@pytest.mark.shows("F2.1", "F2.2")
async def test_the_end_is_told_of_before_it_comes() -> None:
    heard, began = Heard(), time()
    heard.clocks(0.02, 0.01)
    expires_at = await heard.next()
    assert expires_at is not None
    assert began - 1 < expires_at < time() + 1  # in whole seconds
    assert await heard.next() is None


@pytest.mark.parametrize("warning", [0.0, 0.01, 1.0], ids=["none", "at once", "before it began"])
async def test_there_is_no_warning_where_none_is_wanted_or_none_is_possible(warning: float) -> None:
    heard = Heard()
    heard.clocks(0.01, warning)
    assert await heard.next() is None
    assert heard.news.empty()


async def test_a_clock_that_was_stopped_is_silent() -> None:
    heard = Heard()
    heard.clocks(0.0, 0.0).stop()
    await asyncio.sleep(0)
    assert heard.news.empty()
