"""Measures searches in vector stores: the latency in the server without the embedding of the query, also beside other
vector stores; recall compared with an exact search; the embedding of a query and chats while files are indexed; and the
quality on collections with judged queries through the HTTP API.

Chunks are drawn: their vectors lie around centres, and the words of their texts have the frequencies of a language.
"""

import argparse
import asyncio
import itertools
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import numpy as np

from antiphon.core.file_search import SearchRequest
from antiphon.ids import new_dashed_id, new_id
from antiphon.service.vector_stores.search import VectorSearch
from antiphon.stores.base import Claim, FileQuota, FileRow
from antiphon.stores.postgres_vectors import build_indexes
from antiphon.stores.registry import make_store
from antiphon.stores.vector_rows import IndexResult, NewVectorFile, TextChunk, VectorStoreRow
from bench.harness.table import Row, render_table
from bench.indexing import measure_indexing
from bench.retrieval import measure_collection

GOALS = {10_000: 15.0, 100_000: 40.0}  # milliseconds
KINDS: dict[str, dict[str, Any]] = {
    "hybrid": {},
    "by meaning": {"ranker": "none"},
    "by words": {"embedding_weight": 0.0},
}
_RECALL = 0.98
_TENANT, _MODEL, _DIMENSIONS = "default", "bench", 384
_FILE_CHUNKS, _CHUNK_WORDS, _QUERY_WORDS = 100, 100, 6
_SEARCHES = 100
_NEAR = 0.75  # noise of a query beside the vector that it is near to: a cosine of 0.8
_WORDS = [f"w{number:x}" for number in range(30_000)]
_STOP_WORDS = frozenset(_WORDS[:50])  # which queries do not contain, since searches ignore them in real languages
_FREQUENCIES = [*itertools.accumulate(1 / (rank + 3) for rank in range(len(_WORDS)))]


class FixedEmbedder:
    """Embeds a query as a vector that was drawn for it."""

    def __init__(self) -> None:
        self.vectors: dict[str, bytes] = {}

    async def embed(self, tenant: str, model: str, texts: Sequence[str]) -> list[bytes]:
        return [self.vectors[text] for text in texts]


