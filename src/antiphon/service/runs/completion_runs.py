"""All completion runs of this process: each has a run slot, and a slot of the model for each choice.

Used by the services of other APIs: they prepare a request with the planner, create a dialect and open a run. The caller
drives the run or waits for its result, and always closes it.
"""

from collections.abc import Sequence

from msgspec import Struct

from antiphon.agent.completion_run import CompletionRun, ErrorMapper
from antiphon.core.dialects.dialect import Dialect
from antiphon.errors import Busy, Unavailable
from antiphon.service.planning.planner import Planner
from antiphon.service.prompting.prepared_request import PreparedRequest
from antiphon.service.runs.accounting import Accounting
from antiphon.service.runs.active_runs import RunSlot
from antiphon.service.runs.detached_runs import DetachedRuns


class AcceptedCompletion(Struct, frozen=True):
    """A started run, which the caller drives or waits for and always closes."""

    run: CompletionRun
    ignored: list[str]  # names of accepted fields that have no effect


class CompletionRuns:
    """Opens, limits and interrupts completion runs."""

    def __init__(self, planner: Planner, detached_runs: DetachedRuns, accounting: Accounting) -> None:
        self._planner = planner
        self._detached_runs = detached_runs
        self._accounting = accounting
        self._open: dict[CompletionRun, RunSlot] = {}

    def open(
        self, requests: Sequence[PreparedRequest], dialect: Dialect, error_mapper: ErrorMapper | None = None
    ) -> AcceptedCompletion:
        """Open a run with one choice per request. Raises Busy if the first has no slot; the others wait for theirs."""
        slot = self._detached_runs.acquire_slot(requests[0].tenant)
        try:
            first = self._planner.admit(requests[0])
        except Busy:
            slot.release()
            raise
        others = [self._planner.admit(request, patient=True) for request in requests[1:]]
        run = CompletionRun([first, *others], dialect, self._on_end, error_mapper)
        self._open[run] = slot
        return AcceptedCompletion(run, requests[0].ignored)

    def interrupt(self) -> None:
        """End all runs after the shutdown grace period; their clients receive the error."""
        error = Unavailable("The server is shutting down.", retry_after=2.0)
        for run in [*self._open]:
            run.interrupt(error)

    def _on_end(self, run: CompletionRun) -> None:
        self._open.pop(run).release()
        self._accounting.record(run)
