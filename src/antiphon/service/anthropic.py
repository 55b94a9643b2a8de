"""Anthropic's Messages API, independent of the transport: a message is one `CompletionRun`.

Errors are raised under the field names of that API.
"""

from msgspec.structs import replace

from antiphon.core.dialects.anthropic_emitter import AnthropicEmitter
from antiphon.core.dialects.anthropic_request import AnthropicRequest
from antiphon.errors import AntiphonError
from antiphon.ids import new_id
from antiphon.protocol.decoding.codec import DecodedRequest
from antiphon.protocol.types.anthropic.events import MessageUsage, SaidMessage
from antiphon.protocol.types.response import ReasoningConfig
from antiphon.service.model_io.models import Models
from antiphon.service.planning.planner import Planner
from antiphon.service.runs.completion_runs import AcceptedCompletion, CompletionRuns
from antiphon.service.tokens import InputTokenCounter, TokenCountResult


class AnthropicMessages:
    def __init__(self, models: Models, planner: Planner, runs: CompletionRuns, counter: InputTokenCounter) -> None:
        self._models = models
        self._planner = planner
        self._runs = runs
        self._counter = counter

    async def create(self, tenant: str, parsed: AnthropicRequest, request_id: str) -> AcceptedCompletion:
        try:
            prepared_request = await self._planner.plan(tenant, await self._apply_effort(parsed))
            # for `message_start`; usually not known yet
            usage = MessageUsage(input_tokens=prepared_request.prepared.tokens or 0)
            message = SaidMessage(id=new_id("msg"), model=prepared_request.served.name, usage=usage)
            emitter = AnthropicEmitter(message, parsed, new_id, request_id, self._planner.make_encrypter(tenant))
            return self._runs.open([prepared_request], emitter, parsed.names.translate_error)
        except AntiphonError as error:
            raise parsed.names.translate_error(error) from error

    async def count(self, tenant: str, parsed: AnthropicRequest) -> TokenCountResult:
        try:
            return await self._counter.count(tenant, await self._apply_effort(parsed))
        except AntiphonError as error:
            raise parsed.names.translate_error(error) from error

    async def _apply_effort(self, parsed: AnthropicRequest) -> DecodedRequest:
        """Pass `output_config.effort` on to models that support an effort; report it as ignored otherwise."""
        decoded = parsed.decoded
        if parsed.effort is None:
            return decoded
        capabilities = await self._models.find(decoded.request.model).capabilities()
        if "reasoning.effort" not in capabilities.supported_fields:
            return replace(decoded, ignored=[*decoded.ignored, "output_config.effort"])
        request = replace(decoded.request, reasoning=ReasoningConfig(effort=parsed.effort))
        return replace(decoded, request=request, sent=decoded.sent | {"reasoning"})