class Corpus:
    """Drawn chunks, written to a store."""

    def __init__(self, location: str, chunks: int) -> None:
        self.store = make_store(location, 3600.0)
        self.name = new_id("vs")
        self._random, self._numpy = random.Random(1), np.random.default_rng(1)
        self._centres = self._numpy.normal(size=(chunks // _FILE_CHUNKS, _DIMENSIONS))
        self.vectors = _to_unit(
            np.repeat(self._centres, _FILE_CHUNKS, axis=0) + self._numpy.normal(size=(chunks, _DIMENSIONS))
        ).astype("<f2")
        self.texts: list[str] = []

    async def write(self) -> None:
        """Add a file for each centre."""
        row = VectorStoreRow(id=self.name, created=time.time(), last_active=time.time())
        await self.store.create_vector_store(_TENANT, row, 1000)
        for number in range(len(self._centres)):
            await self._write_file(number * _FILE_CHUNKS)

    async def _write_file(self, start: int) -> None:
        file = new_dashed_id("file")
        content = FileRow(
            id=file,
            created=time.time(),
            expires=None,
            size=0,
            filename="bench.txt",
            purpose="assistants",
            digest=file.encode(),
            content=file,
        )
        await self.store.add_file(_TENANT, content, FileQuota(10**9, 10**9))
        await self.store.add_vector_files(
            _TENANT, self.name, [NewVectorFile(file=file, chunk_tokens=800, overlap_tokens=400)], None, 10**9
        )
        [job] = await self.store.claim_vector_files(Claim("bench", time.time() + 600), 1, 1)
        texts = [" ".join(self._draw_words(_CHUNK_WORDS)) for _ in range(_FILE_CHUNKS)]
        self.texts += texts
        chunks = [
            TextChunk(number=start + number, text=text, vectors=[self.vectors[start + number].tobytes()])
            for number, text in enumerate(texts)
        ]
        await self.store.write_chunks(job.key, chunks)
        await self.store.finish_vector_file(job.key, IndexResult(embedder=_MODEL, dimensions=_DIMENSIONS))

    async def delete(self) -> None:
        await self.store.delete_vector_store(_TENANT, self.name)
        while await self.store.purge_vector_chunks(1000):
            pass

    def _draw_words(self, count: int) -> list[str]:
        return self._random.choices(_WORDS, cum_weights=_FREQUENCIES, k=count)

    def draw_query(self) -> tuple[str, Any]:
        """Draw words of a chunk, and a vector near to its vector."""
        number = self._random.randrange(len(self.texts))
        words = [term for term in self.texts[number].split() if term not in _STOP_WORDS]
        words = self._random.sample(words, _QUERY_WORDS)
        noise = self._numpy.normal(size=_DIMENSIONS, scale=_NEAR / _DIMENSIONS**0.5)
        return " ".join(words), _to_unit((self.vectors[number] + noise)[None])[0].astype("<f2")

    def find_exact(self, vector: Any) -> set[str]:
        """Return the texts of the ten nearest chunks."""
        cosines = self.vectors.astype(np.float32) @ vector.astype(np.float32)
        return {self.texts[number] for number in np.argsort(-cosines)[:10]}


def _to_unit(vectors: Any) -> Any:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


async def measure_latency(chunks: int, location: str | None = None, others: int = 0) -> list[Row]:
    """Measure a vector store, beside one with as many other chunks in the same database."""
    with tempfile.TemporaryDirectory() as folder:
        place = location or f"{folder}/bench.db"
        written = [Corpus(place, count) for count in (others, chunks) if count]
        for corpus in written:
            await corpus.store.open()
            await corpus.write()
        rows = await _measure(
            corpus, f"{chunks:,} chunks beside {others:,}" if others else f"{chunks:,} chunks", location
        )
        for corpus in written:
            if location:
                await corpus.delete()
            await corpus.store.close()
    return rows


async def _measure(corpus: Corpus, title: str, location: str | None) -> list[Row]:
    embedder = FixedEmbedder()
    queries = [corpus.draw_query() for _ in range(_SEARCHES)]
    embedder.vectors = {text: vector.tobytes() for text, vector in queries}
    search = VectorSearch(corpus.store, embedder)
    load = (await _time_search(search, corpus.name, queries[0][0]))[0]
    rows = [Row(name=f"{title}, first search, which loads the index: ms", figures=(load,))]
    if location and corpus.store.has_points:
        start = time.perf_counter()
        await build_indexes(location)
        taken = time.perf_counter() - start
        rows.append(Row(name=f"{title}, HNSW index if there are enough: seconds", figures=(taken,)))
    for name, options in KINDS.items():
        results = [await _time_search(search, corpus.name, text, **options) for text, _ in queries]
        times = [taken for taken, _ in results]
        goal = GOALS.get(len(corpus.texts)) if name == "hybrid" else None
        rows += [
            Row(name=f"{title}, {name}: median ms", figures=(median(times),), goal=goal),
            Row(name=f"{title}, {name}: p95 ms", figures=(quantiles(times, n=20)[-1],)),
            Row(name=f"{title}, {name}: minimum ms", figures=(min(times),)),
        ]
        if name == "by meaning":
            found = [
                texts & corpus.find_exact(vector) for (_, texts), (_, vector) in zip(results, queries, strict=True)
            ]
            recall = sum(map(len, found)) / (10 * len(queries))
            rows.append(Row(name=f"{title}: recall@10", figures=(recall,), goal=_RECALL, at_least=True))
    return rows


async def _time_search(search: VectorSearch, store: str, query: str, **options: Any) -> tuple[float, set[str]]:
    """Return milliseconds and the texts that were found."""
    start = time.perf_counter()
    hits = await search.search(_TENANT, SearchRequest(stores=[store], queries=[query], **options))
    return 1000 * (time.perf_counter() - start), {hit.text for hit in hits}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.search", description=__doc__)
    parser.add_argument("--chunks", default="10000,100000", help="sizes of drawn vector stores; empty: none")
    parser.add_argument("--others", type=int, default=0, help="chunks of another vector store in the same database")
    parser.add_argument("--store", help="as for `antiphon serve`, e.g. postgresql://…; default: a new SQLite file")
    parser.add_argument("--rounds", type=int, default=5, help="of chats without and with indexing; 0: none")
    parser.add_argument("--collection", type=Path, help="folder of collections, NAME.json.gz with docs, queries, qrels")
    parser.add_argument("--limit-documents", type=int, help="use only the first documents of each collection")
    parser.add_argument("--concurrency", type=int, default=4, help="uploads and searches at a time")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a goal is missed")
    arguments = parser.parse_args()
    rows = []
    for chunks in map(int, filter(None, arguments.chunks.split(","))):
        rows += asyncio.run(measure_latency(chunks, arguments.store, arguments.others))
    if arguments.rounds:
        rows += measure_indexing(arguments.rounds)
    for path in sorted(arguments.collection.glob("*.json.gz")) if arguments.collection else []:
        rows += measure_collection(path, arguments.limit_documents, arguments.concurrency)
    sys.stdout.write(f"{render_table(rows, ['figure', 'baseline'])}\n")
    return 1 if arguments.check and any(row.misses_goal for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
