"""Every run and every exchange that came to an end, in numbers; and on the bill of who asked for it."""

from collections.abc import Sequence

from antiphon.agent.completion_run import Exchange
from antiphon.agent.run import Run
from antiphon.core.prompt import Counts
from antiphon.observe import Metrics
from antiphon.observe.log_context import ABOUT
from antiphon.service.access.rate_limits import BILL


class Tally:
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def ended(self, run: Run) -> None:
        counts, start, first_at = run.counts, run.started_at, run.hearing.first_at
        _charge(counts, run.heard, run.ending.status)
        first = None if first_at is None else first_at - start
        self._metrics.response_done(run.ending.status, counts, first, (run.ended_at or start) - start)
        if run.insisted:
            self._insisted(run.insisted)
        for kind, outcome, seconds in run.ran:
            self._metrics.tool_called(kind, outcome, seconds)

    def exchanged(self, exchange: Exchange) -> None:
        end = exchange.ended_at or exchange.started_at
        first = None if exchange.first_at is None else exchange.first_at - exchange.started_at
        counts = exchange.counts
        _charge(counts, exchange.heard, exchange.status)
        self._metrics.response_done(exchange.status, counts, first, end - exchange.started_at)
        self._insisted(exchange.insisted)

    def _insisted(self, outcomes: Sequence[tuple[str, str]]) -> None:
        for reason, outcome in outcomes:
            self._metrics.insisted(reason, outcome)


def _charge(counts: Counts, heard: int, status: str) -> None:
    """On the bill, and in the log, of whatever this task works for."""
    if (bill := BILL.get()) is not None:
        tokens = counts.input_tokens + counts.output_tokens
        if tokens or status == "completed" or (status == "failed" and not heard):
            bill.spend(tokens)
        else:  # broken off before it was counted: else whoever leaves just before the end would pay nothing
            bill.spend(None)
            bill.spend(heard)
    if (about := ABOUT.get()) is not None:
        about.input_tokens += counts.input_tokens
        about.cached_tokens += counts.cached_tokens
        about.output_tokens += counts.output_tokens
