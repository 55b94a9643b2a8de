"""Who does what a request wants, other than generating; and its place there, within a time.

A model that does not do it is a 404 whose sentence names those that do.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext

from msgspec import Struct

from antiphon.engines.base import Capabilities, Deed
from antiphon.errors import EngineFailed, NotFound
from antiphon.service.models import Models, Served

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
