"""The index of vectors in memory: their sign bits, which find candidates to be scored exactly."""

from array import array
from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from antiphon.offload import run_sized
from antiphon.service.vector_stores.sign_bits import NUMBER_BYTES, SignBits, make_sign_bits
from antiphon.service.vector_stores.vector_index import VectorSource
from antiphon.stores.vector_rows import SearchableFile, StoredVectors

_PAGE = 2000  # chunks read at a time
_AFTER_LAST = 2**31  # greater than the number of any chunk
_MIN_CANDIDATES = 400  # vectors that are scored exactly: measured to find 98 % of the ten nearest
_CANDIDATE_SHARE = 125  # of the vectors of a store, one in so many


class MemoryIndex(Struct, frozen=True):
    source: VectorSource
    attempts: list[tuple[str, int]] = []  # files in the order of their numbers in `bits`, and when they changed
    bits: SignBits = field(default_factory=make_sign_bits)
    current: bytes = b""  # for each of these, whether its vectors are those that searches find
    embedded: frozenset[str] = frozenset()
    chunks: "array[int]" = field(default_factory=lambda: array("q"))  # of the vectors
    cursor: tuple[int, int] = (0, _AFTER_LAST)  # of the last chunk

    @property
    def size(self) -> int:
        return len(self.bits) * (self.bits.vector_bytes + self.chunks.itemsize)

    async def load(self) -> "MemoryIndex":
        """Load new vectors, or all if most of the former ones are not current."""
        is_outdated = self.current.count(0) * 2 > len(self.current)
        index = MemoryIndex(self.source) if is_outdated else self
        store, tenant, name, embedder, _ = self.source
        while page := await store.load_vectors(tenant, name, embedder, index.cursor, _PAGE):
            index = await run_sized(sum(len(row.vectors) for row in page), index.add, page)
        return index

    def add(self, page: Sequence[StoredVectors]) -> "MemoryIndex":
        """Return the index with the vectors of another page."""
        attempts = [*self.attempts]
        chunks, numbers, vectors = self.chunks[:], list[int](), list[bytes]()
        width = self.source.dimensions * NUMBER_BYTES
        for row in page:
            if not attempts or attempts[-1] != (row.file, row.changed):
                attempts.append((row.file, row.changed))
            windows = [row.vectors[start : start + width] for start in range(0, len(row.vectors), width)]
            vectors += windows
            chunks.extend([row.chunk] * len(windows))
            numbers += [len(attempts) - 1] * len(windows)
        bits = self.bits.extend(numbers, vectors)
        return replace(self, attempts=attempts, chunks=chunks, bits=bits, cursor=page[-1][:2])

    def select(self, files: Mapping[str, SearchableFile]) -> "MemoryIndex":
        current = bytes(file in files and files[file].changed == changed for file, changed in self.attempts)
        embedded = frozenset(file for (file, _), found in zip(self.attempts, current, strict=True) if found)
        return replace(self, current=current, embedded=embedded)

    async def find_nearest(self, query: bytes, allowed: Collection[str] | None) -> list[int]:
        mask = self.current
        if allowed is not None:
            pairs = zip(self.attempts, mask, strict=True)
            mask = bytes(is_current and file in allowed for (file, _), is_current in pairs)
        count = max(_MIN_CANDIDATES, len(self.bits) // _CANDIDATE_SHARE)
        size = len(self.bits) * self.bits.vector_bytes
        numbers = await run_sized(size, self.bits.find_nearest, query, count, mask)
        return [*dict.fromkeys(self.chunks[number] for number in numbers)]
