"""Load shedding in stages, with hysteresis so that the stage does not oscillate.

    all ── a load reaches its first threshold ──► no background ── its second ──► nothing new
     ◄──────── every load has been well below the threshold for a while ────────────┘

A load of 1 means that no new work is accepted. A stage is entered immediately and left late. Time is passed in, in
seconds.
"""

from collections.abc import Mapping
from enum import IntEnum

from msgspec import Struct

HYSTERESIS = 0.9  # fraction of a threshold below which a load counts as recovered
CALM_SECONDS = 1.0  # seconds that a load must stay recovered before its stage is left


class SheddingStage(IntEnum):
    ALL = 0
    NO_BACKGROUND = 1
    NOTHING_NEW = 2


class LoadThresholds(Struct, frozen=True):
    """Loads at which the stages begin."""

    first: float
    second: float | None = 1.0  # None: this load only blocks background work


class LoadShedding:
    """Tracks the current stage and the loads that cause it."""

    def __init__(self, thresholds: Mapping[str, LoadThresholds]) -> None:
        self._thresholds = thresholds
        self._last_exceeded: dict[
            tuple[str, SheddingStage], float
        ] = {}  # active (load, stage) → time of the last excess
        self.stage = SheddingStage.ALL
        self.causes: tuple[str, ...] = ()  # names of the loads that cause the stage

    def record(self, loads: Mapping[str, float], now: float) -> None:
        for name, load in loads.items():
            thresholds = self._thresholds[name]
            self._update_stage(name, SheddingStage.NO_BACKGROUND, load, thresholds.first, now)
            if thresholds.second is not None:
                self._update_stage(name, SheddingStage.NOTHING_NEW, load, thresholds.second, now)
        self.stage = max((stage for _, stage in self._last_exceeded), default=SheddingStage.ALL)
        self.causes = tuple(sorted(name for name, stage in self._last_exceeded if stage == self.stage))

    def _update_stage(self, name: str, stage: SheddingStage, load: float, threshold: float, now: float) -> None:
        active = (name, stage) in self._last_exceeded
        if load >= (threshold * HYSTERESIS if active else threshold):
            self._last_exceeded[name, stage] = now
        elif active and now - self._last_exceeded[name, stage] >= CALM_SECONDS:
            del self._last_exceeded[name, stage]
