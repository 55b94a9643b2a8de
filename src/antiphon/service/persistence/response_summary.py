"""The parts of a response without their contents: the JSON that the store has for lists (`SummaryRow.summary`)."""

from collections import Counter

import msgspec
from msgspec import Struct, convert

from antiphon.agent.completion_run import CompletionRun
from antiphon.agent.run import Run
from antiphon.protocol.types.operations.activity import ResponseSummary, SummaryUsage
from antiphon.protocol.types.response import Response, ResponseStatus
from antiphon.stores.base import SummaryRow


class _Summary(Struct, omit_defaults=True):
    """The names of the fields are those of stored records."""

    items: dict[str, int] = {}
    usage: SummaryUsage | None = None
    ttft: float | None = None
    error: str | None = None


_encode = msgspec.json.Encoder().encode
_summaries = msgspec.json.Decoder(_Summary)


def encode_summary(response: Response, ttft: float | None) -> str:
    """Return the summary of an ended response. `ttft`: seconds from its creation to the first output."""
    error = None if response.error is None else response.error.code
    if response.incomplete_details is not None:
        error = response.incomplete_details.reason
    return _encode(
        _Summary(_count_items(response), _to_usage(response), None if ttft is None else round(ttft, 4), error)
    ).decode()


def to_response_summary(row: SummaryRow) -> ResponseSummary:
    summary = _summaries.decode(row.summary) if row.summary else _Summary()
    return ResponseSummary(
        id=row.id,
        status=row.status,
        model=row.model or None,
        background=row.background,
        created_at=row.created,
        ended_at=row.ended,
        duration=None if row.ended is None else round(row.ended - row.created, 4),
        ttft=summary.ttft,
        previous_response_id=row.previous,
        conversation=row.conversation,
        items=summary.items,
        usage=summary.usage,
        error=summary.error,
    )


def summarise_unstored(run: Run | CompletionRun, request_id: str) -> ResponseSummary:
    """Describe an ended run that is not stored. One of another API has the id of its request."""
    counts, start, ended_at = run.counts, run.started_at, run.ended_at or run.started_at
    response = run.response if isinstance(run, Run) else None
    return ResponseSummary(
        id=request_id if response is None else response.id,
        status=convert(run.status, ResponseStatus),
        model=run.model if isinstance(run, CompletionRun) else run.response.model,
        background=False,
        created_at=start,
        ended_at=ended_at,
        duration=round(ended_at - start, 4),
        ttft=None if run.first_at is None else round(run.first_at - start, 4),
        previous_response_id=None,
        conversation=None,
        items={} if response is None else _count_items(response),
        usage=convert(counts, SummaryUsage, from_attributes=True),
        error=None if run.error is None else run.error.code,
        stored=False,
    )


def _count_items(response: Response) -> dict[str, int]:
    return dict(Counter([str(item.__struct_config__.tag) for item in response.output]))


def _to_usage(response: Response) -> SummaryUsage | None:
    if (usage := response.usage) is None:
        return None
    return SummaryUsage(
        input_tokens=usage.input_tokens,
        cached_tokens=usage.input_tokens_details.cached_tokens,
        output_tokens=usage.output_tokens,
        reasoning_tokens=usage.output_tokens_details.reasoning_tokens,
    )
