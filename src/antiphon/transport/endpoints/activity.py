"""/v1/antiphon/…: what happens to the responses of a tenant, without their contents. Extensions, made for a page."""

from msgspec import Struct

from antiphon.protocol.decoding.codec import encode
from antiphon.protocol.types.operations.activity import ResponseSummary, SummaryList, SummaryQuery
from antiphon.service.operations.response_log import ResponseLog
from antiphon.transport.http.query import read_query
from antiphon.transport.http.request import Request
from antiphon.transport.middleware.routing import READ_ERRORS, Route


class ActivityEndpoint(Struct, frozen=True):
    log: ResponseLog

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
