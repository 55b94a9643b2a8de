"""Patience ends its own wait, and takes back its own cancellation only."""

import asyncio
import gc
import weakref
from contextlib import suppress

import pytest

from antiphon.agent import patience as patience_module
from antiphon.agent.patience import Deadlines, Patience
from antiphon.errors import Unavailable

pytestmark = pytest.mark.anyio


async def _interrupted(patience: Patience) -> bool:
    patience.start()
    patience.waits = 1
    patience.end(Unavailable("over"))
    return await _waited(patience)


async def _given_up(patience: Patience) -> bool:
    patience.start()
    patience.allow(0.02)
    patience.waits = 1
    return await _waited(patience)


async def _waited(patience: Patience) -> bool:
    """In vain. Was it the patience that ended it?"""
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        return patience.was_us()
    finally:
        patience.stop()
    return False


async def _cancelled_before() -> bool:
    """A driver that somebody cancelled long ago, and who went on."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(0)
    return await _interrupted(Patience(Deadlines()))


async def test_an_old_cancellation_of_the_driver_is_not_taken_for_another_one_now() -> None:
    async with asyncio.timeout(5):
        assert await asyncio.create_task(_cancelled_before())


async def test_a_cancellation_by_somebody_else_at_the_same_time_is_not_ours() -> None:
    patience = Patience(Deadlines())
    task = asyncio.create_task(_interrupted(patience))
    await asyncio.sleep(0)
    task.cancel()
    async with asyncio.timeout(5):
        assert not await task


async def test_a_driver_that_was_cancelled_is_gone_with_all_it_had_once_nobody_wants_it() -> None:
    """Without a collector of cycles: what a client's connection kept would wait for that."""

    async def drive() -> None:
        patience = Patience(Deadlines())
        patience.start()
        try:
            await asyncio.Event().wait()
        finally:
            patience.stop()

    driver = asyncio.create_task(drive())
    gone = weakref.ref(driver)
    await asyncio.sleep(0)
    driver.cancel()
    await asyncio.wait([driver])
    gc.disable()
    try:
        del driver
        assert gone() is None
    finally:
        gc.enable()


async def test_one_clock_gives_up_on_all_who_look_equally_often() -> None:
    loop, deadlines = asyncio.get_running_loop(), Deadlines(first=0.02, idle=0.02)
    driven = [asyncio.create_task(_given_up(Patience(deadlines))) for _ in range(3)]
    await asyncio.sleep(0)
    assert [pause for where, pause in patience_module._clocks if where is loop] == [0.005]
    async with asyncio.timeout(5):
        assert await asyncio.gather(*driven) == [True, True, True]


async def test_silence_is_counted_from_the_last_word_on_and_not_from_the_look_before_it() -> None:
    patience = Patience(Deadlines(first=4.0, idle=4.0, total=100.0))
    patience.waits = 7
    patience.allow(4.0)  # four looks of a second each
    assert [patience.look(0.0) for _ in range(5)] == [True, True, True, True, False]
