"""Makes the outlines of requests, and keeps each with its kind: until the model is served elsewhere, or the engine says
something new of itself."""

from msgspec.structs import replace

from antiphon.protocol.decoding.codec import Decoded
from antiphon.protocol.types.response import Response
from antiphon.service.aim import aimed
from antiphon.service.honesty import refuse_unhonoured, refuse_unserved
from antiphon.service.meaning import Meaning
from antiphon.service.models import Models
from antiphon.service.naming import OutputTokens
from antiphon.service.outline import Outline, outlined
from antiphon.service.toolkit import Toolkit


class Outlines:
    def __init__(self, models: Models, toolkit: Toolkit, meaning: Meaning, room: OutputTokens, stores: bool) -> None:
        """`stores`: what is to be kept is."""
        self._models = models
        self._toolkit = toolkit
        self._meaning = meaning
        self._room = room
        self._stores = stores

    def known(self, decoded: Decoded) -> tuple[Decoded, Outline] | None:
        """The request, and the outline of its kind, if there is one that is sure to hold."""
        if decoded.kind is None or decoded.kind.outline is None:
            return None
        known: Outline = decoded.kind.outline
        if not (known.found.standing.stands and known.aim.served.standing.stands):
            return None
        decoded.request.service_tier = known.opening.service_tier
        return decoded, known

    async def of(self, decoded: Decoded, opening: Response | None) -> tuple[Decoded, Outline]:
        """And the request as it is meant. A Response that is in the store has its tier already. What is wrong is
        raised."""
        kind, request = decoded.kind, decoded.request
        if kind is not None and kind.outline is not None and await self._holds(kind.outline):
            request.service_tier = kind.outline.opening.service_tier
            return decoded, kind.outline
        meant = decoded
        if opening is None:
            meant = await self._meaning.of(decoded)
        else:
            request.service_tier = opening.service_tier
        if meant is not decoded:  # it says more than it did, or something else
            return (meant := replace(meant, kind=None)), await self._made(meant)
        outline = await self._made(decoded)
        if kind is not None:
            kind.outline = outline
        return decoded, outline

    async def _holds(self, known: Outline) -> bool:
        served = known.aim.served
        found = self._models.find(served.name)
        return found is served and await found.engine.capabilities(found.model) is known.found

    async def _made(self, decoded: Decoded) -> Outline:
        request = decoded.request
        refuse_unserved(request, decoded.sent)
        self._toolkit.settle(request)
        served = self._models.find(request.model)
        found = await served.engine.capabilities(served.model)
        able = await served.spoken(found)
        refuse_unhonoured(request, decoded.sent, able, served.engine.name)
        stores = self._stores and request.store is not False
        runs = self._toolkit.runs(request) or self._toolkit.awaits(request, stores)
        return outlined(decoded, aimed(decoded, served, able, self._room), found, stores=stores, runs=runs)
