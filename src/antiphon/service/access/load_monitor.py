"""Load monitor: samples memory, event loop lag, queue load and free disk several times a second.

Load is shed in stages, with hysteresis so that the stage does not oscillate. Active runs continue.

    all ── a load reaches its first threshold ──► no background ── its second ──► nothing new
     ◄──────── every load has been well below the threshold for a while ────────────┘

A load of 1 means that no new work is accepted. A stage is entered immediately and left late.
"""

import asyncio
import logging
import shutil
from collections import deque
from collections.abc import Callable, Mapping
from enum import IntEnum
from pathlib import Path

from antiphon.config.rate_limits import SheddingSettings as Bounds
from antiphon.errors import Unavailable
from antiphon.observe.metrics import read_resident_bytes
from antiphon.operating_system import find_libc_function

log = logging.getLogger(__name__)

HYSTERESIS = 0.9  # fraction of a threshold below which a load counts as recovered
CALM_SECONDS = 1.0  # seconds that a load must stay recovered before its stage is left


class SheddingStage(IntEnum):
    ALL = 0
    NO_BACKGROUND = 1
    NOTHING_NEW = 2


_SHEDDING_STAGES = (SheddingStage.NO_BACKGROUND, SheddingStage.NOTHING_NEW)


class LoadShedding:
    """Tracks the current stage and the loads that cause it.

    `thresholds`: by load, the values at which the two stages begin; None: the load only blocks background work.
    """

    def __init__(self, thresholds: Mapping[str, tuple[float, float | None]]) -> None:
        self._thresholds = thresholds
        self._last_exceeded: dict[tuple[str, SheddingStage], float] = {}  # time of the last excess, while it is active
        self.stage = SheddingStage.ALL
        self.causes: tuple[str, ...] = ()  # names of the loads that cause the stage

    def record(self, loads: Mapping[str, float], now: float) -> None:
        for name, load in loads.items():
            for stage, threshold in zip(_SHEDDING_STAGES, self._thresholds[name], strict=True):
                if threshold is not None:
                    self._update_stage(name, stage, load, threshold, now)
        self.stage = max((stage for _, stage in self._last_exceeded), default=SheddingStage.ALL)
        self.causes = tuple(sorted(name for name, stage in self._last_exceeded if stage == self.stage))

    def _update_stage(self, name: str, stage: SheddingStage, load: float, threshold: float, now: float) -> None:
        active = (name, stage) in self._last_exceeded
        if load >= (threshold * HYSTERESIS if active else threshold):
            self._last_exceeded[name, stage] = now
        elif active and now - self._last_exceeded[name, stage] >= CALM_SECONDS:
            del self._last_exceeded[name, stage]


_INTERVAL = 0.1  # seconds between samples
_RETRY_AFTER = 2.0  # seconds
_LAG_SAMPLES = 3  # consecutive samples with lag; a single delay is no overload
_MEMORY_HIGH, _MEMORY_FULL = 0.85, 0.95  # fractions of the available memory
_QUEUE_HIGH = 0.8  # fraction of the queue
_TRIM_SAMPLES = 10  # samples between attempts to return memory to the system
_REASONS = {
    "memory": "memory is low",
    "lag": "the event loop is slow",
    "queue": "too many requests are queued",
    "disk": "the disk is nearly full",
}
_THRESHOLDS = {
    "memory": (_MEMORY_HIGH / _MEMORY_FULL, 1.0),
    "lag": (0.5, 1.0),
    "queue": (1.0, None),
    "disk": (0.5, 1.0),
}


class LoadMonitor:
    """`queue_load`: occupied fraction of the queue. `folder`: folder of the store's file, if it has one."""

    def __init__(self, bounds: Bounds, queue_load: Callable[[], float], folder: Path | None = None) -> None:
        self._bounds = bounds
        self._queue_load = queue_load
        self._folder = folder
        self._shedding = LoadShedding(_THRESHOLDS)
        self._lags: deque[float] = deque([0.0] * _LAG_SAMPLES, _LAG_SAMPLES)  # seconds, at the last samples
        self._samples = 0
        self.loads: dict[str, float] = {}
        self.is_full = False  # all new work is refused

    @property
    def stage(self) -> SheddingStage:
        return self._shedding.stage

    @property
    def reason(self) -> str:
        """The reason why work is refused, as a sentence; empty if all work is accepted."""
        if self.stage is SheddingStage.ALL:
            return ""
        refused = "no background work" if self.stage is SheddingStage.NO_BACKGROUND else "no new work"
        reasons = ", ".join(_REASONS[cause] for cause in self._shedding.causes)
        return f"The server accepts {refused} at the moment: {reasons}."

    def make_refusal(self) -> Unavailable:
        return Unavailable(self.reason, retry_after=_RETRY_AFTER)

    def check_background(self) -> None:
        """Raise Unavailable while background work is refused."""
        if self.stage is not SheddingStage.ALL:
            raise self.make_refusal()

    async def run_forever(self) -> None:
        """Sample until cancelled."""
        now = asyncio.get_running_loop().time
        while True:
            before = now()
            await asyncio.sleep(_INTERVAL)
            self.record(now() - before - _INTERVAL, now())
            if "memory" in self._shedding.causes and self._samples % _TRIM_SAMPLES == 0:
                await asyncio.to_thread(_trim_memory)

    def record(self, lag: float, now: float) -> None:
        """Record the event loop's lag and sample all other loads."""
        self._samples += 1
        self._lags.append(lag)
        self.loads = self._measure()
        before = self._shedding.stage
        self._shedding.record(self.loads, now)
        self.is_full = self._shedding.stage is SheddingStage.NOTHING_NEW
        if self._shedding.stage is not before:
            log.warning("%s", self.reason or "The server accepts all work again.")

    def _measure(self) -> dict[str, float]:
        bounds, loads = self._bounds, {"queue": self._queue_load() / _QUEUE_HIGH}
        if bounds.memory:
            loads["memory"] = (read_resident_bytes() or 0) / (bounds.memory * _MEMORY_FULL)
        if bounds.lag:
            loads["lag"] = min(self._lags) / bounds.lag
        if bounds.free_disk and self._folder is not None and (free := _free_bytes(self._folder)) is not None:
            loads["disk"] = bounds.free_disk / max(free, 1)
        return loads


def find_store_folder(address: str) -> Path | None:
    """Return the folder of the store's file, if it has one."""
    return None if address == "memory" or "://" in address else Path(address).absolute().parent


def _free_bytes(folder: Path) -> int | None:
    try:
        return shutil.disk_usage(folder).free
    except OSError:  # the folder does not exist; the store reports that itself
        return None


def _trim_memory() -> None:
    """Return freed memory to the system: otherwise the allocator retains it, and memory never appears free again."""
    if (trim := find_libc_function("malloc_trim")) is not None:  # glibc only
        trim(0)
