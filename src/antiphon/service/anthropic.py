"""Anthropic's API without a transport: a message is an exchange with a model, in that API's words.

Errors leave here under the names that a client of that API knows.
"""

from msgspec import Struct
from msgspec.structs import replace

from antiphon.agent.completion_run import Exchange
from antiphon.core.dialects.anthropic.emitter import MessagesEmitter
from antiphon.core.dialects.anthropic.request import Asked
from antiphon.errors import AntiphonError
from antiphon.ids import new_id
from antiphon.protocol.decoding.codec import Decoded
from antiphon.protocol.types.anthropic.events import MessageUsage, SaidMessage
from antiphon.protocol.types.response import ReasoningConfig
from antiphon.service.model_io.models import Models
from antiphon.service.planning.planner import Planner
from antiphon.service.runs.completion_runs import Exchanges
from antiphon.service.tokens import Counting, InputTokens


class Opened(Struct, frozen=True):
    exchange: Exchange  # to be driven or waited for, and left
    ignored: list[str]  # names of fields that change nothing


class Messages:
    def __init__(self, models: Models, planner: Planner, exchanges: Exchanges, counting: Counting) -> None:
        self._models = models
        self._planner = planner
        self._exchanges = exchanges
        self._counting = counting

    async def create(self, tenant: str, asked: Asked, request_id: str) -> Opened:
        try:
            settled = await self._planner.settle(tenant, await self._hinted(asked))
            usage = MessageUsage(input_tokens=settled.prepared.tokens or 0)  # of a stream's start; mostly not known
            message = SaidMessage(id=new_id("msg"), model=settled.served.name, usage=usage)
            dialect = MessagesEmitter(message, asked, new_id, request_id, self._planner.seals(tenant))
            return Opened(self._exchanges.open([settled], dialect), settled.ignored)
        except AntiphonError as error:
            raise asked.names.told(error) from error

    async def count(self, tenant: str, asked: Asked) -> InputTokens:
        try:
            return await self._counting.count(tenant, await self._hinted(asked))
        except AntiphonError as error:
            raise asked.names.told(error) from error

    async def _hinted(self, asked: Asked) -> Decoded:
        """A hint about the effort goes to models that can be told; for others it counts for nothing."""
        decoded = asked.decoded
        if asked.effort is None:
            return decoded
        able = await self._models.find(decoded.request.model).capabilities()
        if "reasoning.effort" not in able.honours:
            return replace(decoded, ignored=[*decoded.ignored, "output_config.effort"])
        request = replace(decoded.request, reasoning=ReasoningConfig(effort=asked.effort))
        return replace(decoded, request=request, sent=decoded.sent | {"reasoning"})
