"""The indexes of vector stores in memory: loaded when they are searched, updated when their store has changed."""

import asyncio
import time
from array import array
from collections import OrderedDict
from collections.abc import Collection, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from antiphon.offload import run_sized
from antiphon.service.vector_stores.sign_bits import NUMBER_BYTES, SignBits, make_sign_bits
from antiphon.stores.sql.store import Store
from antiphon.stores.vector_rows import SearchableFile, StoredVectors, StoreVersion

_USE_SECONDS = 60.0  # between two records of the use of a store
_PAGE = 2000  # chunks read at a time
_AFTER_LAST = 2**31  # greater than the number of any chunk
_INDEX_BYTES, _FILE_BYTES = 2000, 500  # estimated memory of an index, and of a file's name and attributes
_MAX_UPDATES = 3  # of one search in a store that changes all the time


class StoreIndex(Struct, frozen=True, kw_only=True):
    """The files of a vector store and the sign bits of their vectors, as of a version of the store."""

    state: StoreVersion
    files: dict[str, SearchableFile] = {}
    attempts: list[tuple[str, int]] = []  # files in the order of their numbers in `bits`, and when they changed
    bits: SignBits = field(default_factory=make_sign_bits)
    current: bytes = b""  # for each of these, whether its vectors are those that searches find
    embedded: frozenset[str] = frozenset()  # files that have such vectors; others were embedded by another model
    chunks: "array[int]" = field(default_factory=lambda: array("q"))  # of the vectors
    cursor: tuple[int, int] = (0, _AFTER_LAST)  # of the last chunk

    @property
    def size(self) -> int:
        """The estimated memory in bytes."""
        files = len(self.files) * _FILE_BYTES
        return _INDEX_BYTES + files + len(self.bits) * (self.bits.vector_bytes + self.chunks.itemsize)

    def find_nearest(self, query: bytes, count: int, allowed: Collection[str] | None) -> list[int]:
        """Return the chunks that the `count` nearest vectors belong to, of these files unless None."""
        mask = self.current if allowed is None else self._make_mask(allowed)
        numbers = self.bits.find_nearest(query, count, mask)
        return [*dict.fromkeys(self.chunks[number] for number in numbers)]

    def set_files(self, files: dict[str, SearchableFile]) -> "StoreIndex":
        """Return the index with the files that searches find now."""
        index = replace(self, files=files)
        current = index._make_mask(files)
        embedded = frozenset(file for (file, _), found in zip(self.attempts, current, strict=True) if found)
        return replace(index, current=current, embedded=embedded)

    def _make_mask(self, allowed: Collection[str]) -> bytes:
        files = self.files
        return bytes(
            file in allowed and file in files and files[file].changed == changed for file, changed in self.attempts
        )

    def add(self, page: Sequence[StoredVectors]) -> "StoreIndex":
        """Return the index with the vectors of another page."""
        attempts = [*self.attempts]
        chunks, numbers, vectors = self.chunks[:], list[int](), list[bytes]()
        width = self.state.dimensions * NUMBER_BYTES
        for row in page:
            if not attempts or attempts[-1] != (row.file, row.changed):
                attempts.append((row.file, row.changed))
            windows = [row.vectors[start : start + width] for start in range(0, len(row.vectors), width)]
            vectors += windows
            chunks.extend([row.chunk] * len(windows))
            numbers += [len(attempts) - 1] * len(windows)
        bits = self.bits.extend(numbers, vectors)
        return replace(self, attempts=attempts, chunks=chunks, bits=bits, cursor=page[-1][:2])


class CachedIndex(Struct):
    """An index, and the lock of its updates."""

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
        """Load what became visible since the former version, or all if most of the former vectors are not current."""
        if former is None or former.state[1:] != state[1:] or former.current.count(0) * 2 > len(former.current):
            index = StoreIndex(state=state)
        else:
            index = replace(former, state=state)
        while page := await self._store.load_vectors(tenant, store, state.embedder, index.cursor, _PAGE):
            index = await run_sized(sum(len(row.vectors) for row in page), index.add, page)
        return index.set_files(await self._store.list_searchable_files(tenant, store))

    def _evict(self) -> None:
        """Drop indexes, but not the one that was used last."""
        sizes = {key: cached.index.size if cached.index else 0 for key, cached in self._cached.items()}
        total = sum(sizes.values())
        for key, size in [*sizes.items()][:-1]:
            if total <= self._max_bytes:
                break
            del self._cached[key]
            total -= size
