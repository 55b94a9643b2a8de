"""Patience ends its own wait, and takes back its own cancellation only."""

import asyncio
import gc
import weakref
from contextlib import suppress

import pytest

from antiphon.agent import timeouts as patience_module
from antiphon.agent.timeouts import Deadlines, Patience
from antiphon.errors import EngineFailed, Unavailable

pytestmark = pytest.mark.anyio


async def _interrupted(patience: Patience) -> bool:
    """Was it the patience that ended it?"""
    try:
        with patience:
            patience.waits = 1
            patience.end(Unavailable("over"))
            await asyncio.Event().wait()
    except Unavailable:
        return True
    except asyncio.CancelledError:
        pass
    return False


async def _silent(patience: Patience) -> None:
    with patience:
        patience.allow(0.02)
        patience.waits = 1
        await asyncio.Event().wait()


async def _cancelled_before() -> bool:
    """A driver that somebody cancelled long ago, and who went on."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(0)
    return await _interrupted(Patience(Deadlines()))


async def test_an_old_cancellation_of_the_driver_is_not_taken_for_another_one_now() -> None:
    async with asyncio.timeout(30):
        assert await asyncio.create_task(_cancelled_before())


async def test_a_cancellation_by_somebody_else_at_the_same_time_is_not_ours() -> None:
    patience = Patience(Deadlines())
    task = asyncio.create_task(_interrupted(patience))
    await asyncio.sleep(0)
    task.cancel()
    async with asyncio.timeout(30):
        assert not await task


async def test_what_was_over_before_is_not_waited_for() -> None:
    patience, waited = Patience(Deadlines()), False
    patience.end(Unavailable("over"))
    with pytest.raises(Unavailable), patience:
        waited = True
    assert not waited


async def test_a_driver_that_was_cancelled_is_gone_with_all_it_had_once_nobody_wants_it() -> None:
    """Without a collector of cycles: what a client's connection kept would wait for that."""

    async def drive() -> None:
        with Patience(Deadlines()):
            await asyncio.Event().wait()

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


async def test_one_clock_gives_up_on_all_with_the_same_deadlines() -> None:
    loop, deadlines = asyncio.get_running_loop(), Deadlines(first=0.02, idle=0.02)
    driven = [asyncio.create_task(_silent(Patience(deadlines))) for _ in range(3)]
    await asyncio.sleep(0)
    assert [known for where, known in patience_module._clocks if where is loop] == [deadlines]
    async with asyncio.timeout(30):
        ends = await asyncio.gather(*driven, return_exceptions=True)
    assert [type(end) for end in ends] == [EngineFailed, EngineFailed, EngineFailed]


async def test_silence_is_counted_from_the_last_word_on_and_not_from_the_look_before_it() -> None:
    patience = Patience(Deadlines(first=4.0, idle=4.0, total=100.0))
    patience.waits = 7
    patience.allow(4.0)  # four looks of a second each
    assert [patience.look(now=0.0, pause=1.0) for _ in range(5)] == [True, True, True, True, False]
