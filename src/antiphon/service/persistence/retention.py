"""The store is kept within its bounds: it is swept every minute, and as soon as a good part of a bound was written."""

import asyncio
import logging
from collections.abc import Callable, Mapping

from msgspec.structs import replace

from antiphon.errors import AntiphonError
from antiphon.stores.base import Bounds, Store

Own = Callable[[], Mapping[str, int | None]]

log = logging.getLogger(__name__)

_PART = 16  # of a bound: so much may be written until the next sweep
_MOST = 256  # responses, whatever the bound


class Sweeper:
    """`own`: the bytes of tenants for whom something else holds than for all; it may change."""

    def __init__(self, store: Store, bounds: Bounds, seconds: float, own: Own = dict) -> None:
        self._store = store
        self._bounds = bounds
        self._own = own
        self._seconds = seconds
        self._entries_due = _MOST if bounds.entries is None else min(_MOST, max(1, bounds.entries // _PART))
        self._bytes_due = _part(bounds)
        self._entries = self._bytes = 0  # written since the last sweep
        self._due = asyncio.Event()

    def wrote(self, size: int) -> None:
        """A response was."""
        self._entries += 1
        self._bytes += size
        if self._entries >= self._entries_due or (self._bytes_due is not None and self._bytes >= self._bytes_due):
            self._due.set()

    async def attend(self) -> None:
        """Until cancelled. A store that does not answer is logged and asked again."""
        while True:
            await self._wait()
            bounds = replace(self._bounds, own=self._own())
            self._bytes_due = _part(bounds)
            try:
                while await self._store.sweep(bounds):
                    pass
            except AntiphonError as error:
                log.warning("the store could not be swept: %s", error)

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(self._seconds):
                await self._due.wait()
        except TimeoutError:
            pass
        self._due.clear()
        self._entries = self._bytes = 0


def _part(bounds: Bounds) -> int | None:
    """Bytes that may be written until the next sweep, whosever they are."""
    sizes = [size for size in (bounds.bytes, *bounds.own.values()) if size is not None]
    return min(sizes) // _PART if sizes else None
