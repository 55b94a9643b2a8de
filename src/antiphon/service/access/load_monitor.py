"""The server looks at itself, a few times a second: memory, how late the event loop is, who waits, and free disk.

What follows from it is core/load_shedding.py's to say: background work is refused first, then all new work, until it is
over. What runs goes on.
"""

import asyncio
import ctypes
import logging
import os
from collections import deque
from collections.abc import Callable
from pathlib import Path

from antiphon.config.rate_limits import Shedding as Bounds
from antiphon.core.load_shedding import Mark, Shedding, Stage
from antiphon.errors import Unavailable
from antiphon.observe.gauges import resident_bytes

log = logging.getLogger(__name__)

_LOOK = 0.1  # seconds between two looks
_LATER = 2.0  # seconds after which it may be over
_LASTING = 3  # looks at which the loop has to be late: one that was held up once is not slow
_FIRST, _FULL = 0.85, 0.95  # of the memory there is
_CROWDED = 0.8  # of the queue
_TRIM = 10  # looks between two attempts to give memory back to the system
_WORDS = {
    "memory": "it has too little memory left",
    "lag": "it is too slow to answer",
    "queue": "too many requests wait",
    "disk": "its disk is nearly full",
}
_MARKS = {
    "memory": Mark(_FIRST / _FULL),
    "lag": Mark(0.5),
    "queue": Mark(1.0, None),
    "disk": Mark(0.5),
}


class Pressure:
    """`waiting`: the share of the queue that is taken. `folder`: where the store's file is, if it has one."""

    def __init__(self, bounds: Bounds, waiting: Callable[[], float], folder: Path | None = None) -> None:
        self._bounds = bounds
        self._waiting = waiting
        self._folder = folder
        self._shedding = Shedding(_MARKS)
        self._late: deque[float] = deque([0.0] * _LASTING, _LASTING)  # seconds, at the last looks
        self._looks = 0
        self.loads: dict[str, float] = {}
        self.full = False  # nothing new is taken

    @property
    def stage(self) -> Stage:
        return self._shedding.stage

    @property
    def reason(self) -> str:
        """Of the stage, as a sentence; nothing if all is taken."""
        if self.stage is Stage.ALL:
            return ""
        what = "no background work" if self.stage is Stage.NO_BACKGROUND else "no new work"
        return f"The server takes {what} just now: {', '.join(_WORDS[cause] for cause in self._shedding.causes)}."

    def refusal(self) -> Unavailable:
        return Unavailable(self.reason, retry_after=_LATER)

    def check_background(self) -> None:
        """Raises Unavailable while none is taken."""
        if self.stage is not Stage.ALL:
            raise self.refusal()

    async def attend(self) -> None:
        """For ever."""
        now = asyncio.get_running_loop().time
        while True:
            before = now()
            await asyncio.sleep(_LOOK)
            self.note(now() - before - _LOOK, now())
            if "memory" in self._shedding.causes and self._looks % _TRIM == 0:
                await asyncio.to_thread(_give_back)

    def note(self, late: float, now: float) -> None:
        """The loop was so late; everything else is looked at."""
        self._looks += 1
        self._late.append(late)
        self.loads = self._measured()
        before = self._shedding.stage
        self._shedding.note(self.loads, now)
        self.full = self._shedding.stage is Stage.NOTHING_NEW
        if self._shedding.stage is not before:
            log.warning("%s", self.reason or "The server takes all work again.")

    def _measured(self) -> dict[str, float]:
        bounds, loads = self._bounds, {"queue": self._waiting() / _CROWDED}
        if bounds.memory:
            loads["memory"] = (resident_bytes() or 0) / (bounds.memory * _FULL)
        if bounds.lag:
            loads["lag"] = min(self._late) / bounds.lag
        if bounds.free_disk and self._folder is not None and (free := _free(self._folder)) is not None:
            loads["disk"] = bounds.free_disk / max(free, 1)
        return loads


def store_folder(place: str) -> Path | None:
    """Where the file of a store is, if it has one."""
    return None if place == "memory" or "://" in place else Path(place).absolute().parent


def _free(folder: Path) -> int | None:
    try:
        found = os.statvfs(folder)
    except OSError:  # it is not there yet, or any more: the store says so
        return None
    return found.f_bavail * found.f_frsize


def _give_back() -> None:
    """What was freed is the allocator's until it is asked for it: without this, memory never seems to be free again."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # GNU's alone
    if trim is not None:
        trim(0)
