"""Request policy of this server, applied first: service tier, stored prompt, and engine-specific fields."""

import asyncio

from msgspec import Struct

from antiphon.config import Config
from antiphon.protocol.decoding.codec import DecodedRequest
from antiphon.service.access.service_tiers import ServiceTiers
from antiphon.service.planning.prompt_library import PromptLibrary
from antiphon.service.prompting import engine_fields
from antiphon.service.prompting.prepare import MAX_INLINE_ITEMS


class RequestPolicy(Struct, frozen=True, kw_only=True):
    """Operator settings that change or reject requests."""

    tiers: ServiceTiers = ServiceTiers()
    compat: bool = True  # reject fields that OpenAI's API does not have
    prompts: PromptLibrary = PromptLibrary()

    async def apply(self, decoded: DecodedRequest) -> DecodedRequest:
        """Return the request with its tier and prompt resolved. Raises for fields that are not allowed."""
        self.tiers.resolve(decoded.request)
        if engine_fields.FIELDS.keys() & decoded.sent:
            if self.compat:
                engine_fields.reject_fields(decoded.request, decoded.sent)
            elif len(decoded.request.previous_input_messages or ()) > MAX_INLINE_ITEMS:
                decoded = await asyncio.to_thread(engine_fields.accept_fields, decoded)
            else:
                decoded = engine_fields.accept_fields(decoded)
        return decoded if decoded.request.prompt is None else self.prompts.fill(decoded)


def make_request_policy(config: Config) -> RequestPolicy:
    """Build the policy from the configuration. Raises StartupError for invalid prompt files."""
    return RequestPolicy(
        tiers=ServiceTiers(
            default=config.compatibility.default_service_tier, allowed=config.compatibility.allowed_service_tiers
        ),
        compat=config.compatibility.compat == "on",
        prompts=PromptLibrary(config.compatibility.prompt_dir),
    )
