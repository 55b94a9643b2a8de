"""Who does what a request wants, other than generating; and its place there, within a time.

A model that does not do it is a 404 whose sentence names those that do.

Embeddings, without a transport: found by name, let in like any other work, computed by the engine.

What engines do that is passed on as it comes: scores, rankings, classes, pooled vectors, and what audio says.

Only the model is ours to look at: whoever serves it gets the rest, in its own name for the model. What it cost in
tokens stays as it was guessed. Who asks for what audio says as plain text gets that, also from engines that put JSON
around it.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext

import msgspec
from msgspec import Struct

from antiphon.engines.base import Capabilities, Deed, Embedded, Relayed
from antiphon.errors import EngineFailed, NotFound
from antiphon.protocol.bodies.embeddings import CreateEmbedding, inputs
from antiphon.protocol.bodies.multipart import Form
from antiphon.protocol.bodies.rerank import BYTES, JSON, Ranking, answered, described
from antiphon.service.access.rate_limits import spend
from antiphon.service.model_io.models import Models, Served
from antiphon.service.planning.validation import unsupported

_NAMED = 5
_NOT = {
    "generate": "does not generate",
    "embed": "makes no embeddings",
    "tokenize": "is on an engine that does not tokenize for others",
    "detokenize": "is on an engine that does not detokenize for others",
    "score": "does not score texts",
    "rerank": "does not rank documents",
    "classify": "does not classify texts",
    "pooling": "does no pooling",
    "transcribe": "does not transcribe audio",
    "translate": "does not translate audio",
}


class Doer(Struct, frozen=True):
    served: Served
    able: Capabilities


class Doing:
    def __init__(self, models: Models, seconds: float) -> None:
        self._models = models
        self._seconds = seconds

    async def find(self, name: str | None, deed: Deed) -> Doer:
        """By name; where any name is taken, or none is given to an engine that needs none, the first one that does."""
        if name is None:
            return await self._first(deed)
        served = self._models.find(name)
        able = await served.capabilities()
        if deed in able.does:
            return Doer(served, able)
        others = await self._doers(deed)
        if others and name not in {model.id for model in self._models.models()}:
            other = others[0]
            return Doer(Served(name, other.served.model, other.served.engine), other.able)
        raise NotFound(f"The model '{name[:80]}' {_NOT[deed]}. {_who(others)}", param="model")

    @asynccontextmanager
    async def place(self, doer: Doer, tenant: str) -> AsyncIterator[None]:
        """Busy if the model's queue is full; what takes longer than anything may is given up."""
        ticket = self._models.admit(doer.served, doer.able, tenant=tenant)
        try:
            with ticket or nullcontext():
                async with asyncio.timeout(self._seconds):
                    if ticket is not None:
                        await ticket.ready()
                    yield
        except TimeoutError:
            raise EngineFailed(f"This took longer than {self._seconds:.0f} seconds.") from None

    async def _first(self, deed: Deed) -> Doer:
        doers = await self._doers(deed)
        if not doers:
            raise NotFound(f"Every model here {_NOT[deed]}.")
        return doers[0]

    async def _doers(self, deed: Deed) -> list[Doer]:
        return [Doer(served, able) for served, able in await self._models.able() if deed in able.does]


def _who(others: list[Doer]) -> str:
    if not others:
        return "Nor does any other here."
    return f"Of those here, this does: {', '.join([other.served.name for other in others[:_NAMED]])}."


_OPTIONAL = ("dimensions", "truncate_prompt_tokens")


class Embeddings:
    def __init__(self, doing: Doing) -> None:
        self._doing = doing

    async def create(self, tenant: str, asked: CreateEmbedding) -> Embedded:
        doer = await self._doing.find(asked.model, "embed")
        _refuse(asked, doer)
        given = inputs(asked)
        async with self._doing.place(doer, tenant):
            made = await doer.served.engine.embed(
                doer.served.model, given, asked.dimensions, asked.truncate_prompt_tokens
            )
        spend(made.tokens)
        if len(made.vectors) != len(given):
            raise EngineFailed("The engine gave other vectors than it was asked for.")
        return made


def _refuse(asked: CreateEmbedding, doer: Doer) -> None:
    for name in _OPTIONAL:
        if getattr(asked, name) is not None and name not in doer.able.honours:
            raise unsupported(name, doer.able, doer.served.engine.name)


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
