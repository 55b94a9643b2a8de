"""Searches vector stores by meaning and by words.

    query ─▶ embedder ─▶ index of vectors ─▶ candidates ─▶ their vectors ─▶ cosines ─┐
      └────▶ words ────▶ text index ─────────────────────────────────────────────────┴▶ fused ranks ─▶ hits

Filters select files before both searches. Several stores are ranked together, and several queries as well. A model may
rank the best hits again.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from antiphon.core.file_search import SearchHit, SearchRequest
from antiphon.errors import InvalidValue
from antiphon.offload import run_sized
from antiphon.protocol.types.filters import Filter
from antiphon.service.vector_stores.filters import select_files
from antiphon.service.vector_stores.index_cache import IndexCache, StoreIndex
from antiphon.service.vector_stores.reranker import RERANKED, Reranker
from antiphon.service.vector_stores.sign_bits import NUMBER_BYTES, SignBits, make_sign_bits
from antiphon.stores.search_words import query_words
from antiphon.stores.sql.store import Store
from antiphon.stores.vector_rows import FoundChunk

MAX_INDEX_BYTES = 256 * 1024 * 1024
_DEPTH = 100  # of each ranked list
_SPARE = 2  # hits that are read for each one that is returned, since some may be the same or deleted meanwhile
_POLL_SECONDS = 0.25
# Work of comparing a file with the filters, and of scoring a chunk, in the unit of `run_sized`.
_FILTER_BYTES, _SCORE_BYTES = 100, 4096


class QueryEmbedder(Protocol):
    async def embed(self, tenant: str, model: str, texts: Sequence[str]) -> list[bytes]:
        """Return a vector for each text: of length 1, in little-endian 16-bit floats."""


class SearchedStore(Struct, frozen=True):
    name: str
    index: StoreIndex
    allowed: Collection[str] | None  # ids of files that match the filters; None: all
    vectors: Sequence[bytes]  # of the queries; empty if the search is by words only, or the store has no vectors

    async def find_nearest(self, number: int) -> list[int]:
        """Return chunks that may be the nearest ones to a query."""
        return await self.index.vectors.find_nearest(self.vectors[number], self.allowed) if self.vectors else []

    def make_hit(self, file: str, text: str) -> SearchHit:
        """Make a hit that has no score yet."""
        found = self.index.files[file]
        return SearchHit(file_id=file, filename=found.filename, score=0.0, attributes=dict(found.attributes), text=text)


class Findings(Struct):
    """Chunks that queries have found in all stores."""

    stores: dict[int, SearchedStore] = {}
    cosines: dict[int, float] = {}  # of the nearest query
    ranks: dict[int, int] = {}  # by words, of the best query
    lists: list[tuple[float, Sequence[int]]] = []  # weighted, best first

    def add(self, request: SearchRequest, cosines: Mapping[int, float], texts: Sequence[FoundChunk]) -> None:
        """Add what one query has found."""
        nearest = sorted(cosines, key=lambda chunk: -cosines[chunk])[:_DEPTH]
        best = [found.chunk for found in sorted(texts, key=lambda found: -found.score)[:_DEPTH]]
        self.lists += [(request.embedding_weight or 1.0, nearest), (request.text_weight, best)]
        for chunk, cosine in cosines.items():
            self.cosines[chunk] = max(cosine, self.cosines.get(chunk, cosine))
        for rank, chunk in enumerate(best, 1):
            self.ranks[chunk] = min(rank, self.ranks.get(chunk, rank))


class VectorSearch:
    """Searches vector stores of clients. A failure is raised, never reported as an empty result."""

    def __init__(
        self,
        store: Store,
        embedder: QueryEmbedder,
        max_index_bytes: int = MAX_INDEX_BYTES,
        reranker: Reranker | None = None,
    ) -> None:
        self._store = store
        self._embedder = embedder
        self._reranker = reranker
        self._cache = IndexCache(store, max_index_bytes)
        self._bits: SignBits | None = None  # which score vectors; made by the first search, see there

    async def check_store(self, tenant: str, store: str) -> None:
        """Raise UnknownVectorStore or VectorStoreExpired if a vector store cannot be searched."""
        await self._store.vector_store_version(tenant, store)

    async def wait_indexed(self, tenant: str, stores: Sequence[str], seconds: float) -> bool:
        """Wait until searches find all files of the stores. Returns False if that takes longer."""
        deadline = time.monotonic() + seconds
        for store in stores:
            while not await self._store.vector_store_is_indexed(tenant, store):
                if time.monotonic() >= deadline:
                    return False
                await asyncio.sleep(min(_POLL_SECONDS, seconds))
        return True

    async def search(self, tenant: str, request: SearchRequest) -> list[SearchHit]:
        """Return the best chunks, best first.

        Raises UnknownVectorStore and VectorStoreExpired, and what embedding a query and reading the store raise.
        """
        if self._bits is None:  # this imports numpy: 15 MiB that an idle server saves, and 0.1 s of CPU time
            self._bits = await asyncio.to_thread(make_sign_bits)
        stores = await self._open_stores(tenant, request)
        findings = Findings()
        for number, query in enumerate(request.queries):
            await self._find(tenant, request, stores, number, query, findings)
        reranker = None if request.ranker == "none" else self._reranker
        limit = request.max_results if reranker is None else RERANKED
        found = await self._read_hits(tenant, findings, fuse(findings.lists)[: _SPARE * limit])
        chosen = [*found.items()][:limit]
        scores = score_hits([chunk for chunk, _ in chosen], findings.cosines, findings.ranks)
        hits = [replace(hit, score=score) for (_, hit), score in zip(chosen, scores, strict=True)]
        if reranker is not None:
            hits = await reranker.rerank(tenant, request.queries, hits)
        return [hit for hit in hits[: request.max_results] if hit.score >= request.score_threshold]

    async def _open_stores(self, tenant: str, request: SearchRequest) -> list[SearchedStore]:
        """Load the indexes, embed the queries, once for each model, and apply the filters."""
        indexes = {name: await self._cache.get(tenant, name) for name in dict.fromkeys(request.stores)}
        by_meaning = request.ranker == "none" or request.embedding_weight > 0
        models = {index.state.embedder for index in indexes.values() if index.vectors.embedded and by_meaning}
        vectors = {model: await self._embedder.embed(tenant, model, request.queries) for model in models}
        return [
            await _select(name, index, vectors.get(index.state.embedder, []), request.filters)
            for name, index in indexes.items()
        ]

    async def _find(
        self,
        tenant: str,
        request: SearchRequest,
        stores: Sequence[SearchedStore],
        number: int,
        query: str,
        findings: Findings,
    ) -> None:
        cosines, texts = dict[int, float](), list[FoundChunk]()
        words = query_words(query) if request.ranker != "none" and request.text_weight > 0 else []
        for store in stores:
            found, nearest = await asyncio.gather(
                self._store.search_text(tenant, store.name, words, _DEPTH, store.allowed), store.find_nearest(number)
            )
            texts += found
            findings.stores |= dict.fromkeys([*nearest, *[one.chunk for one in found]], store)
            if store.vectors:
                embedded = [one.chunk for one in found if one.file in store.index.vectors.embedded]
                cosines |= await self._score(store, number, [*dict.fromkeys([*nearest, *embedded])])
        findings.add(request, cosines, texts)

    async def _score(self, store: SearchedStore, number: int, chunks: Sequence[int]) -> dict[int, float]:
        """Return the cosines of chunks with a query. A chunk that was replaced meanwhile may have other dimensions."""
        query = store.vectors[number]
        stored = await self._store.read_vectors(chunks)
        vectors = {chunk: joined for chunk, joined in stored.items() if len(joined) % len(query) == 0}
        assert self._bits is not None
        scores = await run_sized(len(vectors) * _SCORE_BYTES, self._bits.score, query, [*vectors.values()])
        return dict(zip(vectors, scores, strict=True))

    async def _read_hits(self, tenant: str, findings: Findings, ranked: Sequence[int]) -> dict[int, SearchHit]:
        """Read the text of chunks, in their order. The same text of a file in several stores is one hit."""
        by_store: dict[str, list[int]] = {}
        for chunk in ranked:
            by_store.setdefault(findings.stores[chunk].name, []).append(chunk)
        texts = dict[int, tuple[str, str]]()
        for name, chunks in by_store.items():
            texts |= await self._store.read_chunks(tenant, name, chunks)
        hits, seen = dict[int, SearchHit](), set[tuple[str, str]]()
        for chunk in ranked:
            store = findings.stores[chunk]
            # A file that became visible a moment ago is not in the index yet: the next search finds it.
            if chunk in texts and texts[chunk] not in seen and texts[chunk][0] in store.index.files:
                seen.add(texts[chunk])
                hits[chunk] = store.make_hit(*texts[chunk])
        return hits


async def _select(name: str, index: StoreIndex, vectors: Sequence[bytes], condition: Filter | None) -> SearchedStore:
    """Apply the filters to the files of a store. Raises InvalidValue if its vectors are of another size."""
    size = index.state.dimensions * NUMBER_BYTES
    if any(len(vector) != size for vector in vectors):
        raise InvalidValue(
            f"The vector store {name!r} has vectors of {index.state.dimensions} dimensions, but the model "
            f"{index.state.embedder!r} returns {len(vectors[0]) // NUMBER_BYTES}: add its files again."
        )
    allowed = None
    if condition is not None:
        allowed = await run_sized(len(index.files) * _FILTER_BYTES, select_files, index.files, condition)
    return SearchedStore(name, index, allowed, vectors)


_K = 60  # of reciprocal rank fusion (Cormack, Clarke and Büttcher, SIGIR 2009), which needs no common scale


def fuse(lists: Sequence[tuple[float, Sequence[int]]]) -> list[int]:
    """Return the members of lists with their weights, best first."""
    totals: defaultdict[int, float] = defaultdict(float)
    for weight, ranked in lists:
        for rank, member in enumerate(ranked, 1):
            totals[member] += weight / (_K + rank)
    return sorted(totals, key=lambda member: -totals[member])


def score_hits(hits: Sequence[int], cosines: Mapping[int, float], ranks: Mapping[int, int]) -> list[float]:
    """Return scores from 0 to 1 for ranked hits, of which none is below that of a later hit.

    The score is the cosine with the query, so that a threshold means the same for every search. A hit without a cosine
    has one by its rank in a text index, which begins with 1.
    """
    scores = [min(max(cosines[hit], 0.0), 1.0) if hit in cosines else _K / (_K + ranks[hit]) for hit in hits]
    return [*accumulate(reversed(scores), max)][::-1]
