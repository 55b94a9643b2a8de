"""How late the event loop of a server under drill is: a clock inside it, which writes down every tick that came late.

Wall time alone would blame a server for what else the machine does. What the process itself worked meanwhile is noted
beside it, and the smaller of the two is what the server has to answer for. Another thread looks at who holds it up.
"""

import asyncio
import sys
import threading
import time
import traceback
from pathlib import Path

import msgspec
from msgspec import Struct

_TICK = 0.005  # seconds
_WORTH = 0.01  # seconds from which on it is written down
_LOOK = 0.02  # seconds of silence after which it is looked at who holds it up
_FRAMES = 6


class Late(Struct, frozen=True, array_like=True):
    """Seconds."""

    at: float  # of the monotonic clock, which all processes share
    wall: float
    worked: float
    where: list[str]  # what the loop was at, the innermost last; empty if nobody looked

    @property
    def own(self) -> float:
        return min(self.wall, self.worked)


class Watch:
    """Of the loop that runs in this thread."""

    def __init__(self, path: Path) -> None:
        self._loop = asyncio.get_running_loop()
        self._file = path.open("ab", buffering=0)
        self._thread = threading.get_ident()
        self._where: list[str] = []
        self._due, self._worked = time.monotonic(), time.process_time()

    def begin(self) -> None:
        """As long as the loop runs."""
        self._tick()
        threading.Thread(target=self._look, daemon=True).start()

    def _tick(self) -> None:
        now, work = time.monotonic(), time.process_time()
        if now - self._due > _WORTH:
            told = Late(now, now - self._due, work - self._worked, self._where)
            self._file.write(msgspec.json.encode(told) + b"\n")
        self._due, self._worked, self._where = now + _TICK, work, []
        self._loop.call_later(_TICK, self._tick)

    def _look(self) -> None:
        while True:
            time.sleep(_LOOK / 2)
            if (
                time.monotonic() - self._due > _LOOK
                and not self._where
                and (frame := sys._current_frames().get(self._thread))
            ):
                seen = traceback.extract_stack(frame, None)[-_FRAMES:]
                self._where = [f"{Path(one.filename).name}:{one.lineno} {one.name}" for one in seen]


def late(path: Path, since: float) -> list[Late]:
    lines = path.read_bytes().splitlines() if path.exists() else []
    return [one for line in lines if (one := msgspec.json.decode(line, type=Late)).at >= since]
