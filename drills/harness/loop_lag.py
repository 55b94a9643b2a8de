"""Delays of the event loop of a server under drill: a timer in the loop writes every late tick to a file.

Wall time alone would blame the server for other load on the machine. The CPU time of the process is recorded as well,
and the smaller of the two counts. A separate thread samples the stack of a blocked loop.
"""

import asyncio
import sys
import threading
import time
import traceback
from pathlib import Path

import msgspec
from msgspec import Struct

_TICK_SECONDS = 0.005
_REPORT_SECONDS = 0.01  # delay from which a tick is recorded
_SAMPLE_SECONDS = 0.02  # delay after which the loop's stack is sampled
_FRAMES = 6


class LateTick(Struct, frozen=True, array_like=True):
    """One late tick; all times in seconds."""

    at: float  # monotonic clock, shared by all processes of the machine
    wall: float
    cpu: float
    stack: list[str]  # stack of the loop, innermost frame last; empty if it was not sampled

    @property
    def own_seconds(self) -> float:
        """Delay that the server itself is responsible for."""
        return min(self.wall, self.cpu)


class LoopLagMonitor:
    """Measures the delays of the event loop that runs in this thread."""

    def __init__(self, path: Path) -> None:
        self._loop = asyncio.get_running_loop()
        self._file = path.open("ab", buffering=0)
        self._thread = threading.get_ident()
        self._stack: list[str] = []
        self._due, self._cpu = time.monotonic(), time.process_time()

    def start(self) -> None:
        """Measure as long as the loop runs."""
        self._tick()
        threading.Thread(target=self._sample_stack, daemon=True).start()

    def _tick(self) -> None:
        now, cpu = time.monotonic(), time.process_time()
        if now - self._due > _REPORT_SECONDS:
            late_tick = LateTick(now, now - self._due, cpu - self._cpu, self._stack)
            self._file.write(msgspec.json.encode(late_tick) + b"\n")
        self._due, self._cpu, self._stack = now + _TICK_SECONDS, cpu, []
        self._loop.call_later(_TICK_SECONDS, self._tick)

    def _sample_stack(self) -> None:
        while True:
            time.sleep(_SAMPLE_SECONDS / 2)
            if (
                time.monotonic() - self._due > _SAMPLE_SECONDS
                and not self._stack
                and (frame := sys._current_frames().get(self._thread))
            ):
                frames = traceback.extract_stack(frame, None)[-_FRAMES:]
                self._stack = [f"{Path(one.filename).name}:{one.lineno} {one.name}" for one in frames]


def read_late_ticks(path: Path, since: float) -> list[LateTick]:
    """Return the late ticks of the file since the given monotonic time."""
    lines = path.read_bytes().splitlines() if path.exists() else []
    return [one for line in lines if (one := msgspec.json.decode(line, type=LateTick)).at >= since]
