"""/v1/responses/{id}: what was stored is read, listed, told again as a stream, cancelled and deleted.

POST /v1/responses/{id}/tool_outputs: what a client's tool gave, for a response that waits for it.

The answer says only that the output was taken; what the model makes of it is told where the response is.

GET /v1/responses/{id}/trace: what went on in a response, for operators. An extension.
"""

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from antiphon.errors import NotFound, UpgradeRequired
from antiphon.limits import Limits
from antiphon.protocol.bodies.tool_outputs import SubmitToolOutput, ToolOutputTaken, decode_tool_output
from antiphon.protocol.decoding.codec import encode
from antiphon.protocol.types.events import StreamEvent
from antiphon.protocol.types.lists import ItemList, ItemsQuery, ListQuery, ResponseList
from antiphon.protocol.types.request import Includable
from antiphon.protocol.types.response import Response
from antiphon.protocol.types.traces import ResponseTrace
from antiphon.service.access.principal import ADMIN
from antiphon.service.operations.traces import Traces
from antiphon.service.persistence.stored_responses import Stored
from antiphon.service.runs.background import Jobs
from antiphon.service.runs.follow import Following
from antiphon.service.tool_loop.tool_outputs import ToolOutputs
from antiphon.transport.http.query import read_query
from antiphon.transport.http.request import Request, Route, decoded
from antiphon.transport.streaming import sse
from antiphon.transport.streaming.delivery import Delivery
from antiphon.transport.streaming.legacy_events import IMAGES, image_urls

_ONE = "/v1/responses/{response_id}"


class RetrieveQuery(Struct, frozen=True, kw_only=True):
    stream: bool = False
    starting_after: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    include_obfuscation: bool | None = None
    include: list[Includable] = field(default_factory=list)


class ResponseDeleted(Struct, kw_only=True):
    id: str
    object: Literal["response.deleted"] = "response.deleted"
    deleted: bool = True


