"""Words come over a connection that somebody has to keep up: again whenever it is lost, with growing pauses."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import NoReturn

log = logging.getLogger(__name__)

FIRST_PAUSE = 0.05
LONGEST_PAUSE = 2.0
HEALTHY_SECONDS = 10.0


async def again_and_again(session: Callable[[], Awaitable[None]], lost: tuple[type[Exception], ...]) -> NoReturn:
    """Have a session, and another one when it ended in one of the `lost` ways, until cancelled. The log is told once
    that words are lost, however long that takes, and once that they are heard again."""
    clock = asyncio.get_running_loop()
    pause, told = FIRST_PAUSE, False
    while True:
        begun = clock.time()
        back = clock.call_later(HEALTHY_SECONDS, log.warning, "The live log's words are heard again.") if told else None
        try:
            await session()
        except lost as error:
            if not told or clock.time() - begun > HEALTHY_SECONDS:
                log.warning("The live log's words are lost, until it answers: %s: %s", type(error).__name__, error)
            told = True
        finally:
            if back is not None:
                back.cancel()
        if clock.time() - begun > HEALTHY_SECONDS:
            pause = FIRST_PAUSE
        await asyncio.sleep(pause * random.uniform(0.5, 1.0))
        pause = min(pause * 2, LONGEST_PAUSE)
