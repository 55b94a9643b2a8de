"""POST /v1/completions: a stream of pieces that ends with `[DONE]`, or one JSON body, as `stream` says.

Both are the same exchange.
"""

from antiphon.core.from_completion import read_completion
from antiphon.limits import Limits
from antiphon.protocol.completions import Completion, CreateCompletion
from antiphon.service.completions import Completions
from antiphon.transport.decoding import decoded
from antiphon.transport.exchanges import ExchangeDelivery
from antiphon.transport.http import Request, Route

PATH = "/v1/completions"


class CompletionsEndpoint:
    def __init__(self, service: Completions, limits: Limits, delivery: ExchangeDelivery) -> None:
        self._service = service
        self._limits = limits
        self._delivery = delivery

    def route(self, model: str) -> Route:
        """`model`: a name for the example."""
        return Route(
            method="POST",
            path=PATH,
            endpoint=self.create,
            summary="Create a completion",
            description="The prompt goes to the model as it is, without a chat template. One JSON body, or with "
            "`stream: true` server-sent events that end with `[DONE]`.",
            takes=CreateCompletion,
            example={"model": model, "prompt": "Once upon a time", "max_tokens": 16},
            gives=Completion,
            streams=Completion,
            new_work=True,
            errors=(400, 404, 413, 415, 429, 500, 503),
        )

    async def create(self, request: Request) -> None:
        asked = await decoded(await request.read_body(self._limits), read_completion, self._limits)
        opened = await self._service.create(request.tenant, asked)
        request.ignored = opened.ignored
        if asked.request.stream:
            await self._delivery.stream(request, opened.exchange)
        else:
            await self._delivery.result(request, opened.exchange)
