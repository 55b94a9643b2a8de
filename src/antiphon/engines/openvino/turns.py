"""The order in which a model computes what waits for it: short texts first, so that a query does not wait for all files
that are being indexed. A long text waits longer by a time in proportion to its length, but not for ever.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from heapq import heappop, heappush

_SECONDS_PER_TOKEN = 0.01  # a multiple of the time of computing on a slow machine


class Turns:
    """Admits one caller at a time, by length and time of waiting."""

    def __init__(self) -> None:
        self._is_taken = False
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []
        self._count = 0

    @asynccontextmanager
    async def take(self, tokens: int) -> AsyncIterator[None]:
        """Wait until no other caller computes and no shorter text waits; `tokens` is the length of this one."""
        if self._is_taken:
            loop = asyncio.get_running_loop()
            turn = loop.create_future()
            self._count += 1  # futures have no order
            heappush(self._waiting, (loop.time() + tokens * _SECONDS_PER_TOKEN, self._count, turn))
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._pass_on()
                raise
        self._is_taken = True
        try:
            yield
        finally:
            self._pass_on()

    def _pass_on(self) -> None:
        while self._waiting:
            *_, turn = heappop(self._waiting)
            if not turn.done():
                turn.set_result(None)
                return
        self._is_taken = False
