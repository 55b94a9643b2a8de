"""What a request means on this server, before anything else is looked at: its tier, its prompt, its engine's fields."""

import asyncio

from msgspec import Struct

from antiphon.config import Config
from antiphon.protocol.decoding.codec import Decoded
from antiphon.service.access.service_tiers import Tiers
from antiphon.service.planning.prompt_library import KeptPrompts
from antiphon.service.prompting import engine_fields
from antiphon.service.prompting.prepare import AT_ONCE


class Meaning(Struct, frozen=True, kw_only=True):
    """The operator's word."""

    tiers: Tiers = Tiers()
    compat: bool = True  # fields that OpenAI's API does not have are refused
    prompts: KeptPrompts = KeptPrompts()

    async def of(self, decoded: Decoded) -> Decoded:
        """In full. What may not be asked for is refused by name."""
        self.tiers.settle(decoded.request)
        if engine_fields.FIELDS.keys() & decoded.sent:
            if self.compat:
                engine_fields.refuse(decoded.request, decoded.sent)
            elif len(decoded.request.previous_input_messages or ()) > AT_ONCE:
                decoded = await asyncio.to_thread(engine_fields.taken, decoded)
            else:
                decoded = engine_fields.taken(decoded)
        return decoded if decoded.request.prompt is None else self.prompts.filled(decoded)


def meaning(config: Config) -> Meaning:
    """StartupError for prompts that do not fit."""
    return Meaning(
        tiers=Tiers(default=config.default_service_tier, allowed=config.allowed_service_tiers),
        compat=config.compat == "on",
        prompts=KeptPrompts(config.prompt_dir),
    )
