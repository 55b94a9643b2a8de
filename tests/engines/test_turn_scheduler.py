"""Streams that share an event loop: the time that they take in one iteration is bounded, and nobody starves."""

import asyncio
from collections.abc import Callable

import pytest

from antiphon.engines.turn_scheduler import BUDGET_SECONDS, TurnScheduler, get_scheduler

pytestmark = pytest.mark.anyio


@pytest.fixture
async def scheduler() -> TurnScheduler:
    return TurnScheduler(asyncio.get_running_loop())


def make_step(scheduler: TurnScheduler, log: list[str], name: str, share: float = 0.0) -> Callable[[], None]:
    """Make a step that takes a share of the budget."""

    def step() -> None:
        log.append(name)
        scheduler.spend(share * BUDGET_SECONDS)

    return step


async def test_data_is_processed_at_once_until_the_budget_is_used_up(scheduler: TurnScheduler) -> None:
    scheduler.spend(0.6 * BUDGET_SECONDS)
    assert scheduler.is_free
    scheduler.spend(0.6 * BUDGET_SECONDS)
    assert not scheduler.is_free


async def test_the_next_iteration_has_a_new_budget(scheduler: TurnScheduler) -> None:
    scheduler.spend(BUDGET_SECONDS)
    await asyncio.sleep(0)
    assert scheduler.is_free


async def test_an_iteration_ends_when_its_budget_is_used_up(scheduler: TurnScheduler) -> None:
    log: list[str] = []
    for name in ("a", "b", "c"):
        scheduler.enqueue(make_step(scheduler, log, name, share=0.5))
    await asyncio.sleep(0)
    assert log == ["a", "b"]
    assert not scheduler.is_free
    await asyncio.sleep(0)
    assert log == ["a", "b", "c"]
    assert scheduler.is_free


async def test_callbacks_of_others_run_between_two_turns(scheduler: TurnScheduler) -> None:
    log: list[str] = []
    for name in ("a", "b"):
        scheduler.enqueue(make_step(scheduler, log, name, share=1.0))
    asyncio.get_running_loop().call_soon(log.append, "request")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert log == ["a", "request", "b"]


async def test_a_stream_that_queues_again_is_behind_the_others(scheduler: TurnScheduler) -> None:
    log: list[str] = []

    def step_twice() -> None:
        make_step(scheduler, log, "a1")()
        scheduler.enqueue(make_step(scheduler, log, "a2"))

    scheduler.enqueue(step_twice)
    scheduler.enqueue(make_step(scheduler, log, "b"))
    await asyncio.sleep(0)
    assert log == ["a1", "b", "a2"]


async def test_all_streams_of_a_loop_share_one_scheduler() -> None:
    loop = asyncio.get_running_loop()
    assert get_scheduler(loop) is get_scheduler(loop)
