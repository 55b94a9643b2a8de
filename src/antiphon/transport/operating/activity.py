"""/v1/antiphon/…: what happens to the responses of a tenant, without their contents. Extensions, made for a page."""

from collections.abc import Awaitable, Callable
from math import isfinite

import msgspec
from msgspec import Struct

from antiphon.errors import InvalidValue
from antiphon.protocol.decoding.codec import encode
from antiphon.protocol.types.lists import ListQuery
from antiphon.protocol.types.operations.activity import (
    AnyFeedEvent,
    ApprovalList,
    FeedEvent,
    ResponseSummary,
    SummaryList,
    SummaryQuery,
    WaitingList,
)
from antiphon.service.operations.feed import ActivityFeed
from antiphon.service.operations.inbox import Inbox
from antiphon.service.operations.response_log import ResponseLog
from antiphon.transport.http.query import read_query
from antiphon.transport.http.request import Request
from antiphon.transport.middleware.routing import READ_ERRORS, Route
from antiphon.transport.streaming import sse
from antiphon.transport.streaming.delivery import Delivery
from antiphon.transport.streaming.event_writer import StreamFormat

_encode = msgspec.json.Encoder().encode


class ActivityEndpoint(Struct, frozen=True):
    """`recheck`: checks the key of a request again, while its reply goes on."""

    log: ResponseLog
    feed: ActivityFeed
    inbox: Inbox
    delivery: Delivery
    recheck: Callable[[Request], Awaitable[None]]

    @Route("GET", "/v1/antiphon/responses", query=SummaryQuery, gives=SummaryList, errors=READ_ERRORS)
    async def list_summaries(self, request: Request) -> None:
        """List responses without their contents. Stored responses, newest first unless `order` says otherwise, that
        match all filters. A filtered page may be short, or empty, although there is more: `last_id` is `after` of the
        next one as long as `has_more` is true. An extension.
        """
        page = await self.log.list_summaries(request.tenant, read_query(request, SummaryQuery))
        await request.reply(200, encode(page))

    @Route("GET", "/v1/antiphon/responses/{response_id}", gives=ResponseSummary, errors=READ_ERRORS)
    async def show_summary(self, request: Request) -> None:
        """Describe a response without its contents. An extension."""
        await request.reply(200, encode(await self.log.find(request.tenant, request.params["response_id"])))

    @Route("GET", "/v1/antiphon/approvals", query=ListQuery, gives=ApprovalList, errors=READ_ERRORS)
    async def list_approvals(self, request: Request) -> None:
        """List calls that wait for an approval. Requests of stored responses that were neither approved nor denied; the
        answer is the input of a new response. A page may be short although there is more. An extension.
        """
        page = await self.inbox.list_approvals(request.tenant, read_query(request, ListQuery))
        await request.reply(200, encode(page))

    @Route("GET", "/v1/antiphon/tool_calls", query=ListQuery, gives=WaitingList, errors=READ_ERRORS)
    async def list_waiting(self, request: Request) -> None:
        """List responses that wait for tool outputs. With the pending calls; their outputs are submitted to each
        response. A page may be short although there is more. An extension.
        """
        page = await self.inbox.list_waiting(request.tenant, read_query(request, ListQuery))
        await request.reply(200, encode(page))

    @Route("GET", "/v1/antiphon/feed", streams=AnyFeedEvent, errors=(*READ_ERRORS, 429))
    async def follow(self, request: Request) -> None:
        """Follow responses as they begin and end. Events of all stored responses of the tenant, on any server of the
        store, without contents, until the client disconnects. With `Last-Event-ID`, later events come first. An
        extension.
        """
        self.log.check_enabled()
        since = _read_last_id(request)
        if request.method == "HEAD":
            await request.begin(200, sse.HEADERS)
            await request.end()
            return
        reader = self.feed.subscribe(request.tenant, since, lambda: self.recheck(request))
        await self.delivery.reply(request, reader, stream_format=_FEED_FORMAT)


def _read_last_id(request: Request) -> float | None:
    """Return the time of the last event that the client has received."""
    if b"last-event-id" not in request.headers:
        return None
    try:
        since = float(request.get_single_header(b"last-event-id") or b"")
        if isfinite(since):
            return since
    except ValueError:
        pass
    raise InvalidValue("Last-Event-ID is not the id of an event of this feed.", param="Last-Event-ID")


def _encode_events(events: list[FeedEvent]) -> bytes:
    return b"".join(
        [
            b"event: %b\nid: %b\ndata: %b\n\n"
            % (str(event.__struct_config__.tag).encode(), repr(event.at).encode(), _encode(event))
            for event in events
        ]
    )


_FEED_FORMAT = StreamFormat(_encode_events, sse.encode_comment, done=b"")
