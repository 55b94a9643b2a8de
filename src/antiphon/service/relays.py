"""What engines do that is passed on as it comes: scores, rankings, classes, pooled vectors, and what audio says.

Only the model is ours to look at: whoever serves it gets the rest, in its own name for the model. What it cost in
tokens stays as it was guessed. Who asks for what audio says as plain text gets that, also from engines that put JSON
around it.
"""

import msgspec
from msgspec import Struct

from antiphon.engines.base import Deed, Relayed
from antiphon.errors import EngineFailed
from antiphon.protocol.bodies.multipart import Form
from antiphon.protocol.bodies.rerank import BYTES, JSON, Ranking, answered, described
from antiphon.service.doing import Doing
from antiphon.service.quotas import spend

PLAIN = "text/plain"


class _Heard(Struct):
    text: str


_HEARD = msgspec.json.Decoder(_Heard)


class Relays:
    def __init__(self, doing: Doing) -> None:
        self._doing = doing

    async def json(self, tenant: str, deed: Deed, asked: Ranking) -> Relayed:
        doer = await self._doing.find(asked.model, deed)
        served = doer.served
        async with self._doing.place(doer, tenant):
            answer = await served.engine.relay(served.model, deed, asked.saying(served.model))
        spend(None)
        if _kind(answer) != BYTES:
            return Relayed(answered(answer.body, served.name))
        return Relayed(answer.body, BYTES, answer.metadata and described(answer.metadata, served.name))

    async def form(self, tenant: str, deed: Deed, asked: Form, media_type: str) -> Relayed:
        doer = await self._doing.find(asked.value, deed)
        served, plain = doer.served, asked.asks("response_format", b"text")
        async with self._doing.place(doer, tenant):
            answer = await served.engine.relay(served.model, deed, asked.saying(served.model), media_type)
        spend(None)
        if _kind(answer) != JSON:
            return answer
        return Relayed(_text(answer.body), PLAIN) if plain else Relayed(answered(answer.body, served.name))


def _kind(answer: Relayed) -> str:
    return answer.media_type.partition(";")[0].strip().lower()


def _text(body: bytes) -> bytes:
    try:
        return _HEARD.decode(body).text.encode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise EngineFailed("The engine gave an answer without a text.") from None
