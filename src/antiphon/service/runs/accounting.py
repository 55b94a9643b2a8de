"""Records every ended run in the metrics and charges its tokens to the caller's rate limits."""

from antiphon.agent.completion_run import CompletionRun
from antiphon.agent.run import Run
from antiphon.core.prompt import TokenCounts
from antiphon.observe import Metrics
from antiphon.observe.logs import LOG_CONTEXT
from antiphon.service.access.charges import CURRENT_CHARGE


class Accounting:
    """Metrics and charges of ended runs."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def record(self, run: Run | CompletionRun) -> None:
        counts, start, first_at = run.counts, run.started_at, run.first_at
        _charge(counts, run.chunk_count, run.status)
        first = None if first_at is None else first_at - start
        self._metrics.record_response(run.status, counts, first, (run.ended_at or start) - start)
        for reason, retry_outcome in run.retry_outcomes:
            self._metrics.record_output_retry(reason, retry_outcome)
        for kind, outcome, seconds in run.tool_outcomes:
            self._metrics.record_tool_call(kind, outcome, seconds)


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
