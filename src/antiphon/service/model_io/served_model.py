"""A model as resolved for a request, and its output limits."""

from msgspec import Struct, field

from antiphon.engines.base import NOT_CACHEABLE, Capabilities, Engine, Validity
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
    # invalid by default: resolve the model again for each request
    validity: Validity = field(default_factory=lambda: NOT_CACHEABLE)

    async def capabilities(self) -> Capabilities:
        """Return the engine's capabilities, extended by those of the model adapter."""
        return await self.extend_capabilities(await self.engine.capabilities(self.model))

    async def extend_capabilities(self, capabilities: Capabilities) -> Capabilities:
        """`capabilities`: as the engine reports them."""
        if capabilities.level != "chat":
            await preload()
        return extend_capabilities(capabilities, self.model)
