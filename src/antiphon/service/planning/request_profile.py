"""Makes the outlines of requests, and keeps each with its kind: until the model is served elsewhere, or the engine says
something new of itself.

What is settled about a request whatever its input says, and so holds for every request of its kind (kinds.py).
"""

from msgspec import Struct
from msgspec.structs import replace

from antiphon.core.emitter.fold import opening
from antiphon.engines.base import Capabilities
from antiphon.protocol.decoding.codec import Decoded
from antiphon.protocol.types.response import Response
from antiphon.service.access.service_tiers import rank
from antiphon.service.model_io.models import Models, OutputTokens
from antiphon.service.planning.request_policy import Meaning
from antiphon.service.planning.validation import ignored, refuse_unhonoured, refuse_unserved
from antiphon.service.prompting.call_template import Aim, aimed
from antiphon.service.prompting.warmup import warms
from antiphon.service.tool_loop.toolkit import Toolkit


class Outline(Struct, frozen=True):
    found: Capabilities  # what the engine said of itself; as long as that is all, the outline holds
    aim: Aim
    opening: Response  # to copy: its id, time and past are not those of any
    ignored: list[str]  # names of fields that change nothing
    rank: int  # in the queue of its model
    warms: bool  # nothing is to be said
    once: bool  # it takes one answer in one turn and nothing else, unless its items ask for more
    needs_store: bool  # for what it asks for
    obfuscates: bool  # what is told is to be padded


def outlined(decoded: Decoded, aim: Aim, found: Capabilities, *, stores: bool, runs: bool) -> Outline:
    """`stores`: the response is kept. `runs`: there is something to run or to wait for between its turns."""
    begins = opening(decoded.request, decoded.sent, "", aim.served.name, 0, store=stores)
    request, options = decoded.request, decoded.request.stream_options
    return Outline(
        found=found,
        aim=aim,
        opening=begins,
        ignored=ignored(request, decoded.sent),
        rank=rank(begins),
        warms=warms(request),
        once=not (runs or request.context_management or warms(request) or (request.n or 1) > 1),
        needs_store=bool(request.background or request.wait_for_tool_outputs),
        obfuscates=options is not None and options.include_obfuscation,
    )


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
