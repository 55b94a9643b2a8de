"""API keys as operators manage them over HTTP. An extension; the CLI has the same operations."""

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from antiphon.config.setting_types import Tenant
from antiphon.protocol.types.lists import ListPage, ListQuery

Scope = Literal["admin", "inference"]
KeyState = Literal["good", "expired", "revoked"]


class CreateKey(Struct, kw_only=True):
    tenant: Tenant
    name: Annotated[str, Meta(max_length=100)] = ""
    scopes: Annotated[list[Scope], Meta(min_length=1, max_length=2)] = field(default_factory=lambda: ["inference"])
    expires_at: Annotated[float, Meta(gt=0, le=1e11)] | None = None  # seconds since the epoch


class KeyLimits(Struct, frozen=True, kw_only=True):
    """Limits of one key according to the settings; null: none."""

    requests_per_minute: int | None
    tokens_per_minute: int | None
    concurrent_responses: int | None


class ApiKeyObject(Struct, frozen=True, kw_only=True):
    """A key without its secret."""

    id: str
    object: Literal["api_key"] = "api_key"
    tenant: str
    name: str
    scopes: list[Scope]
    created_at: float | None  # null: it is defined in the settings, and cannot be revoked here
    expires_at: float | None = None
    revoked_at: float | None = None
    state: KeyState = "good"
    limits: KeyLimits


class CreatedApiKey(ApiKeyObject, frozen=True, kw_only=True):
    key: str  # the secret, which is never shown again


class KeyQuery(ListQuery, frozen=True, kw_only=True):
    tenant: str | None = None


class KeyList(ListPage, kw_only=True):
    data: list[ApiKeyObject]
    configured: list[ApiKeyObject]  # those of the settings, on every page


class UsageQuery(Struct, frozen=True, kw_only=True):
    days: Annotated[int, Meta(ge=1, le=400)] = 30  # with today
    tenant: str | None = None


class DailyUsage(Struct, frozen=True, kw_only=True):
    """The usage of one key on one day (UTC)."""

    date: str
    tenant: str
    key: str | None  # id of the key; null: requests without one
    responses: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int


class UsageList(Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    data: list[DailyUsage]  # the latest day first
    has_more: bool  # earlier days are missing, because there are too many keys
