"""The indexes of vector stores that were searched: loaded when they are, and updated when their store has changed."""

import asyncio
import time
from collections import OrderedDict

from msgspec import Struct, field

from antiphon.offload import run_sized
from antiphon.service.vector_stores.memory_index import MemoryIndex
from antiphon.service.vector_stores.pgvector_index import PgvectorIndex
from antiphon.service.vector_stores.vector_index import VectorIndex, VectorSource
from antiphon.stores.sql.store import Store
from antiphon.stores.vector_rows import SearchableFile, StoreVersion

_USE_SECONDS = 60.0  # between two records of the use of a store
_INDEX_BYTES, _FILE_BYTES = 2000, 500  # estimated memory of an index, and of a file's name and attributes
_SELECT_BYTES = 100  # work of selecting the vectors of a file, in the unit of `run_sized`
_MAX_UPDATES = 3  # of one search in a store that changes all the time


class StoreIndex(Struct, frozen=True):
    """The files of a vector store and the index of their vectors, as of a version of the store."""

    state: StoreVersion
    files: dict[str, SearchableFile]
    vectors: VectorIndex

    @property
    def size(self) -> int:
        """The estimated memory in bytes."""
        return _INDEX_BYTES + len(self.files) * _FILE_BYTES + self.vectors.size


class CachedIndex(Struct):
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    index: StoreIndex | None = None
    used: float = float("-inf")  # monotonic time at which the use of the store was recorded


class IndexCache:
    """Indexes by tenant and vector store. Those that were not used for longest are dropped above a number of bytes."""

    def __init__(self, store: Store, max_bytes: int) -> None:
        self._store = store
        self._max_bytes = max_bytes
        self._cached: OrderedDict[tuple[str, str], CachedIndex] = OrderedDict()

    async def get(self, tenant: str, store: str) -> StoreIndex:
        """Return the index of the current version. Raises UnknownVectorStore and VectorStoreExpired."""
        state = await self._store.vector_store_version(tenant, store)
        cached = self._cached.setdefault((tenant, store), CachedIndex())
        self._cached.move_to_end((tenant, store))
        if time.monotonic() - cached.used > _USE_SECONDS:
            await self._store.touch_vector_store(tenant, store)
            cached.used = time.monotonic()
        async with cached.lock:
            index = cached.index
            for _ in range(_MAX_UPDATES):
                if index is not None and index.state == state:
                    break
                cached.index = index = await self._update(tenant, store, index, state)
                state = await self._store.vector_store_version(tenant, store)
                self._evict()
        assert index is not None
        return index

    async def _update(self, tenant: str, store: str, former: StoreIndex | None, state: StoreVersion) -> StoreIndex:
        """Load what became visible since the former version, or everything if the model is another one."""
        if former is not None and former.state[1:] == state[1:]:
            vectors = await former.vectors.load()
        else:
            make = PgvectorIndex if self._store.has_points else MemoryIndex
            vectors = await make(VectorSource(self._store, tenant, store, *state[1:])).load()
        files = await self._store.list_searchable_files(tenant, store)
        return StoreIndex(state, files, await run_sized(len(files) * _SELECT_BYTES, vectors.select, files))

    def _evict(self) -> None:
        """Drop indexes, but not the one that was used last."""
        sizes = {key: cached.index.size if cached.index else 0 for key, cached in self._cached.items()}
        total = sum(sizes.values())
        for key, size in [*sizes.items()][:-1]:
            if total <= self._max_bytes:
                break
            del self._cached[key]
            total -= size
