"""Background loops on the store: retention and health.

The store is swept periodically, and as soon as a fraction of one of its limits was written. It is probed every second,
and its size every minute; readers get the last result, so they never wait for a store that hangs.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from time import time

from msgspec.structs import replace

from antiphon.config.areas import StorageSettings
from antiphon.errors import AntiphonError
from antiphon.offload import TimedEvent
from antiphon.stores.base import RetentionBounds
from antiphon.stores.contents.base import ContentStore
from antiphon.stores.sql.store import Store

log = logging.getLogger(__name__)

TenantBytes = Callable[[], Mapping[str, int | None]]

SWEEP_SECONDS = 60.0  # between two sweeps, unless one is due earlier
_BOUND_FRACTION = 16  # 1/16 of a limit may be written until the next sweep
_DEFAULT_BYTES, _DEFAULT_BYTES_IN_MEMORY = 10 * 1024**3, 512 * 1024**2  # per tenant
_MAX_ENTRIES_DUE = 256  # responses until the next sweep, whatever the limit

_SWEEPS_PER_SEARCH = 60  # between two searches for content without a row
_CHUNKS = 200  # of vector stores that are deleted, or indexed again, in one transaction
_ORPHAN_SECONDS = 3600.0  # age from which content without a row was left by a crash

_INTERVAL = 1.0  # seconds between a result and the next probe
_TIMEOUT = 2.0  # seconds
_ROUNDS_PER_SIZE = 60


class RetentionSweeper:
    """`tenant_bytes`: byte limits of tenants that differ from the default; they may change at runtime."""

    def __init__(self, store: Store, bounds: RetentionBounds, tenant_bytes: TenantBytes = dict) -> None:
        self._store = store
        self._bounds = bounds
        self._tenant_bytes = tenant_bytes
        self._entries_due = (
            _MAX_ENTRIES_DUE
            if bounds.entries is None
            else min(_MAX_ENTRIES_DUE, max(1, bounds.entries // _BOUND_FRACTION))
        )
        self._bytes_due = _bytes_until_sweep(bounds)
        self._entries = self._bytes = 0  # written since the last sweep
        self._due = TimedEvent()

    def note_write(self, size: int) -> None:
        """Count a written response; triggers a sweep when enough was written."""
        self._entries += 1
        self._bytes += size
        if self._entries >= self._entries_due or (self._bytes_due is not None and self._bytes >= self._bytes_due):
            self._due.set()

    async def run_forever(self) -> None:
        """Sweep until cancelled. Store failures are logged and retried."""
        while True:
            await self._due.wait_for(SWEEP_SECONDS)
            self._due.clear()
            self._entries = self._bytes = 0
            bounds = replace(self._bounds, byte_overrides=self._tenant_bytes())
            self._bytes_due = _bytes_until_sweep(bounds)
            try:
                while await self._store.sweep(bounds):
                    pass
            except AntiphonError as error:
                log.warning("sweeping the store failed: %s", error)


def make_bounds(settings: StorageSettings, store_name: str) -> RetentionBounds:
    default_bytes = _DEFAULT_BYTES_IN_MEMORY if store_name == "memory" else _DEFAULT_BYTES
    return RetentionBounds(
        entries=settings.store_max_entries,
        bytes=settings.store_max_bytes or default_bytes,
        conversations=settings.conversation_max_entries,
    )


def _bytes_until_sweep(bounds: RetentionBounds) -> int | None:
    """Return the bytes that may be written until the next sweep, from the smallest limit."""
    sizes = [size for size in (bounds.bytes, *bounds.byte_overrides.values()) if size is not None]
    return min(sizes) // _BOUND_FRACTION if sizes else None


class FileSweeper:
    """Deletes expired files, uploads and vector stores, and what no row refers to: content that a crash left, and the
    chunks of files that have left their vector store.
    """

    def __init__(self, store: Store, contents: ContentStore) -> None:
        self._store = store
        self._contents = contents

    async def run_forever(self) -> None:
        """Sweep until cancelled. Failures are logged, and repeated with the next sweep."""
        while True:
            try:
                await self.delete_unused(time() - _ORPHAN_SECONDS)
                for _ in range(_SWEEPS_PER_SEARCH):
                    await self.expire()
                    await asyncio.sleep(SWEEP_SECONDS)
            except AntiphonError as error:
                log.warning("sweeping the files failed: %s", error)
                await asyncio.sleep(SWEEP_SECONDS)

    async def expire(self) -> None:
        while unused := await self._store.expire_files():
            await self._contents.delete(unused)
        while await self._store.expire_vector_stores():
            pass
        while await self._store.purge_vector_chunks(_CHUNKS):
            pass
        while await self._store.index_words_again(_CHUNKS):
            pass
        self._store.maintain_points()

    async def delete_unused(self, before: float) -> None:
        """Delete content that was written before a time and that no row refers to."""
        async for keys in self._contents.list_keys(before):
            if unused := await self._store.find_unused(*keys):
                await self._contents.delete(unused)


class StoreProbe:
    """Probes the store; at most one probe is active."""

    def __init__(self, store: Store, interval: float = _INTERVAL, timeout: float = _TIMEOUT) -> None:
        self._store = store
        self._interval = interval
        self._timeout = timeout
        self._responsive = True
        self.name = store.name
        self.size = (0, 0)  # bytes and responses

    def healthy(self) -> bool:
        """Return whether the store responds and its last operation succeeded."""
        return self._responsive and self._store.is_healthy()

    async def run_forever(self) -> None:
        """Probe until cancelled."""
        rounds = 0
        while True:
            task = asyncio.ensure_future(self._probe(rounds % _ROUNDS_PER_SIZE == 0))
            rounds += 1
            try:
                if not (await asyncio.wait({task}, timeout=self._timeout))[0]:
                    self._responsive = False
                self._responsive = await task
            finally:
                task.cancel()
            await asyncio.sleep(self._interval)

    async def _probe(self, with_size: bool) -> bool:
        try:
            await self._store.has_api_keys()
            if with_size:
                sizes = (await self._store.tenants()).values()
                self.size = sum(size for _, size in sizes), sum(entries for entries, _ in sizes)
        except AntiphonError:
            return False
        return True
