"""API keys as operators manage them over HTTP: the operations of `antiphon keys`, on the server's store.

Every change is logged with the key that made it. A key with the scope admin manages the keys of all tenants.
"""

import logging
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from time import time
from typing import cast

from msgspec import Struct
from msgspec.structs import asdict

from antiphon.errors import Forbidden, InvalidValue, NotFound, StartupError
from antiphon.ids import is_id, quote_id
from antiphon.protocol.types.operations.keys import (
    ApiKeyObject,
    CreatedApiKey,
    CreateKey,
    DailyUsage,
    KeyLimits,
    KeyList,
    KeyQuery,
    KeyState,
    Scope,
    UsageList,
    UsageQuery,
)
from antiphon.service.access.api_keys import ApiKeys, Principal, issue
from antiphon.service.access.rate_limits import RateLimits
from antiphon.service.access.usage import DAY_SECONDS
from antiphon.stores.base import ApiKey, UsageRow
from antiphon.stores.sql.store import Store

log = logging.getLogger(__name__)

_MAX_USAGE_ROWS = 5000


class KeyAdministration(Struct, frozen=True, eq=False):
    """`keeps_keys`: whether the store keeps keys; without one, the settings have the only keys."""

    _store: Store
    _keys: ApiKeys
    _rate_limits: RateLimits
    _keeps_keys: bool
    _clock: Callable[[], float] = time

    async def create(self, principal: Principal, body: CreateKey) -> CreatedApiKey:
        self._check_kept()
        now = self._clock()
        if body.expires_at is not None and body.expires_at <= now:
            raise InvalidValue("'expires_at' must be in the future.", param="expires_at")
        if not self._keys.required:
            raise Forbidden(
                "The first key is created with `antiphon keys create`: from then on, every request needs a key."
            )
        try:
            row, key = issue(body.tenant, body.name, body.scopes, now, body.expires_at)
        except StartupError as error:  # the types have checked the other fields
            raise InvalidValue(str(error), param="name") from None
        await self._store.add_api_key(row)
        await self._keys.refresh()
        log.info("key %s of tenant %s was created by %s", row.id, row.tenant, _describe(principal))
        return CreatedApiKey(**asdict(self._to_object(row)), key=key)

    async def list_keys(self, query: KeyQuery) -> KeyList:
        self._check_kept()
        page = await self._store.page_api_keys(query.tenant, query.after, query.limit, query.order == "desc")
        data = [self._to_object(row) for row in page.rows]
        first, last = (data[0].id, data[-1].id) if data else ("", "")
        configured = [
            self._to_configured(principal)
            for principal in self._keys.list_configured()
            if query.tenant in (None, principal.tenant)
        ]
        return KeyList(data=data, first_id=first, last_id=last, has_more=page.has_more, configured=configured)

    async def revoke(self, principal: Principal, key_id: str) -> ApiKeyObject:
        self._check_kept()
        row = await self._store.revoke_api_key(key_id) if is_id(key_id, "key") else None
        if row is None:
            raise NotFound(f"There is no key {quote_id(key_id)} in the store.")
        await self._keys.refresh()
        log.info("key %s of tenant %s was revoked by %s", row.id, row.tenant, _describe(principal))
        return self._to_object(row)

    async def list_usage(self, query: UsageQuery) -> UsageList:
        """Return what keys have used, up to a few seconds ago."""
        first_day = int(self._clock()) // DAY_SECONDS + 1 - query.days
        page = await self._store.usage(first_day, query.tenant, _MAX_USAGE_ROWS)
        return UsageList(data=[_to_daily_usage(row) for row in page.rows], has_more=page.has_more)

    def _check_kept(self) -> None:
        if not self._keeps_keys:
            raise NotFound("This server keeps no keys in its store: its keys are defined with --api-key.")

    def _to_object(self, row: ApiKey) -> ApiKeyObject:
        is_expired = row.expires is not None and row.expires <= self._clock()
        state: KeyState = "revoked" if row.revoked is not None else "expired" if is_expired else "good"
        return ApiKeyObject(
            id=row.id,
            tenant=row.tenant,
            name=row.name,
            scopes=_sort_scopes(row.scopes),
            created_at=row.created,
            expires_at=row.expires,
            revoked_at=row.revoked,
            state=state,
            limits=self._find_limits(row.tenant),
        )

    def _to_configured(self, principal: Principal) -> ApiKeyObject:
        return ApiKeyObject(
            id=principal.key,
            tenant=principal.tenant,
            name="",
            scopes=_sort_scopes(principal.scopes),
            created_at=None,
            limits=self._find_limits(principal.tenant),
        )

    def _find_limits(self, tenant: str) -> KeyLimits:
        quota = self._rate_limits.get_quota(tenant)
        return KeyLimits(
            requests_per_minute=quota.key_requests_per_minute or None,
            tokens_per_minute=quota.key_tokens_per_minute or None,
            concurrent_responses=quota.key_concurrent_responses or None,
        )


def _sort_scopes(scopes: Iterable[str]) -> list[Scope]:
    return cast(list[Scope], sorted(scopes))


def _to_daily_usage(row: UsageRow) -> DailyUsage:
    date = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(row.day)).date().isoformat()
    return DailyUsage(
        date=date,
        tenant=row.tenant,
        key=row.key or None,
        responses=row.responses,
        input_tokens=row.input_tokens,
        cached_tokens=row.cached_tokens,
        output_tokens=row.output_tokens,
    )


def _describe(principal: Principal) -> str:
    return f"key {principal.key} of tenant {principal.tenant}" if principal.key else "a client without a key"
