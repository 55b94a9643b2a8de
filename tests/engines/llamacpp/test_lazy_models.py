"""Models that are fetched on first use: the fetcher with a stub loader instead of a real download.

Covers `engines/embedded/base.py`.
"""

import asyncio
import threading

import pytest

from antiphon.engines.embedded.base import ModelFetcher, ProgressLogger
from antiphon.errors import StartupError, Unavailable

pytestmark = pytest.mark.anyio


class StubLoader:
    """Loads when the test allows it, and counts its calls."""

    def __init__(self) -> None:
        self.allowed = threading.Event()
        self.calls = 0
        self.loaded: dict[str, str] = {}
        self.error: StartupError | None = None
        self.fetcher = ModelFetcher(self.load, self.loaded.__setitem__)

    def load(self, name: str) -> str:
        self.calls += 1
        assert self.allowed.wait(30)
        if self.error is not None:
            raise self.error
        return name.upper()


async def test_concurrent_callers_share_one_fetch() -> None:
    loader = StubLoader()
    waiting = [asyncio.ensure_future(loader.fetcher.fetch("a", 5)) for _ in range(3)]
    await asyncio.sleep(0)
    loader.allowed.set()
    async with asyncio.timeout(30):
        assert await asyncio.gather(*waiting) == ["A", "A", "A"]
    assert (loader.calls, loader.loaded) == (1, {"a": "A"})


async def test_a_fetch_continues_after_its_caller_is_cancelled() -> None:
    loader = StubLoader()
    first = asyncio.ensure_future(loader.fetcher.fetch("a", 5))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait([first])
    second = asyncio.ensure_future(loader.fetcher.fetch("a", 5))
    await asyncio.sleep(0)
    loader.allowed.set()
    async with asyncio.timeout(30):
        assert await second == "A"
    assert loader.calls == 1


async def test_a_caller_that_times_out_gets_a_retry_after() -> None:
    loader = StubLoader()
    with pytest.raises(Unavailable, match="still being fetched") as caught:
        await loader.fetcher.fetch("a", 0.01)
    assert caught.value.retry_after == 30
    loader.allowed.set()
    async with asyncio.timeout(30):
        assert await loader.fetcher.fetch("a", 5) == "A"
    assert loader.calls == 1


async def test_a_failure_is_raised_to_the_caller_and_the_next_call_retries() -> None:
    loader = StubLoader()
    loader.error = StartupError("There is no network.")
    loader.allowed.set()
    for _ in range(2):
        with pytest.raises(Unavailable, match=r"There is no network\."):
            await loader.fetcher.fetch("a", 5)
    assert loader.calls == 2
    loader.error = None
    assert await loader.fetcher.fetch("a", 5) == "A"


async def test_closing_cancels_all_waiters() -> None:
    loader = StubLoader()
    waiting = asyncio.ensure_future(loader.fetcher.fetch("a", 5))
    await asyncio.sleep(0)
    async with asyncio.timeout(30):
        await loader.fetcher.close()
        await asyncio.wait([waiting])
    assert waiting.cancelled()
    loader.allowed.set()


def test_progress_is_logged_periodically_and_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        log_progress = ProgressLogger()
        for done in (0, 1, 2, 3, 3):
            log_progress("Fetching x", done, 3)
        log_progress("Checking x", 1, 1)
    assert caplog.messages == ["Fetching x: 0 %", "Fetching x: 100 %", "Checking x: 100 %"]
