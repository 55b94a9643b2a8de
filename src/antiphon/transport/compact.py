"""POST /v1/responses/compact: a long conversation, made short enough to go on with."""

from antiphon.limits import Limits
from antiphon.protocol.bodies.compact import CompactedResponse, CompactResponse, decode_compact
from antiphon.protocol.decoding.codec import encode
from antiphon.service.compact import Compactions
from antiphon.transport.attending import attended
from antiphon.transport.decoding import decoded
from antiphon.transport.http import Request, Route


class CompactEndpoint:
    def __init__(self, compactions: Compactions, limits: Limits) -> None:
        self._compactions = compactions
        self._limits = limits

    def route(self, model: str) -> Route:
        """`model`: a name for the example."""
        return Route(
            method="POST",
            path="/v1/responses/compact",
            endpoint=self.compact,
            summary="Compact a conversation",
            description="The user's messages and one compaction item, in which the model's summary of all the rest is "
            "sealed. Send the output back as the beginning of an `input`, as it is. Nothing is kept.",
            takes=CompactResponse,
            example={"model": model, "input": [{"role": "user", "content": "Hello!"}]},
            gives=CompactedResponse,
            new_work=True,
            errors=(400, 404, 413, 415, 429, 500, 503),
        )

    async def compact(self, request: Request) -> None:
        asked = await decoded(await request.read_body(self._limits), decode_compact, self._limits)
        given = await attended(request, self._compactions.compact(request.tenant, asked))
        request.ignored = given.ignored
        await request.reply(200, encode(given.compaction))
