"""Vector stores, their files and batches of files, and searches in them."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from antiphon.protocol.types.filters import Attributes, Filter
from antiphon.protocol.types.lists import ListPage, ListQuery
from antiphon.protocol.types.parts import Tagged
from antiphon.protocol.types.tools import RankingOptions

FileStatus = Literal["in_progress", "completed", "failed", "cancelled"]


class VectorStoreExpiry(Struct, frozen=True, kw_only=True):
    anchor: Literal["last_active_at"]
    days: Annotated[int, Meta(ge=1, le=365)]


class ChunkSizes(Struct, frozen=True, kw_only=True):
    max_chunk_size_tokens: Annotated[int, Meta(ge=100, le=4096)]
    chunk_overlap_tokens: Annotated[int, Meta(ge=0, le=2048)]


class AutoChunking(Tagged, tag="auto", kw_only=True):
    """The default, which is `DEFAULT_SIZES`."""


class StaticChunking(Tagged, tag="static", kw_only=True):
    static: ChunkSizes


DEFAULT_SIZES = ChunkSizes(max_chunk_size_tokens=800, chunk_overlap_tokens=400)
ChunkingStrategy = AutoChunking | StaticChunking


class CreateVectorStore(Struct, kw_only=True):
    name: str = ""
    description: str | None = None
    file_ids: Annotated[list[str], Meta(max_length=500)] = []
    chunking_strategy: ChunkingStrategy | None = None
    expires_after: VectorStoreExpiry | None = None
    metadata: dict[str, str] = {}


class UpdateVectorStore(Struct, kw_only=True):
    """The fields to change. A null removes the value."""

    name: str | UnsetType | None = UNSET
    expires_after: VectorStoreExpiry | UnsetType | None = UNSET
    metadata: dict[str, str] | UnsetType | None = UNSET


class VectorFileCounts(Struct, kw_only=True):
    in_progress: int
    completed: int
    failed: int
    cancelled: int
    total: int


class VectorStore(Struct, kw_only=True):
    id: str
    object: Literal["vector_store"] = "vector_store"
    created_at: int
    name: str
    description: str | None
    usage_bytes: int
    file_counts: VectorFileCounts
    status: Literal["expired", "in_progress", "completed"]
    expires_after: VectorStoreExpiry | None
    expires_at: int | None
    last_active_at: int
    metadata: dict[str, str]


class VectorStoreDeleted(Struct, kw_only=True):
    id: str
    object: Literal["vector_store.deleted"] = "vector_store.deleted"
    deleted: bool = True


class VectorStoreList(ListPage, kw_only=True):
    data: list[VectorStore]


class VectorStoresQuery(ListQuery, frozen=True, kw_only=True):
    before: str | None = None


class AddVectorStoreFile(Struct, kw_only=True):
    """A file to add to a vector store, alone or as one of a batch."""

    file_id: str
    attributes: Attributes = {}
    chunking_strategy: ChunkingStrategy | None = None


class UpdateVectorStoreFile(Struct, kw_only=True):
    attributes: Attributes | None


IndexingErrorCode = Literal["server_error", "unsupported_file", "invalid_file"]


class IndexingError(Struct, frozen=True, kw_only=True):
    code: IndexingErrorCode
    message: str


class VectorStoreFile(Struct, kw_only=True):
    id: str
    object: Literal["vector_store.file"] = "vector_store.file"
    created_at: int
    usage_bytes: int
    vector_store_id: str
    status: FileStatus
    last_error: IndexingError | None
    chunking_strategy: StaticChunking
    attributes: Attributes


class VectorStoreFileDeleted(Struct, kw_only=True):
    id: str
    object: Literal["vector_store.file.deleted"] = "vector_store.file.deleted"
    deleted: bool = True


class VectorStoreFileList(ListPage, kw_only=True):
    data: list[VectorStoreFile]


class VectorStoreFilesQuery(VectorStoresQuery, frozen=True, kw_only=True):
    filter: FileStatus | None = None


class CreateFileBatch(Struct, kw_only=True):
    """Either `file_ids`, with attributes and a strategy for all of them, or `files` with their own."""

    file_ids: Annotated[list[str], Meta(min_length=1, max_length=2000)] | None = None
    files: Annotated[list[AddVectorStoreFile], Meta(min_length=1, max_length=2000)] | None = None
    attributes: Attributes = {}
    chunking_strategy: ChunkingStrategy | None = None


class VectorStoreFileBatch(Struct, kw_only=True):
    """OpenAI's API sends `vector_store.file_batch` as its object; this is the value that the types of its SDK have."""

    id: str
    object: Literal["vector_store.files_batch"] = "vector_store.files_batch"
    created_at: int
    status: FileStatus
    vector_store_id: str
    file_counts: VectorFileCounts


class TextContent(Struct, kw_only=True):
    type: Literal["text"] = "text"
    text: str


class FileContentPage(Struct, kw_only=True):
    """The text of a file, one entry for each chunk. `next_page` is `page` of the next request."""

    object: Literal["vector_store.file_content.page"] = "vector_store.file_content.page"
    data: list[TextContent]
    has_more: bool
    next_page: str | None = None


class FileContentQuery(Struct, frozen=True, kw_only=True):
    page: Annotated[int, Meta(ge=0, le=2**31)] = 0


class SearchVectorStore(Struct, kw_only=True):
    query: str | Annotated[list[str], Meta(min_length=1, max_length=8)]
    filters: Filter | None = None
    max_num_results: Annotated[int, Meta(ge=1, le=50)] = 10
    ranking_options: RankingOptions = field(default_factory=RankingOptions)
    rewrite_query: bool = False


class VectorSearchResult(Struct, kw_only=True):
    file_id: str
    filename: str
    score: float
    attributes: Attributes
    content: list[TextContent]


class VectorSearchPage(Struct, kw_only=True):
    object: Literal["vector_store.search_results.page"] = "vector_store.search_results.page"
    search_query: list[str]
    data: list[VectorSearchResult]
    has_more: bool = False
    next_page: str | None = None
