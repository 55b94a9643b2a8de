"""Responses that run in this process: their slots, their cost, what followers see of them, and those without a reader.

A direct run (service/runs/direct_run.py) is driven for its own client, a detached run (service/runs/detached_run.py)
for any number of readers.
"""

import asyncio

from msgspec import Struct

from antiphon.admission import Admission
from antiphon.agent.completion_run import CompletionRun
from antiphon.agent.run import Run
from antiphon.core.emitter.emitter import Emitter
from antiphon.core.prompt import TokenCounts
from antiphon.errors import AntiphonError, Busy
from antiphon.observe import Metrics
from antiphon.observe.logs import LOG_CONTEXT
from antiphon.service.access.charges import CURRENT_CHARGE, get_concurrency_limit
from antiphon.service.access.usage import UsageMeter
from antiphon.service.persistence.response_writer import OwnedRow
from antiphon.service.planning.planner import PlannedResponse
from antiphon.stores.base import StoredResponse


class ActiveRun:
    """A response that runs here and may have followers. `owned_row` is None for a response that is not stored."""

    def __init__(self, tenant: str, planned: PlannedResponse, emitter: Emitter, owned_row: OwnedRow | None) -> None:
        assert emitter.log is not None
        self.tenant = tenant
        self.opening = planned.opening
        self.obfuscates = planned.obfuscates
        self.log = emitter.log
        self.owned_row = owned_row
        self.run: Run  # set by subclasses
        self.visible_lists = 0  # lists of the log that followers may see
        self.is_over = False  # nothing more becomes visible
        self.outcome: bytes | AntiphonError | None = None  # set when over; None: read it from the store
        self.unread_runs: UnreadRuns | None = None  # None: the run does not depend on its readers
        self.max_unread = get_concurrency_limit()  # runs without a reader that the tenant may have; 0: unlimited
        self._readers = 0
        self._changed: asyncio.Event | None = None

    def attach(self) -> None:
        """Add a reader."""
        self._readers += 1
        if self.unread_runs is not None:
            self.unread_runs.remove(self)

    def detach(self) -> None:
        """Remove a reader."""
        self._readers -= 1
        if self.unread_runs is not None and not self._readers and self.run.ended_at is None:
            self.unread_runs.add(self)

    def cancel(self) -> None:
        """End the run as cancelled. Callers wait until it is over to see that done."""
        raise NotImplementedError

    def get_echo_delay(self) -> float:
        """Return the seconds for which a notification may be an echo of the run's own write."""
        return 0.0

    def should_verify(self) -> bool:
        """Return whether a notification requires a check that this process still owns the response."""
        return self.owned_row is not None and self.owned_row.fence > 0 and self.run.ended_at is None

    def verify_ownership(self, row: StoredResponse | None) -> None:
        """Compare ownership with the row in the store."""
        if self.owned_row is not None and self.run.ended_at is None:
            self.owned_row.verify(row)

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


class UnreadRuns:
    """Foreground runs without a reader. Each one is cancelled after `seconds`, or earlier if others need its slot."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._timers: dict[ActiveRun, asyncio.TimerHandle] = {}  # the oldest first

    def add(self, run: ActiveRun) -> None:
        """Keep a run that has lost its last reader. A tenant has no more of them than it may have responses at once."""
        if not self._seconds:
            run.cancel()
            return
        own = [other for other in self._timers if other.tenant == run.tenant]
        if run.max_unread and len(own) >= run.max_unread:
            self._cancel(own[0])
        self._timers[run] = asyncio.get_running_loop().call_later(self._seconds, self._cancel, run)

    def remove(self, run: ActiveRun) -> None:
        """Forget a run that has a reader again, or has ended."""
        if (timer := self._timers.pop(run, None)) is not None:
            timer.cancel()

    def cancel_oldest(self) -> bool:
        """Cancel the oldest run. Returns False if there is none."""
        for run in self._timers:
            self._cancel(run)
            return True
        return False

    def make_room(self, admission: Admission) -> None:
        """Cancel the runs that wait for one of these slots and the oldest one that has one: a request needs a slot."""
        has_cancelled = False
        for run in [*self._timers]:
            ticket = run.run.stream.ticket
            if ticket is None or ticket.admission is not admission:
                continue
            if ticket.is_waiting or (ticket.running and not has_cancelled):
                has_cancelled = has_cancelled or ticket.running
                self._cancel(run)

    def _cancel(self, run: ActiveRun) -> None:
        self.remove(run)
        run.cancel()


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
            self.active = None  # break the reference cycle run → slot → active run


class ActiveRuns:
    """All responses that run here, by id. A tenant without a running response is admitted even above the limit."""

    def __init__(self, limit: int, unread_seconds: float = 0.0) -> None:
        """`unread_seconds`: how long a foreground run continues without a reader."""
        self._limit = limit
        self.unread = UnreadRuns(unread_seconds)
        self.slots: set[RunSlot] = set()
        self.tenant_counts: dict[str, int] = {}  # running responses by tenant
        self.by_id: dict[str, ActiveRun] = {}

    def acquire(self, tenant: str = "", is_exempt: bool = False) -> RunSlot:
        """Acquire a slot, before the response is stored. At the limit a run without a reader gives way, or Busy is
        raised. `is_exempt`: for work that has its own limit.
        """
        is_full = len(self.slots) >= self._limit and tenant in self.tenant_counts and not is_exempt
        if is_full and not self.unread.cancel_oldest():
            raise Busy("Too many responses are running. Try again later.", retry_after=1.0)
        self.slots.add(slot := RunSlot(self, tenant))
        self.tenant_counts[tenant] = self.tenant_counts.get(tenant, 0) + 1
        return slot

    def find(self, tenant: str, response_id: str) -> ActiveRun | None:
        active = self.by_id.get(response_id)
        return active if active is not None and active.tenant == tenant else None


def record_run(metrics: Metrics, usage: UsageMeter, run: Run | CompletionRun) -> None:
    """Record an ended run in the metrics and the usage, and charge its tokens to the rate limits of the caller."""
    counts, start, first_at = run.counts, run.started_at, run.first_at
    _charge(counts, run.chunk_count, run.status)
    first = None if first_at is None else first_at - start
    tokens = counts.input_tokens, counts.cached_tokens, counts.output_tokens
    usage.record(counts)
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
