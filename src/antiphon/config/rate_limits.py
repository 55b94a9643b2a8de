"""How much a tenant and each of its keys may ask for, and when the server takes no more of anybody.

[quota]                          [tenants.acme]                       [shed]
requests_per_minute = 600        requests_per_minute = 6000           memory = 2000000000
key_requests_per_minute = 100    background_queue = 10
"""

from typing import Annotated

from msgspec import Meta, Struct

from antiphon.config.help_text import Group

QUOTA = Group("Quotas")
SHED = Group("Shedding")

_NONE = "no limit"
_Amount = Annotated[int, Meta(ge=0)]
_Share = Annotated[float, Meta(ge=0)]


class Quota(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A field `requests_per_minute` is the setting `quota_requests_per_minute`. 0 is no limit."""

    requests_per_minute: Annotated[_Amount, QUOTA("Requests of each tenant in a minute.", _NONE)] = 0
    tokens_per_minute: Annotated[_Amount, QUOTA("Tokens of each tenant, in and out, in a minute.", _NONE)] = 0
    concurrent_responses: Annotated[_Amount, QUOTA("Requests of each tenant that are worked on at once.", _NONE)] = 0
    key_requests_per_minute: Annotated[_Amount, QUOTA("Requests with each key in a minute.", _NONE)] = 0
    key_tokens_per_minute: Annotated[_Amount, QUOTA("Tokens with each key, in and out, in a minute.", _NONE)] = 0
    key_concurrent_responses: Annotated[_Amount, QUOTA("Requests with each key that are worked on at once.", _NONE)] = 0


class TenantSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of `[tenants.NAME]`: what differs from what holds for all. 0 is no limit."""

    requests_per_minute: Annotated[_Amount | None, Meta(description="Requests in a minute.")] = None
    tokens_per_minute: Annotated[_Amount | None, Meta(description="Tokens, in and out, in a minute.")] = None
    concurrent_responses: Annotated[_Amount | None, Meta(description="Requests that are worked on at once.")] = None
    key_requests_per_minute: Annotated[_Amount | None, Meta(description="The same for each of its keys.")] = None
    key_tokens_per_minute: Annotated[_Amount | None, Meta(description="The same for each of its keys.")] = None
    key_concurrent_responses: Annotated[_Amount | None, Meta(description="The same for each of its keys.")] = None
    background_queue: Annotated[
        _Amount | None, Meta(description="Background responses that may wait or run, as `--background-queue`.")
    ] = None
    store_max_bytes: Annotated[
        _Amount | None,
        Meta(description="Bytes that are kept, as `--store-max-bytes`; beyond, the oldest go."),
    ] = None


class Shedding(Struct, frozen=True, kw_only=True):
    """A field `memory` is the setting `shed_memory`. At each bound background work is refused first, then all."""

    memory: Annotated[
        _Amount,
        SHED(
            "Bytes of memory that the server may have. From 85 % on it takes no background work, from 95 % on none.",
            "no bound",
            "max_memory",
        ),
    ] = 0
    lag: Annotated[
        _Share,
        SHED(
            "Seconds by which the event loop may be late until no new work is taken; half of it: none for the"
            " background. 0: no bound."
        ),
    ] = 1.0
    free_disk: Annotated[
        _Amount,
        SHED(
            "Bytes that are to be left free where a store's file is; below, no new work is taken, below twice as many"
            " none for the background. 0: no bound."
        ),
    ] = 32 * 1024 * 1024
