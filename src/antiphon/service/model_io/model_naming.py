"""The operator's names for models: served names, aliases, and the output limits by name."""

from collections.abc import Mapping

from msgspec import Struct

from antiphon.config import Config
from antiphon.service.model_io.served_model import OutputTokenLimits


class ModelNaming(Struct, frozen=True, kw_only=True):
    """Operator settings for model names, in terms of API names or engine names."""

    served: tuple[str, ...] = ()  # names of the first model, replacing its own
    aliases: Mapping[str, str] = {}
    accept_any: bool = False  # the first model serves unknown names
    limits: Mapping[str, OutputTokenLimits] = {}
    default_limits: OutputTokenLimits | None = None  # of all other models; None: the planner's default

    def find_limits(self, name: str, model: str) -> OutputTokenLimits | None:
        """Return the limits of a model by the client's name for it, or else by its name at the engine."""
        return self.limits.get(name) or self.limits.get(model) or self.default_limits


def make_naming(config: Config) -> ModelNaming:
    default, maximum = config.inference.default_output_tokens, config.inference.max_output_tokens
    return ModelNaming(
        served=config.inference.served_model_name,
        aliases=config.inference.names,
        accept_any=config.inference.accept_any_model,
        limits={
            name: OutputTokenLimits(
                default=spec.default_output_tokens or default, maximum=spec.max_output_tokens or maximum
            )
            for name, spec in config.inference.models.items()
        },
        default_limits=OutputTokenLimits(default=default, maximum=maximum),
    )
