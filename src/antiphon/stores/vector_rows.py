"""Rows of vector stores, their files and their chunks. Times are seconds since the epoch."""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from msgspec import UNSET, Struct, UnsetType

VectorFileStatus = Literal["in_progress", "completed", "failed", "cancelled"]
AttributeValue = str | float | bool


class FileCounts(Struct, frozen=True, kw_only=True):
    """The files of a vector store or batch by status."""

    in_progress: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0


class VectorStoreRow(Struct, frozen=True, kw_only=True):
    """A vector store; the last two fields are computed from its files."""

    id: str
    created: float
    name: str = ""
    description: str = ""
    metadata: Mapping[str, str] = {}
    days: int | None = None  # without use, after which it expires
    last_active: float
    expires: float | None = None
    embedder: str = ""  # which made the vectors that were written last, and their dimensions
    dimensions: int = 0
    version: int = 0  # grows with every change of what a search can find
    expired: bool = False  # has no files any more
    usage_bytes: int = 0
    counts: FileCounts = FileCounts()


class VectorStoreUpdate(Struct, frozen=True, kw_only=True):
    """Fields of a vector store to change."""

    name: str | UnsetType = UNSET
    metadata: Mapping[str, str] | UnsetType = UNSET
    days: int | UnsetType | None = UNSET


class NewVectorFile(Struct, frozen=True, kw_only=True):
    """A file to index."""

    file: str
    chunk_tokens: int
    overlap_tokens: int
    attributes: Mapping[str, AttributeValue] = {}


class VectorFileRow(Struct, frozen=True, kw_only=True):
    """A file of a vector store, with its columns in the order in which they are selected."""

    store: str
    file: str
    filename: str
    created: float
    status: VectorFileStatus
    error_code: str | None
    error_message: str | None
    chunk_tokens: int
    overlap_tokens: int
    attributes: Mapping[str, AttributeValue]
    usage_bytes: int
    batch: str | None


class VectorBatchRow(Struct, frozen=True, kw_only=True):
    """Files that were added together."""

    id: str
    store: str
    created: float
    cancelled: bool
    counts: FileCounts


class ClaimedVectorFile(Struct, frozen=True, kw_only=True):
    """A file to index, which its claimer owns under this fence."""

    tenant: str
    row: VectorFileRow
    fence: int
    attempts: int

    @property
    def key(self) -> "VectorFileKey":
        return VectorFileKey(self.tenant, self.row.store, self.row.file, self.fence)


class VectorFileKey(NamedTuple):
    """A file of a vector store under a fence."""

    tenant: str
    store: str
    file: str
    fence: int


class TextChunk(Struct, frozen=True, kw_only=True):
    """A piece of a file's text, and the vectors of the windows in which it was embedded."""

    number: int
    text: str
    vectors: Sequence[bytes]  # of equal length


class IndexResult(Struct, frozen=True, kw_only=True):
    """The end of indexing a file. Without an error, its chunks become visible."""

    error_code: str | None = None
    error_message: str | None = None
    usage_bytes: int = 0
    embedder: str = ""
    dimensions: int = 0


class StoreVersion(NamedTuple):
    """The version of a vector store, which grows with every change that searches see, and the model of its vectors."""

    version: int
    embedder: str
    dimensions: int


class SearchableFile(Struct, frozen=True, kw_only=True):
    """A file whose chunks a search finds."""

    filename: str
    attributes: Mapping[str, AttributeValue]
    changed: int  # version of the store in which its chunks became visible


class StoredVectors(NamedTuple):
    """The vectors of a chunk, joined. The first two fields are the cursor of the next page."""

    changed: int
    number: int
    chunk: int
    file: str
    vectors: bytes


class FoundChunk(NamedTuple):
    chunk: int
    file: str
    score: float  # of the text index; greater is better
