"""Settings for clients that were written for other servers: tiers, fields, events, headers and prompts by name."""

from pathlib import Path
from typing import Annotated, Final, Literal

from antiphon.config.areas.observability import ObservingSettings
from antiphon.config.help_text import COMPATIBILITY
from antiphon.config.value_types import Key

# What vLLM's fork calls settings of ours; both names work.
SPELLINGS: Final = {
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
    "reasoning_events": "legacy_reasoning_events",  # which meant what are OpenAI's names by now
}

Tier = Literal["default", "flex", "scale", "priority", "fast", "ultrafast"]
NamedTier = Literal["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"]
_SWITCH: Final = {"true": "on", "false": "off"}


class CompatSettings(ObservingSettings, frozen=True, kw_only=True):
    default_service_tier: Annotated[
        Tier,
        COMPATIBILITY("Tier of requests that say `auto` or nothing.", words={"auto": "default"}),
    ] = "default"
    allowed_service_tiers: Annotated[
        tuple[NamedTier, ...],
        COMPATIBILITY("Tiers that requests may name, beside that one; any other is a 400.", "all of them"),
    ] = ()
    compat: Annotated[
        Literal["on", "off"],
        COMPATIBILITY(
            "Refuse the fields that OpenAI's API does not have and engines do (request_id, priority, cache_salt, …);"
            " off: take them.",
            words=_SWITCH,
        ),
    ] = "on"
    legacy_events: Annotated[
        Literal["off", "on", "strings"],
        COMPATIBILITY(
            "Send events that newer clients do not know: response.ping, response.tool_call.delta,"
            " response.additional_context, response.rate_limits.updated, response.error, and `connection_expiring` of"
            " WebSockets. strings: the calls in them as JSON in a string.",
            words=_SWITCH,
        ),
    ] = "off"
    reasoning_events: Annotated[
        Literal["openai", "open-responses", "legacy"],
        COMPATIBILITY("Names of the events of reasoning.", words={"true": "openai", "false": "open-responses"}),
    ] = "openai"
    default_openai_organization: Annotated[
        Key | None, COMPATIBILITY("The header openai-organization, where a request brings none.", "none")
    ] = None
    default_openai_version: Annotated[
        Key | None, COMPATIBILITY("The header openai-version, where a request brings none.", "none")
    ] = None
    azure_headers: Annotated[
        bool, COMPATIBILITY("Send x-ms-region, x-ms-request-id and api-supported-versions with every answer.")
    ] = False
    azure_region: Annotated[Key, COMPATIBILITY("What x-ms-region says.")] = "local"
    prompt_dir: Annotated[
        Path | None, COMPATIBILITY("Folder of prompts that requests may name by `prompt.id` (see prompts).", "none")
    ] = None
