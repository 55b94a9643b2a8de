"""The parts of a response without their contents: the JSON that the store has for lists (`SummaryRow.summary`)."""

from collections import Counter

import msgspec
from msgspec import Struct

from antiphon.protocol.types.operations.activity import ResponseSummary, SummaryUsage
from antiphon.protocol.types.response import Response
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
    items = Counter([str(item.__struct_config__.tag) for item in response.output])
    error = None if response.error is None else response.error.code
    if response.incomplete_details is not None:
        error = response.incomplete_details.reason
    return _encode(_Summary(dict(items), _to_usage(response), None if ttft is None else round(ttft, 4), error)).decode()


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


def _to_usage(response: Response) -> SummaryUsage | None:
    if (usage := response.usage) is None:
        return None
    return SummaryUsage(
        input_tokens=usage.input_tokens,
        cached_tokens=usage.input_tokens_details.cached_tokens,
        output_tokens=usage.output_tokens,
        reasoning_tokens=usage.output_tokens_details.reasoning_tokens,
    )
