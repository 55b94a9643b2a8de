"""What an engine said beside its words, kept until it can be told: extras, and the ids of tokens. For each choice."""

from typing import get_args

from msgspec import UNSET, UnsetType

from antiphon.core.prompt import Chunk, Extras
from antiphon.protocol.chat_answers import Tier

_TIERS: dict[str, Tier] = {tier: tier for tier in get_args(Tier)}


class PassedOn:
    def __init__(self, choices: int, tier: str | None) -> None:
        """`tier`: of service, if it is to be told; an engine that says another one knows better."""
        self.extras = [Extras() for _ in range(choices)]
        self.tokens: list[list[int]] = [[] for _ in range(choices)]  # that were not told yet
        self._tier: Tier | UnsetType = _TIERS.get(tier or "", UNSET)
        self.fingerprint: str | None = None

    def note(self, chunk: Chunk, choice: int) -> None:
        self.tokens[choice] += chunk.tokens
        if (new := chunk.extras) is None:
            return
        known = self.extras[choice]
        for name in Extras.__struct_fields__:
            if (value := getattr(new, name)) is not None:
                setattr(known, name, value)
        self.fingerprint = new.system_fingerprint or self.fingerprint
        self._tier = _TIERS.get(new.service_tier or "", self._tier)

    @property
    def tier(self) -> Tier | UnsetType:
        return self._tier

    def take_tokens(self, choice: int) -> list[int] | UnsetType:
        taken, self.tokens[choice] = self.tokens[choice], []
        return taken or UNSET
