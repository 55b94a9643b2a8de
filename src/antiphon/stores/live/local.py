"""The live log of one process: batches are the store's rows, and a word is a call."""

from antiphon.stores.base import Store
from antiphon.stores.live.base import Hear


def _nobody(response_id: str) -> None:
    """Until it is open."""


class LocalLive:
    name = "local"

    def __init__(self, store: Store) -> None:
        self._store = store
        self._hear: Hear = _nobody

    async def open(self, hear: Hear) -> None:
        self._hear = hear

    async def close(self) -> None:
        self._hear = _nobody

    async def append(self, tenant: str, response_id: str, fence: int, number: int, batch: bytes) -> None:
        await self._store.append(tenant, response_id, fence, number, batch)
        self._hear(response_id)

    async def read(self, tenant: str, response_id: str, after: int) -> list[bytes]:
        return await self._store.read(tenant, response_id, after)

    async def fence(self, tenant: str, response_id: str, fence: int) -> None:
        """The store's rows have it."""

    async def drop(self, tenant: str, response_id: str) -> None:
        """The store did, when the response ended."""

    async def tell(self, response_id: str) -> None:
        self._hear(response_id)
