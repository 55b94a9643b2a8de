"""Responses that run in this process: their slots, their cost, and what followers see of them.

A direct run is driven by its own client, without a task or a queue in between: the path of most requests. Its end is
stored before it is emitted. Closing the source before that cancels the run; if its row was already written, the end is
stored in the background. Followers see its log without its end until that end is stored. A detached run
(service/runs/detached_run.py) decides itself how much is visible.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from msgspec import Struct

from antiphon.agent.completion_run import CompletionRun
from antiphon.agent.run import EventSink, Run
from antiphon.core.emitter.emitter import Emitter, EventLog
from antiphon.core.emitter.event_log import FOLD_BATCH, LogEntry, RunEnded
from antiphon.core.prompt import TokenCounts
from antiphon.errors import AntiphonError, Busy
from antiphon.observe import Metrics
from antiphon.observe.logs import LOG_CONTEXT
from antiphon.protocol.decoding.codec import encode
from antiphon.protocol.types.response import Response
from antiphon.service.access.charges import CURRENT_CHARGE
from antiphon.service.persistence.response_writer import OwnedRow
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
    run: Run | CompletionRun | None = None  # set for a run that its own client drives

    def register(self, active: ActiveRun) -> None:
        """Let others follow this run."""
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
        """Acquire a slot, before the response is stored. Raises Busy at the limit. `is_exempt`: for work that has its
        own limit.
        """
        if len(self.slots) >= self._limit and tenant in self.tenant_counts and not is_exempt:
            raise Busy("Too many responses are running. Try again later.", retry_after=1.0)
        self.slots.add(slot := RunSlot(self, tenant))
        self.tenant_counts[tenant] = self.tenant_counts.get(tenant, 0) + 1
        return slot

    def find(self, tenant: str, response_id: str) -> ActiveRun | None:
        active = self.by_id.get(response_id)
        return active if active is not None and active.tenant == tenant else None


class DirectRun:
    """Source of a client-driven run.

    `owned_row` is None for a response that is not stored. The row is already written if other clients may know the id.
    """

    __slots__ = ("_emitter", "_owned_row", "_slot", "_store_end", "run")

    def __init__(
        self,
        slot: RunSlot,
        tenant: str,
        planned: PlannedResponse,
        owned_row: OwnedRow | None,
        on_end: Callable[[Run], None],
    ) -> None:
        self._slot = slot
        self._owned_row = owned_row
        self._emitter = emitter = planned.make_emitter(None if owned_row is None else [])
        self._store_end = None
        if owned_row is not None:
            emitter.fold_threshold = FOLD_BATCH
            self._store_end = _StoreEnd(owned_row, slot, emitter)
        self.run = slot.run = Run(planned.call, emitter, on_end, self._store_end, planned.multi_turn)
        if owned_row is not None and owned_row.fence:
            owned_row.on_lost = lambda: self.run.interrupt(owned_row.make_lost_error())
            planned.set_fence(owned_row.fence)
            slot.register(ClientDrivenRun(tenant, planned, emitter))

    @property
    def waits(self) -> bool:
        return self.run.waits

    def begin(self) -> None:
        """Return at once: the first event is the created response."""

    def drive(self, emit: EventSink) -> Coroutine[Any, Any, None]:
        return self.run.drive(emit)

    async def result(self) -> bytes:
        run = self.run
        await run.drive(None)
        if run.error is not None:
            raise run.error
        return encode(self._emitter.last_response) if self._store_end is None else self._store_end.body

    def close(self) -> None:
        if self.run.ended_at is None:
            self.run.cancel()
        owned_row = self._owned_row
        if owned_row is None or owned_row.ended or owned_row.lost or not owned_row.fence:
            self._slot.release()
        else:
            owned_row.end_in_background(self.run.response, self.run.log, self._slot.release)
        if owned_row is not None:
            owned_row.on_lost = None


class _StoreEnd(Struct, eq=False):
    """Stores the end of a run.

    It references neither the run nor its driver, except through the slot, which drops the run when released: a
    reference cycle would be left to the garbage collector, which costs more than everything else about storing.
    """

    _owned_row: OwnedRow
    _slot: RunSlot
    _emitter: Emitter
    body: bytes = b""

    async def __call__(self, run: Run) -> None:
        emitter = self._emitter
        assert emitter.log is not None
        self.body = await self._owned_row.end(emitter.last_response, emitter.log)
        self._slot.release()


def record_run(metrics: Metrics, run: Run | CompletionRun) -> None:
    """Record an ended run in the metrics, and charge its tokens to the rate limits of the caller."""
    counts, start, first_at = run.counts, run.started_at, run.first_at
    _charge(counts, run.chunk_count, run.status)
    first = None if first_at is None else first_at - start
    tokens = counts.input_tokens, counts.cached_tokens, counts.output_tokens
    metrics.record_response(run.status, tokens, first, (run.ended_at or start) - start)
    for reason, retry_outcome in run.retry_outcomes:
        metrics.record_output_retry(reason, retry_outcome)
    for kind, outcome, seconds in run.tool_outcomes:
        metrics.record_tool_call(kind, outcome, seconds)


def _charge(counts: TokenCounts, chunk_count: int, status: str) -> None:
    """Add the tokens to the charge and to the log record of the current task's request."""
    if (charge := CURRENT_CHARGE.get()) is not None:
        tokens = counts.input_tokens + counts.output_tokens
        if tokens or status == "completed" or (status == "failed" and not chunk_count):
            charge.spend(tokens)
        # Interrupted before the engine counted: charge the chunks, or clients could avoid charges by leaving just
        # before the end.
        else:
            charge.spend(None)
            charge.spend(chunk_count)
    if (log_context := LOG_CONTEXT.get()) is not None:
        log_context.input_tokens += counts.input_tokens
        log_context.cached_tokens += counts.cached_tokens
        log_context.output_tokens += counts.output_tokens
