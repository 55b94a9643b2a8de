"""Settings for clients of other servers: service tiers, extra fields, legacy events, headers, and stored prompts."""

from pathlib import Path
from typing import Annotated, Final, Literal

from msgspec import Struct

from antiphon.config.help_text import COMPATIBILITY
from antiphon.config.value_types import Key

# Names of the same settings in vLLM's fork; both names work.
ALTERNATIVE_NAMES: Final = {
    "keep_streams": "responses_session_ttl",
    "max_active_sessions": "responses_max_active_sessions",
    "disable_store": "disable_responses_store",
    "store_ttl": "responses_store_ttl",
    "store_max_entries": "responses_store_max_entries",
    "store_max_bytes": "responses_store_max_bytes",
    "ping_interval": "responses_ping_interval_seconds",
    "default_service_tier": "responses_default_service_tier",
    "allowed_service_tiers": "responses_allowed_service_tiers",
    "compat": "responses_compatibility_mode",
    "reasoning_events": "legacy_reasoning_events",  # true selects the names that are now OpenAI's
}

Tier = Literal["default", "flex", "scale", "priority", "fast", "ultrafast"]
NamedTier = Literal["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"]
_SWITCH_SYNONYMS: Final = {"true": "on", "false": "off"}


class CompatibilitySettings(Struct, frozen=True, kw_only=True):
    """Service tiers, extensions of other servers, headers, and stored prompts."""

    default_service_tier: Annotated[
        Tier,
        COMPATIBILITY("Service tier of requests that set `auto` or none.", synonyms={"auto": "default"}),
    ] = "default"
    allowed_service_tiers: Annotated[
        tuple[NamedTier, ...],
        COMPATIBILITY(
            "Service tiers that requests may name besides the default one; others are rejected with 400.", "all"
        ),
    ] = ()
    compat: Annotated[
        Literal["on", "off"],
        COMPATIBILITY(
            "Reject fields that engines support but OpenAI's API does not define (request_id, priority, cache_salt, …);"
            " off: accept them.",
            synonyms=_SWITCH_SYNONYMS,
        ),
    ] = "on"
    legacy_events: Annotated[
        Literal["off", "on", "strings"],
        COMPATIBILITY(
            "Send legacy events: response.ping, response.tool_call.delta,"
            " response.additional_context, response.rate_limits.updated, response.error, and `connection_expiring` on"
            " WebSockets. strings: tool calls in them are JSON strings.",
            synonyms=_SWITCH_SYNONYMS,
        ),
    ] = "off"
    reasoning_events: Annotated[
        Literal["openai", "open-responses", "legacy"],
        COMPATIBILITY("Naming scheme of the reasoning events.", synonyms={"true": "openai", "false": "open-responses"}),
    ] = "openai"
    default_openai_organization: Annotated[
        Key | None, COMPATIBILITY("Value of the response header openai-organization if the request has none.", "none")
    ] = None
    default_openai_version: Annotated[
        Key | None, COMPATIBILITY("Value of the response header openai-version if the request has none.", "none")
    ] = None
    azure_headers: Annotated[
        bool,
        COMPATIBILITY("Send the headers x-ms-region, x-ms-request-id and api-supported-versions with every response."),
    ] = False
    azure_region: Annotated[Key, COMPATIBILITY("Value of the header x-ms-region.")] = "local"
    prompt_dir: Annotated[
        Path | None,
        COMPATIBILITY("Folder of stored prompts, which requests select by `prompt.id` (see prompts).", "none"),
    ] = None
