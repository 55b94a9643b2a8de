"""What the operator says of models: their names, and how long their answers may be. It may change while we serve."""

from collections.abc import Mapping

from msgspec import Struct

from antiphon.config import Config


class OutputTokens(Struct, frozen=True, kw_only=True):
    """How many an answer has."""

    default: int | None = None
    most: int | None = None

    def allowed(self, asked: int | None) -> int | None:
        wanted = self.default if asked is None else asked
        return wanted if self.most is None else min(wanted or self.most, self.most)


class Naming(Struct, frozen=True, kw_only=True):
    """By the names of the API or of the engines."""

    served: tuple[str, ...] = ()  # names of the first model, in place of its own
    aliases: Mapping[str, str] = {}
    accept_any: bool = False  # the first model answers for names that nobody knows
    rooms: Mapping[str, OutputTokens] = {}
    room: OutputTokens | None = None  # of the others; None: whatever holds for all


def naming(config: Config) -> Naming:
    default, most = config.default_output_tokens, config.max_output_tokens
    return Naming(
        served=config.served_model_name,
        aliases=config.names,
        accept_any=config.accept_any_model,
        rooms={
            name: OutputTokens(default=one.default_output_tokens or default, most=one.max_output_tokens or most)
            for name, one in config.models.items()
        },
        room=OutputTokens(default=default, most=most),
    )
