"""The index of vectors in PostgreSQL with pgvector, which all servers share. It only has counts in memory."""

from collections.abc import Collection, Mapping

from msgspec import Struct
from msgspec.structs import replace

from antiphon.service.vector_stores.vector_index import VectorSource
from antiphon.stores.vector_rows import SearchableFile

_PAGE = 250  # chunks copied in one transaction; with an HNSW index, each takes milliseconds
_NEAREST = 200  # vectors; several may be of one chunk
_FILE_BYTES = 200  # estimated memory of the counts of a file


class PgvectorIndex(Struct, frozen=True):
    source: VectorSource
    counts: Mapping[int, int] = {}  # vectors of files, by the version in which they changed
    files: Mapping[str, int] = {}  # the versions of files that have vectors and that searches find
    embedded: frozenset[str] = frozenset()

    @property
    def size(self) -> int:
        return len(self.counts) * _FILE_BYTES

    async def load(self) -> "PgvectorIndex":
        store, tenant, name, embedder, dimensions = self.source
        after = None
        while after := await store.add_points(tenant, name, embedder, dimensions, after, _PAGE):
            pass
        return replace(self, counts=await store.count_points(name, embedder))

    def select(self, files: Mapping[str, SearchableFile]) -> "PgvectorIndex":
        versions = {name: file.changed for name, file in files.items() if file.changed in self.counts}
        return replace(self, files=versions, embedded=frozenset(versions))

    async def find_nearest(self, query: bytes, allowed: Collection[str] | None) -> list[int]:
        versions = [version for name, version in self.files.items() if allowed is None or name in allowed]
        count = sum(self.counts[version] for version in versions)
        return await self.source.store.find_points(self.source.name, versions, count, query, _NEAREST)
