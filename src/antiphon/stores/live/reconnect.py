"""Keeps the notification connection of a live log open: reconnects after each loss, with growing pauses."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import NoReturn

log = logging.getLogger(__name__)

FIRST_PAUSE = 0.05
MAX_PAUSE = 2.0
HEALTHY_SECONDS = 10.0


async def run_with_reconnect(session: Callable[[], Awaitable[None]], errors: tuple[type[Exception], ...]) -> NoReturn:
    """Run sessions one after the other until cancelled; a session ends with one of `errors`.

    An outage is logged once, however long it lasts, and its end once.
    """
    loop = asyncio.get_running_loop()
    pause, warned = FIRST_PAUSE, False
    while True:
        started = loop.time()
        recovery_log = (
            loop.call_later(HEALTHY_SECONDS, log.warning, "Live log notifications are received again.")
            if warned
            else None
        )
        try:
            await session()
        except errors as error:
            if not warned or loop.time() - started > HEALTHY_SECONDS:
                log.warning("Live log notifications are lost until it answers: %s: %s", type(error).__name__, error)
            warned = True
        finally:
            if recovery_log is not None:
                recovery_log.cancel()
        if loop.time() - started > HEALTHY_SECONDS:
            pause = FIRST_PAUSE
        await asyncio.sleep(pause * random.uniform(0.5, 1.0))
        pause = min(pause * 2, MAX_PAUSE)
