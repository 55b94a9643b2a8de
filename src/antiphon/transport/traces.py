"""GET /v1/responses/{id}/trace: what went on in a response, for operators. An extension."""

from antiphon.protocol.types.traces import ResponseTrace
from antiphon.service.access.principal import ADMIN
from antiphon.service.operations.traces import Traces
from antiphon.transport.http import Request, Route


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
