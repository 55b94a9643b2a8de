"""POST /v1/responses/input_tokens: how many tokens the same body would be as a response's input."""

from typing import Literal

from msgspec import Struct

from antiphon.limits import Limits
from antiphon.protocol.decoding.codec import decode_create, encode
from antiphon.protocol.types.request import CreateResponse
from antiphon.service.tokens import Counting
from antiphon.transport.decoding import decoded
from antiphon.transport.http import Request, Route

PATH = "/v1/responses/input_tokens"


class InputTokenCount(Struct, kw_only=True):
    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


class InputTokensEndpoint:
    def __init__(self, counting: Counting, limits: Limits) -> None:
        self._counting = counting
        self._limits = limits

    def route(self, model: str) -> Route:
        """`model`: a name for the example."""
        return Route(
            method="POST",
            path=PATH,
            endpoint=self.count,
            summary="Count the tokens of an input",
            description="What `usage.input_tokens` of a response to the same body would be. Nothing is generated or "
            "kept. Engines that cannot tell are refused by name.",
            takes=CreateResponse,
            example={"model": model, "input": "Hello!"},
            gives=InputTokenCount,
            new_work=True,
            errors=(400, 404, 413, 415, 429, 500, 503),
        )

    async def count(self, request: Request) -> None:
        asked = await decoded(await request.read_body(self._limits), decode_create, self._limits)
        counted = await self._counting.count(request.tenant, asked)
        request.ignored = counted.ignored
        await request.reply(200, encode(InputTokenCount(input_tokens=counted.tokens)))
