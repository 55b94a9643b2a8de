"""Indexes a file of a vector store: extracts its text, splits it into chunks, embeds them, and stores them in batches.

Requests to the embedding model are repeated. What is wrong with the file itself, or remains wrong with the model,
becomes the reason of a failed file.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from itertools import islice
from typing import TypeVar

from msgspec import Struct, field

from antiphon.errors import AntiphonError, Busy, NotFound, Unavailable, UnknownVectorStore, VectorStoreExpired
from antiphon.service.attachments.text_extraction import ExtractionFailed, TextExtractor
from antiphon.service.files import Files
from antiphon.service.vector_stores.chunker import CountTokens, split_text, split_windows
from antiphon.service.vector_stores.embedder import NUMBER_BYTES, Embedder, EmbeddingTarget
from antiphon.stores.base import OwnershipLost
from antiphon.stores.sql.store import Store
from antiphon.stores.vector_rows import ClaimedVectorFile, IndexResult, StoreVersion, TextChunk

log = logging.getLogger(__name__)

T = TypeVar("T")

_BATCH_WINDOWS = 8  # embedded in one request and written in one transaction; other requests come in between
_MAX_TOKENS = 5_000_000  # of a file, as in OpenAI's API
_COUNTED_CHARACTERS = 100_000  # of a long text at a time
_RETRY_DELAYS = (1.0, 2.0, 4.0, 8.0, 16.0)  # seconds before a request to the embedding model is repeated


class EmbeddingFailed(Exception):
    """The embedding model did not embed a text, although the request was repeated."""


class FileIndexer(Struct, frozen=True, eq=False):
    _store: Store
    _files: Files
    _extractor: TextExtractor
    embedder: Embedder
    _sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    _loading: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def index(self, claimed: ClaimedVectorFile) -> IndexResult:
        """Write the chunks of a file. Raises OwnershipLost, and Unavailable or Busy if it has to be repeated later."""
        try:
            state = await self._store.vector_store_version(claimed.tenant, claimed.row.store)
        except (UnknownVectorStore, VectorStoreExpired):
            raise OwnershipLost(claimed.row.file) from None
        try:
            text = await self._load_text(claimed)
            target = await self._repeat(lambda: self.embedder.choose(state.embedder))
            build = _IndexBuild(claimed, state, target)
            await self._write_chunks(build, text)
        except ExtractionFailed as failure:
            return IndexResult(error_code=failure.code, error_message=failure.message)
        except EmbeddingFailed as failure:
            return IndexResult(error_code="server_error", error_message=str(failure))
        return IndexResult(usage_bytes=build.usage_bytes, embedder=target.model, dimensions=build.dimensions)

    async def _load_text(self, claimed: ClaimedVectorFile) -> str:
        """Return the text of a file. Files are loaded one at a time, since each may have hundreds of megabytes."""
        async with self._loading:
            try:
                row = await self._files.find(claimed.tenant, claimed.row.file)
            except NotFound:
                raise ExtractionFailed("invalid_file", "The file was deleted, or has expired.") from None
            data = b"".join([piece async for piece in self._files.read(row, 0, row.size)])
            text = await self._extractor.extract_text(row.filename, data)
        if not text or text.isspace():
            raise ExtractionFailed("invalid_file", "The file contains no text.")
        return text

    async def _write_chunks(self, build: "_IndexBuild", text: str) -> None:
        row, window = build.claimed.row, build.target.window

        async def count(part: str) -> int:
            return await self._repeat(lambda: self.embedder.count(build.target.model, part))

        await _check_length(text, count)
        async for chunk in split_text(text, row.chunk_tokens, row.overlap_tokens, count):
            windows = [chunk] if row.chunk_tokens <= window else await split_windows(chunk, window, count)
            build.add(chunk, windows)
            if build.window_count >= _BATCH_WINDOWS:
                await self._flush(build)
        await self._flush(build)

    async def _flush(self, build: "_IndexBuild") -> None:
        """Embed and write the chunks that were added since the last time."""
        texts = [window for _, windows in build.pending for window in windows]
        vectors = await self._repeat(lambda: self.embedder.embed_each(build.claimed.tenant, build.target.model, texts))
        await self._store.write_chunks(build.claimed.key, build.take_chunks(vectors))

    async def _repeat(self, request: Callable[[], Awaitable[T]]) -> T:
        """Repeat a request to the embedding model until it is answered.

        Raises Unavailable and Busy, after which it may be answered later, and EmbeddingFailed.
        """
        for delay in _RETRY_DELAYS:
            try:
                return await request()
            except AntiphonError as error:
                log.warning("a text of a vector store could not be embedded, trying again: %s", error)
            await self._sleep(delay)
        try:
            return await request()
        except (Unavailable, Busy):
            raise
        except AntiphonError as error:
            raise EmbeddingFailed(f"The text could not be embedded: {error.message}") from None


class _IndexBuild(Struct, eq=False):
    """The progress of one file."""

    claimed: ClaimedVectorFile
    store: StoreVersion
    target: EmbeddingTarget
    pending: list[tuple[str, list[str]]] = field(default_factory=list)  # chunks, and the windows of each
    chunk_count: int = 0
    window_count: int = 0  # of pending chunks
    dimensions: int = 0
    usage_bytes: int = 0

    def add(self, chunk: str, windows: list[str]) -> None:
        self.pending.append((chunk, windows))
        self.window_count += len(windows)

    def take_chunks(self, vectors: list[bytes | None]) -> list[TextChunk]:
        """Return the pending chunks with their vectors. A window whose vector has no direction has none."""
        remaining, chunks = iter(vectors), []
        for text, windows in self.pending:
            own = [vector for vector in islice(remaining, len(windows)) if vector is not None]
            chunks.append(TextChunk(number=self.chunk_count, text=text, vectors=own))
            self.chunk_count += 1
            self.usage_bytes += len(text.encode()) + sum(map(len, own))
            for vector in own:
                self._check_dimensions(len(vector) // NUMBER_BYTES)
        self.pending, self.window_count = [], 0
        return chunks

    def _check_dimensions(self, dimensions: int) -> None:
        expected = self.dimensions or (self.store.dimensions if self.target.model == self.store.embedder else 0)
        if expected and dimensions != expected:
            raise EmbeddingFailed(
                f"The model '{self.target.model}' returns vectors of {dimensions} dimensions; those of the vector "
                f"store have {expected}. It is another model under the same name: create a new vector store."
            )
        self.dimensions = dimensions


async def _check_length(text: str, count: CountTokens) -> None:
    """Raise ExtractionFailed if a text has too many tokens. No tokenizer has more tokens than a text has bytes."""
    if len(text) * 4 <= _MAX_TOKENS or len(text.encode()) <= _MAX_TOKENS:
        return
    tokens = 0
    for start in range(0, len(text), _COUNTED_CHARACTERS):
        tokens += await count(text[start : start + _COUNTED_CHARACTERS])
        if tokens > _MAX_TOKENS:
            raise ExtractionFailed("invalid_file", f"The text of the file has more than {_MAX_TOKENS:,} tokens.")
