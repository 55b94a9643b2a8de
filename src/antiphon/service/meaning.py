"""What a request means on this server, before anything else is looked at: its tier, its prompt, its engine's fields."""

import asyncio

from msgspec import Struct

from antiphon.config import Config
from antiphon.protocol.decoding.codec import Decoded
from antiphon.service import compat
from antiphon.service.prepare import AT_ONCE
from antiphon.service.prompts_kept import KeptPrompts
from antiphon.service.tiers import Tiers


class Meaning(Struct, frozen=True, kw_only=True):
    """The operator's word."""

    tiers: Tiers = Tiers()
    compat: bool = True  # fields that OpenAI's API does not have are refused
    prompts: KeptPrompts = KeptPrompts()

    async def of(self, decoded: Decoded) -> Decoded:
        """In full. What may not be asked for is refused by name."""
        self.tiers.settle(decoded.request)
        if compat.FIELDS.keys() & decoded.sent:
            if self.compat:
                compat.refuse(decoded.request, decoded.sent)
            elif len(decoded.request.previous_input_messages or ()) > AT_ONCE:
                decoded = await asyncio.to_thread(compat.taken, decoded)
            else:
                decoded = compat.taken(decoded)
        return decoded if decoded.request.prompt is None else self.prompts.filled(decoded)


def meaning(config: Config) -> Meaning:
    """StartupError for prompts that do not fit."""
    return Meaning(
        tiers=Tiers(default=config.default_service_tier, allowed=config.allowed_service_tiers),
        compat=config.compat == "on",
        prompts=KeptPrompts(config.prompt_dir),
    )
