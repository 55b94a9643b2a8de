"""The interface of indexes of the vectors of a vector store; `index_cache.py` chooses one."""

from collections.abc import Collection, Mapping
from typing import NamedTuple, Protocol

from antiphon.stores.sql.store import Store
from antiphon.stores.vector_rows import SearchableFile


class VectorSource(NamedTuple):
    """Vectors that one model has made for a vector store."""

    store: Store
    tenant: str
    name: str
    embedder: str
    dimensions: int


class VectorIndex(Protocol):
    """An index of such vectors as of a version of the vector store. It never changes."""

    @property
    def size(self) -> int:
        """The estimated memory in bytes."""

    @property
    def embedded(self) -> frozenset[str]:
        """The files that have vectors. Others were embedded by another model."""

    async def load(self) -> "VectorIndex":
        """Return the index with the vectors that have become visible since."""

    def select(self, files: Mapping[str, SearchableFile]) -> "VectorIndex":
        """Return the index of those vectors that belong to the files that searches find now."""

    async def find_nearest(self, query: bytes, allowed: Collection[str] | None) -> list[int]:
        """Return chunks that may be the nearest ones to a query, of these files unless None."""
