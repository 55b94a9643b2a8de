"""POST /v1/responses: a stream or one JSON body, as the request's `stream` says and never its Accept.

Both are the same run. A background response without `stream` is answered at once.

POST /v1/responses/compact: a long conversation, made short enough to go on with.

POST /v1/responses/input_tokens: how many tokens the same body would be as a response's input.
"""

from hashlib import sha256
from time import time
from typing import Literal

from msgspec import Struct

from antiphon.errors import InvalidValue
from antiphon.limits import Limits
from antiphon.protocol.bodies.compact import CompactedResponse, CompactResponse, decode_compact
from antiphon.protocol.decoding.codec import decode_create, encode
from antiphon.protocol.decoding.request_cache import Kinds
from antiphon.protocol.types.events import StreamEvent
from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.response import Response
from antiphon.service.compact import Compactions
from antiphon.service.responses import Responses
from antiphon.service.tokens import Counting
from antiphon.stores.base import Key
from antiphon.transport.http.request import AT_ONCE, Request, Route, decoded, note_user
from antiphon.transport.server.client_task import attended
from antiphon.transport.streaming.delivery import Delivery
from antiphon.transport.streaming.legacy_events import asked_urls

PATH = "/v1/responses"
KEY = b"idempotency-key"
KEY_SECONDS = 86_400.0  # that a key is known

_LONGEST_KEY = 255
_VISIBLE = bytes(range(0x21, 0x7F))


class ResponsesEndpoint:
    def __init__(self, service: Responses, limits: Limits, delivery: Delivery) -> None:
        self._service = service
        self._limits = limits
        self._delivery = delivery
        self._kinds = Kinds()

    def route(self, model: str) -> Route:
        """`model`: a name for the example."""
        return Route(
            method="POST",
            path=PATH,
            endpoint=self.create,
            summary="Create a response",
            description="One JSON body, or with `stream: true` server-sent events that end with `[DONE]`. The same "
            "request under the same Idempotency-Key gives the same response.",
            takes=CreateResponse,
            example={"model": model, "input": "Hello!"},
            gives=Response,
            streams=StreamEvent,
            new_work=True,
            errors=(400, 404, 413, 415, 429, 500, 503),
        )

    async def create(self, request: Request) -> None:
        body = request.body_at_hand(self._limits)
        if body is None:
            body = await request.read_body(self._limits)
        if len(body) <= AT_ONCE:
            asked = self._kinds.decode(body, self._limits)
        else:
            asked = await decoded(body, decode_create, self._limits)
        key = _key(request, body) if KEY in request.headers else None
        del body  # it may be large, and an answer takes its time
        accepted = await self._service.create(request.tenant, asked, key)
        request.ignored = accepted.ignored
        if asked.request.request_id:
            request.rename(asked.request.request_id)
        note_user(request.id, asked.request)
        if accepted.source is None:
            await request.reply(200, accepted.given or b"")
        elif asked.request.stream:
            manner = self._delivery.manner
            retold = None if manner is None else manner.open(request, asked_urls(asked.request))
            await self._delivery.stream(request, accepted.source, retold=retold)
        else:
            await self._delivery.result(request, accepted.source)


def _key(request: Request, body: bytes) -> Key:
    """The key, and a digest by which another request under the same one is known."""
    name = request.header_once(KEY)
    if not name or len(name) > _LONGEST_KEY or name.translate(None, _VISIBLE):
        raise InvalidValue(
            f"An Idempotency-Key is one header of 1 to {_LONGEST_KEY} visible ASCII characters.",
            param="Idempotency-Key",
        )
    digest = sha256(PATH.encode())
    digest.update(body)
    return Key(name.decode("ascii"), digest.digest(), time() + KEY_SECONDS)


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


INPUT_TOKENS_PATH = "/v1/responses/input_tokens"


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
            path=INPUT_TOKENS_PATH,
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
