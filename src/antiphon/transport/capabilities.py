"""GET /v1/capabilities: what each model on its engine takes and honours, and why it does not honour the rest."""

from typing import Literal, Protocol

import msgspec
from msgspec import Struct

from antiphon.engines.base import Capabilities
from antiphon.service.models import Served
from antiphon.transport.http import Request, Route

_encode = msgspec.json.Encoder().encode


class Directory(Protocol):
    async def able(self) -> list[tuple[Served, Capabilities]]: ...


class Ability(Struct, frozen=True, kw_only=True):
    """A model as it is served now."""

    model: str
    engine: str
    engine_version: str | None
    healthy: bool
    level: Literal["chat", "text", "tokens"]  # of what is sent to the engine
    context: int | None
    slots: int | None
    counts_tokens: bool
    honours: list[str]
    lacks: dict[str, str]


class Abilities(Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    data: list[Ability]


class CapabilitiesEndpoint:
    def __init__(self, models: Directory) -> None:
        self._models = models

    def route(self) -> Route:
        return Route(
            method="GET",
            path="/v1/capabilities",
            endpoint=self.capabilities,
            summary="What can the models do?",
            description="Request fields that are honoured, and those that are refused, for each model on its engine.",
            gives=Abilities,
            errors=(503,),
        )

    async def capabilities(self, request: Request) -> None:
        data = [_ability(served, able) for served, able in await self._models.able()]
        await request.reply(200, _encode(Abilities(data=data)))


def _ability(served: Served, able: Capabilities) -> Ability:
    return Ability(
        model=served.name,
        engine=served.engine.name,
        engine_version=able.version,
        healthy=served.engine.healthy(),
        level=able.prompt,
        context=able.context,
        slots=able.slots,
        counts_tokens=able.counts,
        honours=sorted(able.honours),
        lacks=dict(sorted(able.lacks.items())),
    )
