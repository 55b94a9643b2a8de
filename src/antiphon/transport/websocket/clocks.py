"""How long a connection may live, and when it is told that its end is near: two timers, and nothing else."""

import asyncio
from collections.abc import Callable
from time import time


class Clocks:
    """`warning`: seconds before the end of the `lifetime` at which `warn` is told that moment; 0: never."""

    __slots__ = ("_timers",)

    def __init__(
        self, lifetime: float, warning: float, warn: Callable[[int], None], expire: Callable[[], None]
    ) -> None:
        loop = asyncio.get_running_loop()
        self._timers = [loop.call_later(lifetime, expire)]
        if 0 < warning < lifetime:
            self._timers.append(loop.call_later(lifetime - warning, warn, int(time() + lifetime)))

    def stop(self) -> None:
        for timer in self._timers:
            timer.cancel()
