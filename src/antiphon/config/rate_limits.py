"""Quotas of tenants and keys, and the thresholds at which the server sheds load.

[quota]                          [tenants.acme]                       [shed]
requests_per_minute = 600        requests_per_minute = 6000           memory = 2000000000
key_requests_per_minute = 100    background_queue = 10
"""

from typing import Annotated

from msgspec import Struct

from antiphon.config.setting_types import Amount, Interval

_NO_LIMIT = "no limit"


class QuotaSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `[quota]` table: `requests_per_minute` is the setting `quota_requests_per_minute`. 0 is no limit."""

    requests_per_minute: Annotated[Amount, "Requests per minute of each tenant.", _NO_LIMIT] = 0
    tokens_per_minute: Annotated[Amount, "Input and output tokens per minute of each tenant.", _NO_LIMIT] = 0
    concurrent_responses: Annotated[Amount, "Concurrent requests of each tenant.", _NO_LIMIT] = 0
    key_requests_per_minute: Annotated[Amount, "Requests per minute of each API key.", _NO_LIMIT] = 0
    key_tokens_per_minute: Annotated[Amount, "Input and output tokens per minute of each API key.", _NO_LIMIT] = 0
    key_concurrent_responses: Annotated[Amount, "Concurrent requests of each API key.", _NO_LIMIT] = 0


class TenantSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A `[tenants.NAME]` table: limits of one tenant in place of those for all tenants. 0 is no limit."""

    requests_per_minute: Annotated[Amount | None, "Requests per minute."] = None
    tokens_per_minute: Annotated[Amount | None, "Input and output tokens per minute."] = None
    concurrent_responses: Annotated[Amount | None, "Concurrent requests."] = None
    key_requests_per_minute: Annotated[Amount | None, "Requests per minute of each of its API keys."] = None
    key_tokens_per_minute: Annotated[Amount | None, "Tokens per minute of each of its API keys."] = None
    key_concurrent_responses: Annotated[Amount | None, "Concurrent requests of each of its API keys."] = None
    background_queue: Annotated[Amount | None, "Unfinished background responses, as `--background-queue`."] = None
    store_max_bytes: Annotated[Amount | None, "Stored bytes, as `--store-max-bytes`; the oldest are deleted."] = None


class SheddingSettings(Struct, frozen=True, kw_only=True):
    """The `[shed]` table: the field `memory` is the setting `shed_memory`.

    At each threshold background work is rejected first, then all new work.
    """

    memory: Annotated[
        Amount,
        "Memory limit in bytes. From 85 % on the server rejects background work, from 95 % on all new work.",
        "no limit",
    ] = 0
    lag: Annotated[
        Interval,
        "Delay of the event loop in seconds at which new work is rejected; background work at half of it. 0: no limit.",
    ] = 1.0
    free_disk: Annotated[
        Amount,
        "Free disk space of the store's file in bytes below which new work is rejected; background work below"
        " twice as much. 0: no limit.",
    ] = 32 * 1024 * 1024
