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
    """Have a session, and another one when it ended in one of the `lost` ways, until cancelled."""
    clock = asyncio.get_running_loop()
    pause = FIRST_PAUSE
    while True:
        begun = clock.time()
        try:
            await session()
        except lost as error:
            log.warning("the live log's words are lost for a moment: %s: %s", type(error).__name__, error)
        if clock.time() - begun > HEALTHY_SECONDS:
            pause = FIRST_PAUSE
        await asyncio.sleep(pause * random.uniform(0.5, 1.0))
        pause = min(pause * 2, LONGEST_PAUSE)
