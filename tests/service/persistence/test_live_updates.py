"""`retry_unavailable` and `Notifications`."""

import asyncio

import pytest

from antiphon.errors import Unavailable
from antiphon.service.persistence.live_updates import Notifications, retry_unavailable

pytestmark = pytest.mark.anyio


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
            await waiter.wait_for(60.0)
            await third.wait_for(60.0)
            await other.wait_for(0.01)  # returns after its timeout without a notification
        waiter.clear()
        notifications.close()
        async with asyncio.timeout(30):
            await waiter.wait_for(60.0)
    assert not notifications._waiters
