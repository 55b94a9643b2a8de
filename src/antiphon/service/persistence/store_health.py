"""Store health: probes the store every second, and its size every minute.

Readers get the last result, so they never wait for a store that hangs. At most one probe is active.
"""

import asyncio

from antiphon.errors import AntiphonError
from antiphon.stores.base import Store

_INTERVAL = 1.0  # seconds between a result and the next probe
_TIMEOUT = 2.0  # seconds
_ROUNDS_PER_SIZE = 60


class StoreProbe:
    def __init__(self, store: Store, interval: float = _INTERVAL, timeout: float = _TIMEOUT) -> None:
        self._store = store
        self._interval = interval
        self._timeout = timeout
        self._responsive = True
        self.name = store.name
        self.size = (0, 0)  # bytes and responses

    def healthy(self) -> bool:
        """Whether the store responds and its last operation succeeded."""
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
