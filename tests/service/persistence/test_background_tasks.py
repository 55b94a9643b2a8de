"""`BackgroundTasks`, `retry_unavailable` and `Notifications`.

Covers `service/persistence/live_updates.py` and `service/persistence/live_updates.py`.
"""

import asyncio

import pytest

from antiphon.errors import Unavailable
from antiphon.service.persistence.background_tasks import BackgroundTasks
from antiphon.service.persistence.live_updates import Notifications, retry_unavailable

pytestmark = pytest.mark.anyio


async def test_a_failing_task_is_logged_and_does_not_affect_others(caplog: pytest.LogCaptureFixture) -> None:
    tasks, go_on, done = BackgroundTasks(), asyncio.Event(), asyncio.Event()

    async def broken() -> None:
        raise ZeroDivisionError("secret")

    async def healthy() -> None:
        await go_on.wait()
        done.set()

    tasks.start(broken())
    tasks.start(healthy())
    for _ in range(3):
        await asyncio.sleep(0)
    assert len(tasks) == 1
    assert "secret" in caplog.text
    go_on.set()
    await tasks.wait_all()
    assert done.is_set()


async def test_closing_waits_for_the_grace_period_and_then_cancels_tasks() -> None:
    tasks, ended = BackgroundTasks(), []

    async def work(name: str, seconds: float) -> None:
        try:
            await asyncio.sleep(seconds)
            ended.append(name)
        except asyncio.CancelledError:
            ended.append(f"{name} cancelled")
            raise

    tasks.start(work("short", 0.0))
    tasks.start(work("long", 60.0))
    async with asyncio.timeout(30):
        await tasks.close(grace=0.05)
    assert ended == ["short", "long cancelled"]
    assert len(tasks) == 0


async def test_retry_unavailable_returns_the_first_result() -> None:
    attempts = 0

    async def operation() -> str:
        nonlocal attempts
        attempts += 1
        if attempts < 3:
            raise Unavailable("Not yet.")
        return "yes"

    async with asyncio.timeout(30):
        assert await retry_unavailable(operation, 5.0) == "yes"
    assert attempts == 3


async def test_retry_unavailable_gives_up_after_its_timeout_and_tries_at_least_once() -> None:
    attempts = 0

    async def operation() -> None:
        nonlocal attempts
        attempts += 1
        raise Unavailable("No.")

    with pytest.raises(Unavailable):
        await retry_unavailable(operation, 0.0)
    assert attempts == 1
    for seconds in (0.05, 1.0, 5.0):  # a busy machine may not manage a second attempt within the first timeout
        before = attempts
        async with asyncio.timeout(30):
            with pytest.raises(Unavailable):
                await retry_unavailable(operation, seconds)
        if attempts > before + 1:
            return
    raise AssertionError("The operation was attempted only once in each timeout.")


async def test_a_notification_wakes_its_waiters_and_other_waits_time_out() -> None:
    notifications = Notifications()
    with (
        notifications.subscribe("a") as waiter,
        notifications.subscribe("b") as other,
        notifications.subscribe("a") as third,
    ):
        notifications.notify("a")
        async with asyncio.timeout(30):
            await waiter.wait(60.0)
            await third.wait(60.0)
            await other.wait(0.01)  # returns after its timeout without a notification
        waiter.clear()
        notifications.close()
        async with asyncio.timeout(30):
            await waiter.wait(60.0)
    assert not notifications._waiters
