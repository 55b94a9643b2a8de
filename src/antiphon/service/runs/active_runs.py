"""Responses that run in this process, as followers see them: the log, and how much of it is visible.

A direct run is driven by its own client and may have followers: they see its log without its end until that end is
stored. A detached run (service/runs/detached_run.py) decides itself how much is visible.
"""

import asyncio
from collections.abc import Callable, Sequence

from msgspec import Struct

from antiphon.agent.run import Run
from antiphon.core.emitter.emitter import Emitter, EventLog
from antiphon.core.emitter.event_log import LogEntry, RunEnded
from antiphon.errors import AntiphonError, Busy
from antiphon.protocol.types.response import Response
from antiphon.service.planning.planner import PlannedResponse


class ActiveRun:
    """A response that runs here and may have followers."""

    def __init__(self, tenant: str, opening: Response, obfuscates: bool, log: EventLog) -> None:
        self.tenant = tenant
        self.opening = opening
        self.obfuscates = obfuscates
        self.log = log
        self.visible_lists = 0  # lists of the log that followers may see
        self.is_over = False  # nothing more becomes visible
        self.outcome: bytes | AntiphonError | None = None  # set when over; None: read it from the store
        self._changed: asyncio.Event | None = None

    def attach(self) -> None:
        """Add a follower."""

    def detach(self) -> None:
        """Remove a follower."""

    def set_visible(self, lists: int) -> None:
        self.visible_lists = lists
        if self._changed is not None:
            self._changed.set()

    def end(self) -> None:
        """Mark the run as over."""
        self.is_over = True
        self.set_visible(self.visible_lists)

    async def wait_finished(self) -> None:
        """Wait until the run is over."""
        while not self.is_over:
            await self.wait_for_more(self.visible_lists)

    async def wait_for_more(self, seen: int) -> None:
        """Wait until more than `seen` lists are visible or the run is over."""
        if self._changed is None:
            self._changed = asyncio.Event()
        while self.visible_lists == seen and not self.is_over:
            self._changed.clear()
            await self._changed.wait()


class ClientDrivenRun(ActiveRun):
    """A run that its own client drives. To save the cost, its log reports growth only to attached followers."""

    def __init__(self, tenant: str, planned: PlannedResponse, emitter: Emitter) -> None:
        assert emitter.log is not None
        super().__init__(tenant, planned.opening, planned.obfuscates, emitter.log)
        self._emitter = emitter

    def attach(self) -> None:
        if not isinstance(self.log, _ObservedLog) and not self.is_over:
            self.log = self._emitter.log = _ObservedLog(self.log, self._on_growth)
            self._on_growth()

    def end(self) -> None:
        self.visible_lists = len(self.log)
        super().end()

    def _on_growth(self) -> None:
        last = self.log[-1] if self.log else ()
        self.set_visible(len(self.log) - (len(last) == 1 and type(last[0]) is RunEnded))


class _ObservedLog(list[Sequence[LogEntry]]):
    """A log that calls back when it grows."""

    def __init__(self, entries: EventLog, on_growth: Callable[[], None]) -> None:
        super().__init__(entries)
        self._on_growth = on_growth

    def append(self, entries: Sequence[LogEntry], /) -> None:
        super().append(entries)
        self._on_growth()


class RunSlot(Struct, eq=False):
    """One slot of the limit on concurrent responses. It must always be released; releasing it twice is harmless."""

    _active_runs: "ActiveRuns"
    _tenant: str
    active: ActiveRun | None = None  # visible to followers; None: it cannot be followed
    run: Run | None = None  # set for a run that its own client drives

    def publish(self, tenant: str, planned: PlannedResponse, emitter: Emitter) -> None:
        """Let others follow this direct run. Its emitter must have a log."""
        self.register(ClientDrivenRun(tenant, planned, emitter))

    def register(self, active: ActiveRun) -> None:
        self.active = active
        self._active_runs.by_id[active.opening.id] = active

    def release(self) -> None:
        """Free the slot once the end is stored, or if there is none. Followers now see the complete log."""
        active_runs, tenant = self._active_runs, self._tenant
        if self not in active_runs.slots:
            return
        active_runs.slots.remove(self)
        if (remaining := active_runs.tenant_counts[tenant] - 1) > 0:
            active_runs.tenant_counts[tenant] = remaining
        else:
            del active_runs.tenant_counts[tenant]
        self.run = None  # break the reference cycle run → slot
        if (active := self.active) is not None:
            if active_runs.by_id.get(active.opening.id) is active:  # not a later attempt at the same response
                del active_runs.by_id[active.opening.id]
            active.end()


class ActiveRuns:
    """All responses that run here, by id. A tenant without a running response is admitted even above the limit."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.slots: set[RunSlot] = set()
        self.tenant_counts: dict[str, int] = {}  # running responses by tenant
        self.by_id: dict[str, ActiveRun] = {}

    def acquire(self, tenant: str = "", is_exempt: bool = False) -> RunSlot:
        """Acquire a slot. Raises Busy at the limit. `is_exempt`: for work that has its own limit."""
        if len(self.slots) >= self._limit and tenant in self.tenant_counts and not is_exempt:
            raise Busy("Too many responses are running. Try again later.", retry_after=1.0)
        self.slots.add(slot := RunSlot(self, tenant))
        self.tenant_counts[tenant] = self.tenant_counts.get(tenant, 0) + 1
        return slot

    def find(self, tenant: str, response_id: str) -> ActiveRun | None:
        active = self.by_id.get(response_id)
        return active if active is not None and active.tenant == tenant else None
