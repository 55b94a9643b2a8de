"""Request policy of this server, applied first: service tier, stored prompt, and engine-specific fields."""

import asyncio
from collections.abc import Collection

from msgspec import Struct

from antiphon.config import Config
from antiphon.errors import InvalidValue
from antiphon.protocol.decoding.codec import DecodedRequest
from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.response import ServiceTier
from antiphon.service.planning.prompt_library import PromptLibrary
from antiphon.service.prompting import engine_fields
from antiphon.service.prompting.prepare import MAX_INLINE_ITEMS


class RequestPolicy(Struct, frozen=True, kw_only=True):
    """Operator settings that change or reject requests."""

    default_tier: ServiceTier = "default"  # for `auto` and requests without a tier; the response reports it
    allowed_tiers: Collection[ServiceTier] = ()  # besides the default; empty: all tiers
    compat: bool = True  # reject fields that OpenAI's API does not have
    prompts: PromptLibrary = PromptLibrary()

    async def apply(self, decoded: DecodedRequest) -> DecodedRequest:
        """Return the request with its tier and prompt resolved. Raises for fields that are not allowed."""
        self._resolve_tier(decoded.request)
        if engine_fields.FIELDS.keys() & decoded.sent:
            if self.compat:
                engine_fields.reject_fields(decoded.request, decoded.sent)
            elif len(decoded.request.previous_input_messages or ()) > MAX_INLINE_ITEMS:
                decoded = await asyncio.to_thread(engine_fields.accept_fields, decoded)
            else:
                decoded = engine_fields.accept_fields(decoded)
        return decoded if decoded.request.prompt is None else self.prompts.fill(decoded)

    def _resolve_tier(self, request: CreateResponse) -> None:
        """Set the actual tier of the request. Raises InvalidValue if the requested one is not allowed."""
        tier, default = request.service_tier, self.default_tier
        if tier is None or tier == "auto":
            request.service_tier = default
        elif self.allowed_tiers and tier != default and tier not in self.allowed_tiers:
            available = ", ".join(sorted({"auto", default, *self.allowed_tiers}))
            raise InvalidValue(
                f"Invalid value: '{tier}'. The service tiers of this server are: {available}.", param="service_tier"
            )


def make_request_policy(config: Config) -> RequestPolicy:
    """Build the policy from the configuration. Raises StartupError for invalid prompt files."""
    return RequestPolicy(
        default_tier=config.compatibility.default_service_tier,
        allowed_tiers=config.compatibility.allowed_service_tiers,
        compat=config.compatibility.compat == "on",
        prompts=PromptLibrary(config.compatibility.prompt_dir),
    )
