"""Retention: the store is swept periodically, and as soon as a fraction of one of its limits was written."""

import asyncio
import logging
from collections.abc import Callable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from antiphon.errors import AntiphonError
from antiphon.stores.base import RetentionBounds, Store

TenantBytes = Callable[[], Mapping[str, int | None]]

log = logging.getLogger(__name__)

_BOUND_FRACTION = 16  # 1/16 of a limit may be written until the next sweep
_MAX_ENTRIES_DUE = 256  # responses until the next sweep, whatever the limit


class RetentionSettings(Struct, frozen=True, kw_only=True):
    """Operator settings for stored responses."""

    lease: float = 15.0
    ttl: float = 2_592_000.0
    background_limit: int = 1000  # unfinished background responses per tenant
    background_timeout: float = 86_400.0
    sweep_seconds: float = 60.0
    bounds: RetentionBounds = RetentionBounds()
    background_limit_of: Callable[[str], int | None] | None = None  # per-tenant override of `background_limit`
    tenant_bytes: TenantBytes = dict  # byte limits of tenants that differ from `bounds`

    def get_background_limit(self, tenant: str) -> int | None:
        return self.background_limit if self.background_limit_of is None else self.background_limit_of(tenant)


class RetentionSweeper:
    """`tenant_bytes`: byte limits of tenants that differ from the default; they may change at runtime."""

    def __init__(
        self, store: Store, bounds: RetentionBounds, interval: float, tenant_bytes: TenantBytes = dict
    ) -> None:
        self._store = store
        self._bounds = bounds
        self._tenant_bytes = tenant_bytes
        self._interval = interval
        self._entries_due = (
            _MAX_ENTRIES_DUE
            if bounds.entries is None
            else min(_MAX_ENTRIES_DUE, max(1, bounds.entries // _BOUND_FRACTION))
        )
        self._bytes_due = _bytes_until_sweep(bounds)
        self._entries = self._bytes = 0  # written since the last sweep
        self._due = asyncio.Event()

    def note_write(self, size: int) -> None:
        """Count a written response; triggers a sweep when enough was written."""
        self._entries += 1
        self._bytes += size
        if self._entries >= self._entries_due or (self._bytes_due is not None and self._bytes >= self._bytes_due):
            self._due.set()

    async def run_forever(self) -> None:
        """Sweep until cancelled. Store failures are logged and retried."""
        while True:
            await self._wait()
            bounds = replace(self._bounds, byte_overrides=self._tenant_bytes())
            self._bytes_due = _bytes_until_sweep(bounds)
            try:
                while await self._store.sweep(bounds):
                    pass
            except AntiphonError as error:
                log.warning("sweeping the store failed: %s", error)

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(self._interval):
                await self._due.wait()
        except TimeoutError:
            pass
        self._due.clear()
        self._entries = self._bytes = 0


def _bytes_until_sweep(bounds: RetentionBounds) -> int | None:
    """Return the bytes that may be written until the next sweep, from the smallest limit."""
    sizes = [size for size in (bounds.bytes, *bounds.byte_overrides.values()) if size is not None]
    return min(sizes) // _BOUND_FRACTION if sizes else None
