"""The live log of a single process: batches are rows of the store, and a notification is a function call."""

from antiphon.stores.base import Store
from antiphon.stores.live.base import NotifyCallback


def _ignore(response_id: str) -> None:
    """Discard notifications while the log is closed."""


class LocalLiveLog:
    """The live log in the rows of a store. A subclass extends `_publish` to other processes."""

    name = "local"

    def __init__(self, store: Store) -> None:
        self._store = store
        self._notify: NotifyCallback = _ignore

    async def open(self, notify: NotifyCallback) -> None:
        self._notify = notify

    async def close(self) -> None:
        self._notify = _ignore

    async def append(self, tenant: str, response_id: str, fence: int, number: int, batch: bytes) -> None:
        await self._store.append(tenant, response_id, fence, number, batch)
        self._publish(response_id)

    async def read(self, tenant: str, response_id: str, after: int) -> list[bytes]:
        return await self._store.read(tenant, response_id, after)

    async def fence(self, tenant: str, response_id: str, fence: int) -> None:
        """No-op: the store's rows hold the fence."""

    async def drop(self, tenant: str, response_id: str) -> None:
        """No-op: the store removed the batches when the response ended."""

    async def tell(self, response_id: str) -> None:
        self._publish(response_id)

    def _publish(self, response_id: str) -> None:
        self._notify(response_id)
