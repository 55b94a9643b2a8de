"""/v1/responses/{id}: stored responses are retrieved, listed, replayed as a stream, cancelled and deleted.

POST /v1/responses/{id}/tool_outputs submits the output of a client's tool to a response that waits for it. The reply
only confirms it; the model's continuation is part of the response.

GET /v1/responses/{id}/trace shows operators how a response was made. An extension.
"""

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from antiphon.core.emitter.response_views import IMAGES
from antiphon.errors import NotFound, UpgradeRequired
from antiphon.limits import Limits
from antiphon.protocol.bodies.tool_outputs import SubmitToolOutput, ToolOutputTaken, decode_tool_output
from antiphon.protocol.types.lists import ItemList, ItemsQuery, ListQuery, ResponseList
from antiphon.protocol.types.request import Includable
from antiphon.protocol.types.response import Response
from antiphon.protocol.types.tool_events import StreamEvent
from antiphon.protocol.types.traces import ResponseTrace
from antiphon.service.access.api_keys import ADMIN
from antiphon.service.operations.traces import TraceStore
from antiphon.service.persistence.stored_responses import StoredResponses
from antiphon.service.runs.background import BackgroundRuns
from antiphon.service.runs.detached_runs import DetachedRuns
from antiphon.service.runs.follow import replay
from antiphon.service.tool_loop.tool_outputs import ToolOutputs
from antiphon.transport.http.query import read_query
from antiphon.transport.http.request import Request, read_json
from antiphon.transport.middleware.routing import READ_ERRORS, WRITE_ERRORS, Route
from antiphon.transport.streaming import sse
from antiphon.transport.streaming.delivery import Delivery
from antiphon.transport.streaming.legacy_events import collect_image_urls

_RESPONSE_PATH = "/v1/responses/{response_id}"


class RetrieveQuery(Struct, frozen=True, kw_only=True):
    stream: bool = False
    starting_after: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    include_obfuscation: bool | None = None
    include: list[Includable] = field(default_factory=list)


class ResponseDeleted(Struct, kw_only=True):
    id: str
    object: Literal["response.deleted"] = "response.deleted"
    deleted: bool = True


class StoredResponsesEndpoint(Struct, frozen=True):
    stored: StoredResponses
    detached_runs: DetachedRuns
    background_runs: BackgroundRuns
    tool_outputs: ToolOutputs
    traces: TraceStore
    tool_output_limits: Limits
    delivery: Delivery

    @Route("GET", "/v1/responses", query=ListQuery, gives=ResponseList, errors=READ_ERRORS)
    async def list(self, request: Request) -> None:
        """List responses. Stored responses, newest first unless `order` says otherwise; `last_id` of a page is `after`
        of the next. A page of long responses may be shorter than `limit`. An extension.
        """
        if request.headers.get(b"upgrade", b"").lower() == b"websocket":
            raise UpgradeRequired("This path does not accept WebSocket connections; use HTTP.")
        await request.reply(200, await self.stored.list_responses(request.tenant, read_query(request, ListQuery)))

    @Route("GET", _RESPONSE_PATH, query=RetrieveQuery, gives=Response, streams=StreamEvent, errors=READ_ERRORS)
    async def get(self, request: Request) -> None:
        """Retrieve a response. With `stream=true` its events are replayed, all or those after `starting_after`; while
        it runs, new events follow.
        """
        query, response_id = read_query(request, RetrieveQuery), request.params["response_id"]
        if query.stream:
            await self._replay(request, response_id, query)
            return
        unused = {"starting_after": query.starting_after, "include_obfuscation": query.include_obfuscation}
        request.ignored = [*request.ignored, *(name for name, value in unused.items() if value is not None)]
        await request.reply(200, await self.stored.get(request.tenant, response_id, query.include))

    @Route("DELETE", _RESPONSE_PATH, errors=(404, 503))
    async def delete(self, request: Request) -> ResponseDeleted:
        """Delete a response. Responses that continue it retain the items that they need."""
        response_id = request.params["response_id"]
        await self.stored.delete(request.tenant, response_id)
        return ResponseDeleted(id=response_id)

    @Route("POST", f"{_RESPONSE_PATH}/cancel", gives=Response, errors=READ_ERRORS)
    async def cancel(self, request: Request) -> None:
        """Cancel a background response. Returns the final response. Cancelling it again has no effect."""
        response_id = request.params["response_id"]
        self.stored.check_id(response_id)
        await request.reply(200, await self.background_runs.cancel(request.tenant, response_id))

    @Route("GET", f"{_RESPONSE_PATH}/input_items", query=ItemsQuery, gives=ItemList, errors=READ_ERRORS)
    async def input_items(self, request: Request) -> None:
        """List a response's input. Its own input, without that of earlier ones. Last first, unless `order` says
        otherwise.
        """
        query = read_query(request, ItemsQuery)
        page = await self.stored.list_input_items(request.tenant, request.params["response_id"], query)
        await request.reply(200, page)

    @Route("POST", f"{_RESPONSE_PATH}/tool_outputs", takes=SubmitToolOutput, gives=ToolOutputTaken, errors=WRITE_ERRORS)
    async def submit_output(self, request: Request) -> None:
        """Submit the output of a tool. For a response that was created with `wait_for_tool_outputs` and waits for the
        outputs of the client's own tools: it continues, in the same stream, when every pending call has its output.
        """
        response_id, limits = request.params["response_id"], self.tool_output_limits
        self.stored.check_id(response_id)
        parsed = await read_json(request, decode_tool_output, limits)
        request.ignored = parsed.ignored
        await request.reply(200, await self.tool_outputs.submit(request.tenant, response_id, parsed))

    @Route("GET", f"{_RESPONSE_PATH}/trace", gives=ResponseTrace, needs=ADMIN, errors=(404,))
    async def show_trace(self, request: Request) -> None:
        """Show the trace of a response. The prompt of each turn as sent to the engine, the engine's output, and
        durations of turns and tools; for the latest responses of this process, if traces are enabled (`--keep-traces`).
        """
        await request.reply(200, self.traces.find(request.tenant, request.params["response_id"]))

    async def _replay(self, request: Request, response_id: str, query: RetrieveQuery) -> None:
        """Stream the events of a response; also of one that is not stored, while it runs."""
        legacy_format = self.delivery.legacy_format
        after = -1 if query.starting_after is None else query.starting_after
        try:
            # converted events depend on earlier ones, so conversion starts with the first
            replay_after = after if legacy_format is None else -1
            source = await replay(
                self.detached_runs, request.tenant, response_id, replay_after, query.include_obfuscation
            )
        except NotFound:
            self.stored.check_id(response_id)  # may raise a more specific error
            raise
        if request.method == "HEAD":
            source.close()
            await request.begin(200, sse.HEADERS)
            await request.end()
        else:
            image_urls = [] if legacy_format is None else await self._load_image_urls(request, query)
            stream_format = self.delivery.make_response_format(request, image_urls, after)
            await self.delivery.reply(request, source, stream_format=stream_format)

    async def _load_image_urls(self, request: Request, query: RetrieveQuery) -> Sequence[str]:
        """Return the URLs of the images in the response's input, if `include` names them."""
        if IMAGES not in query.include:
            return []
        return collect_image_urls(await self.stored.load_input(request.tenant, request.params["response_id"]))
