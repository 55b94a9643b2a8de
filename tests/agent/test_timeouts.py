"""`Watchdog` aborts its own wait, and undoes only its own cancellation of the driver."""

import asyncio
import gc
import weakref
from contextlib import suppress

import pytest

from antiphon.agent import timeouts as patience_module
from antiphon.agent.timeouts import Timeouts, Watchdog
from antiphon.errors import EngineFailed, Unavailable

pytestmark = pytest.mark.anyio


async def _abort_wait(watchdog: Watchdog) -> bool:
    """Abort a wait; return whether the watchdog raised its error."""
    try:
        with watchdog:
            watchdog.wait_number = 1
            watchdog.abort(Unavailable("over"))
            await asyncio.Event().wait()
    except Unavailable:
        return True
    except asyncio.CancelledError:
        pass
    return False


async def _wait_without_data(watchdog: Watchdog) -> None:
    with watchdog:
        watchdog.set_silence_limit(0.02)
        watchdog.wait_number = 1
        await asyncio.Event().wait()


async def _abort_after_cancellation() -> bool:
    """Abort a wait in a task that was cancelled earlier and suppressed it."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(0)
    return await _abort_wait(Watchdog(Timeouts()))


async def test_an_earlier_cancellation_of_the_driver_is_ignored() -> None:
    async with asyncio.timeout(30):
        assert await asyncio.create_task(_abort_after_cancellation())


async def test_a_concurrent_external_cancellation_is_not_undone() -> None:
    watchdog = Watchdog(Timeouts())
    task = asyncio.create_task(_abort_wait(watchdog))
    await asyncio.sleep(0)
    task.cancel()
    async with asyncio.timeout(30):
        assert not await task


async def test_entering_an_aborted_watchdog_raises_its_error() -> None:
    watchdog, waited = Watchdog(Timeouts()), False
    watchdog.abort(Unavailable("over"))
    with pytest.raises(Unavailable), watchdog:
        waited = True
    assert not waited


async def test_a_cancelled_driver_is_freed_without_the_garbage_collector() -> None:
    """Otherwise everything that the client's connection references would wait for the cycle collector."""

    async def drive() -> None:
        with Watchdog(Timeouts()):
            await asyncio.Event().wait()

    driver = asyncio.create_task(drive())
    reference = weakref.ref(driver)
    await asyncio.sleep(0)
    driver.cancel()
    await asyncio.wait([driver])
    gc.disable()
    try:
        del driver
        assert reference() is None
    finally:
        gc.enable()


async def test_one_timer_serves_all_watchdogs_with_the_same_timeouts() -> None:
    loop, timeouts = asyncio.get_running_loop(), Timeouts(first=0.02, idle=0.02)
    before = set(patience_module._timers)  # of earlier tests on the same event loop
    tasks = [asyncio.create_task(_wait_without_data(Watchdog(timeouts))) for _ in range(3)]
    await asyncio.sleep(0)
    assert set(patience_module._timers) - before == {(loop, timeouts)}
    async with asyncio.timeout(30):
        errors = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(error) for error in errors] == [EngineFailed, EngineFailed, EngineFailed]


async def test_silence_is_counted_from_the_last_chunk_and_not_from_the_tick_before_it() -> None:
    watchdog = Watchdog(Timeouts(first=4.0, idle=4.0, total=100.0))
    watchdog.wait_number = 7
    watchdog.set_silence_limit(4.0)  # four ticks of one second each
    assert [watchdog.tick(now=0.0, interval=1.0) for _ in range(5)] == [True, True, True, True, False]
