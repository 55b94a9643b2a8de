"""A model as resolved for a request, its output limits, and its use by one request."""

from msgspec import Struct

from antiphon.core.prompt import Sampling
from antiphon.engines.base import Capabilities, Engine
from antiphon.protocol.decoding.codec import DecodedRequest
from antiphon.service.model_io.sampling import make_sampling
from antiphon.service.model_io.selection import extend_capabilities, preload


class OutputTokenLimits(Struct, frozen=True, kw_only=True):
    """Default and maximum number of output tokens."""

    default: int | None = None
    maximum: int | None = None

    def resolve(self, requested: int | None) -> int | None:
        """Return the output tokens of a request within the maximum; None: unlimited."""
        tokens = self.default if requested is None else requested
        return tokens if self.maximum is None else min(tokens or self.maximum, self.maximum)


class ServedModel(Struct, frozen=True):
    """A model as resolved for a request: the client's name for it, its name at the engine, and the engine."""

    name: str
    model: str
    engine: Engine
    output_limits: OutputTokenLimits | None = None  # None: the planner's default

    async def capabilities(self) -> Capabilities:
        """Return the engine's capabilities, extended by those of the model adapter."""
        capabilities = await self.engine.capabilities(self.model)
        if capabilities.level != "chat":
            await preload()
        return extend_capabilities(capabilities, self.model)


class ModelTarget(Struct, frozen=True):
    """The model of a request, with the capabilities and sampling parameters that apply to it."""

    served: ServedModel
    capabilities: Capabilities
    max_tokens: int | None  # output tokens; None: as many as fit
    sampling: Sampling  # with that limit
    earlier_param: str  # the request field that refers to the items before the input


def make_target(
    decoded: DecodedRequest, served: ServedModel, capabilities: Capabilities, default_limits: OutputTokenLimits
) -> ModelTarget:
    """`default_limits`: output limits of models that have no own ones."""
    request = decoded.request
    max_tokens = (served.output_limits or default_limits).resolve(request.max_output_tokens)
    earlier_param = "previous_response_id" if request.conversation is None else "conversation"
    return ModelTarget(
        served, capabilities, max_tokens, make_sampling(request, decoded.sent, max_tokens), earlier_param
    )
