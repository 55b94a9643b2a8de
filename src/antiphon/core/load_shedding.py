"""How much the server takes on while it is under pressure, in stages, with some play so that it does not flutter.

    all ── a load reaches its first mark ──► no background ── its second ──► nothing new
     ◄──────── every load has been well below the mark for a while ────────────┘

A load is a number that is 1 where nothing new is taken any more. A stage is entered at once and left late. Time is
handed in, in seconds.
"""

from collections.abc import Mapping
from enum import IntEnum

from msgspec import Struct

PLAY = 0.9  # of a mark: below that a load has gone from it
CALM = 1.0  # seconds that it stays below before a stage is left


class Stage(IntEnum):
    ALL = 0
    NO_BACKGROUND = 1
    NOTHING_NEW = 2


class Mark(Struct, frozen=True):
    """Where a load begins to count."""

    first: float
    second: float | None = 1.0  # None: it never keeps out anything but background work


class Shedding:
    def __init__(self, marks: Mapping[str, Mark]) -> None:
        self._marks = marks
        self._since: dict[tuple[str, Stage], float] = {}  # what is in force, and when it was last called for
        self.stage = Stage.ALL
        self.causes: tuple[str, ...] = ()  # of the stage

    def note(self, loads: Mapping[str, float], now: float) -> None:
        for name, load in loads.items():
            mark = self._marks[name]
            self._weigh(name, Stage.NO_BACKGROUND, load, mark.first, now)
            if mark.second is not None:
                self._weigh(name, Stage.NOTHING_NEW, load, mark.second, now)
        self.stage = max((stage for _, stage in self._since), default=Stage.ALL)
        self.causes = tuple(sorted(name for name, stage in self._since if stage == self.stage))

    def _weigh(self, name: str, stage: Stage, load: float, mark: float, now: float) -> None:
        held = (name, stage) in self._since
        if load >= (mark * PLAY if held else mark):
            self._since[name, stage] = now
        elif held and now - self._since[name, stage] >= CALM:
            del self._since[name, stage]