class StoredEndpoint:
    def __init__(self, stored: Stored, following: Following, jobs: Jobs, delivery: Delivery) -> None:
        self._stored = stored
        self._following = following
        self._jobs = jobs
        self._delivery = delivery

    def routes(self) -> list[Route]:
        return [
            Route(
                method="GET",
                path="/v1/responses",
                endpoint=self.list,
                summary="List the responses",
                description="Those that are stored, newest first unless `order` says otherwise; `last_id` of a page is "
                "`after` of the next. A page of long responses may be shorter than `limit`. An extension.",
                query=ListQuery,
                gives=ResponseList,
                errors=(400, 404, 503),
            ),
            Route(
                method="GET",
                path=_ONE,
                endpoint=self.get,
                summary="Retrieve a response",
                description="With `stream=true` its events from the first on, or from the one behind `starting_after`: "
                "those that were, and while it runs those to come.",
                query=RetrieveQuery,
                gives=Response,
                streams=StreamEvent,
                errors=(400, 404, 503),
            ),
            Route(
                method="DELETE",
                path=_ONE,
                endpoint=self.delete,
                summary="Delete a response",
                description="Responses that continue it keep what they need of it.",
                gives=ResponseDeleted,
                errors=(404, 503),
            ),
            Route(
                method="POST",
                path=f"{_ONE}/cancel",
                endpoint=self.cancel,
                summary="Cancel a background response",
                description="Gives the response as it ended. Cancelling it again changes nothing.",
                gives=Response,
                errors=(400, 404, 503),
            ),
            Route(
                method="GET",
                path=f"{_ONE}/input_items",
                endpoint=self.input_items,
                summary="List a response's input",
                description="Its own input, without what came before it. Last first, unless `order` says otherwise.",
                query=ItemsQuery,
                gives=ItemList,
                errors=(400, 404, 503),
            ),
        ]

    async def list(self, request: Request) -> None:
        if request.headers.get(b"upgrade", b"").lower() == b"websocket":
            raise UpgradeRequired("There is no WebSocket here; use HTTP.")
        await request.reply(200, await self._stored.page(request.tenant, read_query(request, ListQuery)))

    async def get(self, request: Request) -> None:
        asked, response_id = read_query(request, RetrieveQuery), request.params["response_id"]
        if asked.stream:
            await self._replay(request, response_id, asked)
            return
        idle = {"starting_after": asked.starting_after, "include_obfuscation": asked.include_obfuscation}
        request.ignored = [*request.ignored, *(name for name, value in idle.items() if value is not None)]
        await request.reply(200, await self._stored.get(request.tenant, response_id, asked.include))

    async def delete(self, request: Request) -> None:
        response_id = request.params["response_id"]
        await self._stored.delete(request.tenant, response_id)
        await request.reply(200, encode(ResponseDeleted(id=response_id)))

    async def cancel(self, request: Request) -> None:
        response_id = request.params["response_id"]
        self._stored.check(response_id)
        await request.reply(200, await self._jobs.cancel(request.tenant, response_id))

    async def input_items(self, request: Request) -> None:
        asked = read_query(request, ItemsQuery)
        page = await self._stored.input_items(request.tenant, request.params["response_id"], asked)
        await request.reply(200, page)

    async def _replay(self, request: Request, response_id: str, asked: RetrieveQuery) -> None:
        """Also of a response that is not stored, as long as it runs."""
        after, manner = -1 if asked.starting_after is None else asked.starting_after, self._delivery.manner
        try:
            heard = after if manner is None else -1  # what is retold is told from its beginning
            source = await self._following.replay(request.tenant, response_id, heard, asked.include_obfuscation)
        except NotFound:
            self._stored.check(response_id)  # it may know why
            raise
        if request.method == "HEAD":
            source.leave()
            await request.begin(200, sse.HEADERS)
            await request.end()
        else:
            retold = None if manner is None else manner.open(request, await self._urls(request, asked), after)
            await self._delivery.stream(request, source, retold=retold)

    async def _urls(self, request: Request, asked: RetrieveQuery) -> Sequence[str]:
        """Of the pictures that the response was asked with, for who includes them."""
        if IMAGES not in asked.include:
            return []
        return image_urls(await self._stored.input(request.tenant, request.params["response_id"]))


class ToolOutputsEndpoint:
    def __init__(self, service: ToolOutputs, stored: Stored, limits: Limits, max_bytes: int) -> None:
        self._service = service
        self._stored = stored
        self._limits = replace(limits, body_bytes=min(limits.body_bytes, max_bytes))

    def route(self) -> Route:
        return Route(
            method="POST",
            path="/v1/responses/{response_id}/tool_outputs",
            endpoint=self.submit,
            summary="Submit the output of a tool",
            description="For a response that was created with `wait_for_tool_outputs` and pauses at calls of the "
            "client's own tools: it goes on, in the same stream, when every pending call has its output.",
            takes=SubmitToolOutput,
            example={"tool_call_id": "call_1", "output": [{"type": "output_text", "text": "22 °C, sunny"}]},
            gives=ToolOutputTaken,
            errors=(400, 404, 413, 415, 503),
        )

    async def submit(self, request: Request) -> None:
        response_id = request.params["response_id"]
        self._stored.check(response_id)
        asked = await decoded(await request.read_body(self._limits), decode_tool_output, self._limits)
        request.ignored = asked.ignored
        await request.reply(200, await self._service.submit(request.tenant, response_id, asked))


class TracesEndpoint:
    def __init__(self, traces: Traces) -> None:
        self._traces = traces

    def route(self) -> Route:
        return Route(
            method="GET",
            path="/v1/responses/{response_id}/trace",
            endpoint=self.show,
            summary="What went on in a response",
            description="The prompt of each turn as the engine got it, what the engine said, and how long each turn "
            "and tool took; of the last responses of this process, if it keeps any (`--keep-traces`).",
            gives=ResponseTrace,
            needs=ADMIN,
            errors=(404,),
        )

    async def show(self, request: Request) -> None:
        await request.reply(200, self._traces.find(request.tenant, request.params["response_id"]))
