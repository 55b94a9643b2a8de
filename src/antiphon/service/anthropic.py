"""Anthropic's Messages API, independent of the transport: a message is one `CompletionRun`.

Errors are raised under the field names of that API.
"""

from msgspec import Struct
from msgspec.structs import replace

from antiphon.agent.completion_run import CompletionRun
from antiphon.core.dialects.anthropic.emitter import AnthropicEmitter
from antiphon.core.dialects.anthropic.request import AnthropicRequest
from antiphon.errors import AntiphonError
from antiphon.ids import new_id
from antiphon.protocol.decoding.codec import DecodedRequest
from antiphon.protocol.types.anthropic.events import MessageUsage, SaidMessage
from antiphon.protocol.types.response import ReasoningConfig
from antiphon.service.model_io.models import Models
from antiphon.service.planning.planner import Planner
from antiphon.service.runs.completion_runs import CompletionRuns
from antiphon.service.tokens import InputTokenCounter, TokenCountResult


class AcceptedMessage(Struct, frozen=True):
    run: CompletionRun  # the caller drives it or waits for its result, then calls `leave`
    ignored: list[str]  # names of accepted fields that have no effect


class AnthropicMessages:
    def __init__(self, models: Models, planner: Planner, runs: CompletionRuns, counter: InputTokenCounter) -> None:
        self._models = models
        self._planner = planner
        self._runs = runs
        self._counter = counter

    async def create(self, tenant: str, parsed: AnthropicRequest, request_id: str) -> AcceptedMessage:
        try:
            prepared_request = await self._planner.plan(tenant, await self._apply_effort(parsed))
            # for `message_start`; usually not known yet
            usage = MessageUsage(input_tokens=prepared_request.prepared.tokens or 0)
            message = SaidMessage(id=new_id("msg"), model=prepared_request.served.name, usage=usage)
            emitter = AnthropicEmitter(message, parsed, new_id, request_id, self._planner.make_encrypter(tenant))
            return AcceptedMessage(self._runs.open([prepared_request], emitter), prepared_request.ignored)
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
