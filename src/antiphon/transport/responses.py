"""POST /v1/responses: a stream or one JSON body, as the request's `stream` says and never its Accept.

Both are the same run. A background response without `stream` is answered at once.
"""

from hashlib import sha256
from time import time

from antiphon.errors import InvalidValue
from antiphon.limits import Limits
from antiphon.protocol.decoding.codec import decode_create
from antiphon.protocol.decoding.request_cache import Kinds
from antiphon.protocol.types.events import StreamEvent
from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.response import Response
from antiphon.service.responses import Responses
from antiphon.stores.base import Key
from antiphon.transport.decoding import AT_ONCE, decoded
from antiphon.transport.delivery import Delivery
from antiphon.transport.http import Request, Route
from antiphon.transport.retold import asked_urls
from antiphon.transport.users import note_user

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
