"""The state of this process for operators: queues, load shedding, the store, and samples of the last hour."""

import asyncio
from collections import deque
from time import time
from typing import Literal

from msgspec import Struct, convert, field

from antiphon.observe import Metrics
from antiphon.observe.metrics import read_resident_bytes
from antiphon.protocol.types.operations.server import QueueState, ServerSample, ServerStatus, SheddingState, StoreState
from antiphon.service.access.load_monitor import LoadMonitor, SheddingStage
from antiphon.service.model_io.models import Models
from antiphon.service.persistence.store_maintenance import StoreProbe
from antiphon.service.runs.detached_runs import DetachedRuns

_SAMPLE_SECONDS = 10.0
_MAX_SAMPLES = 360  # an hour
_STAGES: dict[SheddingStage, Literal["none", "background", "all"]] = {
    SheddingStage.ALL: "none",
    SheddingStage.NO_BACKGROUND: "background",
    SheddingStage.NOTHING_NEW: "all",
}


class ServerMonitor(Struct, eq=False):
    _version: str
    _models: Models
    _runs: DetachedRuns
    _metrics: Metrics
    _load_monitor: LoadMonitor
    _store: StoreProbe
    _started_at: float = field(default_factory=time)
    _samples: deque[ServerSample] = field(default_factory=lambda: deque(maxlen=_MAX_SAMPLES))
    _totals: dict[str, int] = {}  # at the last sample

    async def run_forever(self) -> None:
        """Take samples until cancelled."""
        self._totals = self._metrics.read_totals()
        while True:
            await asyncio.sleep(_SAMPLE_SECONDS)
            self.sample()

    def sample(self) -> None:
        before, self._totals = self._totals, self._metrics.read_totals()
        resident = read_resident_bytes()
        waiting = self._models.count_waiting()
        self._samples.append(
            ServerSample(
                at=round(time(), 3),
                running=len(self._runs.slots) - waiting,
                waiting=waiting,
                memory_bytes=None if resident is None else int(resident),
                **{name: total - before.get(name, 0) for name, total in self._totals.items()},
            )
        )

    def describe(self) -> ServerStatus:
        waiting, monitor, store = self._models.count_waiting(), self._load_monitor, self._store
        size, count = store.size
        return ServerStatus(
            version=self._version,
            started_at=self._started_at,
            running=len(self._runs.slots) - waiting,
            waiting=waiting,
            queues=convert(self._models.list_queues(), list[QueueState], from_attributes=True),
            shedding=SheddingState(
                stage=_STAGES[monitor.stage], reason=monitor.reason or None, loads=dict(monitor.loads)
            ),
            store=StoreState(kind=store.name, healthy=store.healthy(), bytes=size, responses=count),
            sample_seconds=_SAMPLE_SECONDS,
            samples=[*self._samples],
        )
