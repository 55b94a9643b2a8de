"""Embeddings, without a transport: found by name, let in like any other work, computed by the engine."""

from antiphon.engines.base import Embedded
from antiphon.errors import EngineFailed
from antiphon.protocol.bodies.embeddings import CreateEmbedding, inputs
from antiphon.service.doing import Doer, Doing
from antiphon.service.honesty import unsupported
from antiphon.service.quotas import spend

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
