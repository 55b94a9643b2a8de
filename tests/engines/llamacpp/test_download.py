"""A model that is fetched when it is asked for, without a model: what it is got by is a function here."""

import asyncio
import threading

import pytest

from antiphon.engines.llamacpp.download import Fetching, Logged
from antiphon.errors import StartupError, Unavailable

pytestmark = pytest.mark.anyio


class Shelf:
    """Gives what is asked for when it is let, and counts."""

    def __init__(self) -> None:
        self.let = threading.Event()
        self.asked = 0
        self.got: dict[str, str] = {}
        self.fault: StartupError | None = None
        self.fetching = Fetching(self.get, self.got.__setitem__)

    def get(self, name: str) -> str:
        self.asked += 1
        assert self.let.wait(30)
        if self.fault is not None:
            raise self.fault
        return name.upper()


async def test_many_who_ask_at_once_get_what_was_fetched_once() -> None:
    shelf = Shelf()
    waiting = [asyncio.ensure_future(shelf.fetching.wait("a", 5)) for _ in range(3)]
    await asyncio.sleep(0)
    shelf.let.set()
    async with asyncio.timeout(30):
        assert await asyncio.gather(*waiting) == ["A", "A", "A"]
    assert (shelf.asked, shelf.got) == (1, {"a": "A"})


async def test_it_goes_on_when_those_who_asked_have_left() -> None:
    shelf = Shelf()
    first = asyncio.ensure_future(shelf.fetching.wait("a", 5))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait([first])
    second = asyncio.ensure_future(shelf.fetching.wait("a", 5))
    await asyncio.sleep(0)
    shelf.let.set()
    async with asyncio.timeout(30):
        assert await second == "A"
    assert shelf.asked == 1


async def test_who_has_waited_long_enough_is_told_when_to_come_back() -> None:
    shelf = Shelf()
    with pytest.raises(Unavailable, match="still being fetched") as caught:
        await shelf.fetching.wait("a", 0.01)
    assert caught.value.retry_after == 30
    shelf.let.set()
    async with asyncio.timeout(30):
        assert await shelf.fetching.wait("a", 5) == "A"
    assert shelf.asked == 1


async def test_a_failure_is_told_to_all_who_wait_and_the_next_one_tries_again() -> None:
    shelf = Shelf()
    shelf.fault = StartupError("There is no network.")
    shelf.let.set()
    for _ in range(2):
        with pytest.raises(Unavailable, match=r"There is no network\."):
            await shelf.fetching.wait("a", 5)
    assert shelf.asked == 2
    shelf.fault = None
    assert await shelf.fetching.wait("a", 5) == "A"


async def test_closing_leaves_nobody_waiting() -> None:
    shelf = Shelf()
    waiting = asyncio.ensure_future(shelf.fetching.wait("a", 5))
    await asyncio.sleep(0)
    async with asyncio.timeout(30):
        await shelf.fetching.close()
        await asyncio.wait([waiting])
    assert waiting.cancelled()
    shelf.let.set()


def test_progress_is_told_now_and_then_and_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        tell = Logged()
        for done in (0, 1, 2, 3, 3):
            tell("Fetching x", done, 3)
        tell("Checking x", 1, 1)
    assert caplog.messages == ["Fetching x: 0 %", "Fetching x: 100 %", "Checking x: 100 %"]
