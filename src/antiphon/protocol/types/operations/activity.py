"""Past and current work of a server, without contents: lists and events for a page or an operator. An extension."""

from typing import Literal

from msgspec import Struct, field

from antiphon.protocol.types.items import CustomToolCall, FunctionCall, McpApprovalRequest
from antiphon.protocol.types.lists import ListPage, ListQuery
from antiphon.protocol.types.response import ResponseStatus


class SummaryUsage(Struct, frozen=True, kw_only=True):
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int


class ResponseSummary(Struct, frozen=True, kw_only=True):
    """A response without its contents. Times are seconds; `created_at` and `ended_at` since the epoch."""

    id: str
    object: Literal["response.summary"] = "response.summary"
    status: ResponseStatus
    model: str | None  # null: it was stored by an earlier version
    background: bool
    created_at: float
    ended_at: float | None
    duration: float | None
    ttft: float | None  # from its creation to the first output; null if it was not streamed by the engine
    previous_response_id: str | None
    conversation: str | None
    items: dict[str, int]  # output items by type, once it has ended
    usage: SummaryUsage | None
    error: str | None  # error code, or why it is incomplete
    stored: bool = True  # false in the feed alone: an ended response or completion that cannot be read


class SummaryQuery(ListQuery, frozen=True, kw_only=True):
    """Query parameters of the list; the list has the responses that match all of them."""

    status: list[ResponseStatus] = field(default_factory=list)
    model: str | None = None
    background: bool | None = None


class SummaryList(ListPage, kw_only=True):
    """A page. With a filter it may be short or empty although there is more: `last_id` is `after` of the next."""

    data: list[ResponseSummary]


class FeedEvent(Struct, frozen=True, kw_only=True, tag_field="type"):
    """`at`: when it happened, in seconds since the epoch; also the id of the event."""

    at: float


class ResponseBegun(FeedEvent, frozen=True, kw_only=True, tag="begun"):
    response: ResponseSummary


class ResponseEnded(FeedEvent, frozen=True, kw_only=True, tag="ended"):
    response: ResponseSummary


class FeedGap(FeedEvent, frozen=True, kw_only=True, tag="gap"):
    """More happened than the feed could follow: read the list."""


class FeedClosed(FeedEvent, frozen=True, kw_only=True, tag="closed"):
    """The last event: the reader was too slow, its key is no longer valid, or the server shuts down."""

    reason: Literal["slow", "key", "shutdown"]


AnyFeedEvent = ResponseBegun | ResponseEnded | FeedGap | FeedClosed


class PendingApproval(Struct, frozen=True, kw_only=True):
    """A call that waits for the approval of a client; `id` is that of its request item."""

    id: str
    object: Literal["approval"] = "approval"
    response_id: str
    created_at: float  # of the response
    model: str
    conversation: str | None
    item: McpApprovalRequest


class ApprovalList(ListPage, kw_only=True):
    """A page, which may be short or empty although there is more: `last_id` is `after` of the next."""

    data: list[PendingApproval]


class WaitingCall(Struct, frozen=True, kw_only=True):
    call_id: str
    item: FunctionCall | CustomToolCall | None  # null: only the client of the stream has it


class WaitingResponse(Struct, frozen=True, kw_only=True):
    """A response that waits for outputs of tools of its client."""

    id: str
    object: Literal["response.waiting"] = "response.waiting"
    created_at: float
    model: str
    background: bool
    conversation: str | None
    calls: list[WaitingCall]


class WaitingList(ListPage, kw_only=True):
    """A page, which may be short or empty although there is more: `last_id` is `after` of the next."""

    data: list[WaitingResponse]
