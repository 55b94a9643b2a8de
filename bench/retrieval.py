"""The quality of searches on a collection with judged queries: documents uploaded one by one through the HTTP API, and
embedded and searched by a server with its defaults.
"""

import gzip
import http.client
import math
import os
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from bench.harness.servers import run_antiphon
from bench.harness.table import Row

T = TypeVar("T")
R = TypeVar("R")
GOALS = {"npl-vaswani": 0.49, "cranfield": 0.43}  # nDCG@10 of the hybrid search
KINDS: dict[str, dict[str, Any]] = {
    "words only": {"hybrid_search": {"embedding_weight": 0, "text_weight": 1}},
    "embeddings only": {"ranker": "none"},
    "hybrid": {},
}
_BATCH = 500
_HITS, _CUT = 50, 10  # several hits may be of one document
_POLL_SECONDS = 2.0


class Collection(Struct, frozen=True, kw_only=True):
    """Documents and queries by id, and the relevance of documents to queries."""

    name: str
    docs: dict[str, str]
    queries: dict[str, str]
    qrels: dict[str, dict[str, float]]


class Client:
    """Sends requests to a server."""

    def __init__(self, port: int, concurrency: int) -> None:
        self._port = port
        self._pool = ThreadPoolExecutor(concurrency)

    def map(self, function: Callable[[T], R], values: Iterable[T]) -> list[R]:
        return [*self._pool.map(function, values)]

    def send(self, method: str, path: str, body: bytes = b"", kind: str = "application/json") -> Any:
        return msgspec.json.decode(self.fetch(method, path, body, kind))

    def fetch(self, method: str, path: str, body: bytes, kind: str = "application/json") -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=600)
        try:
            connection.request(method, f"/v1/{path}", body, {"Content-Type": kind})
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        if answer.status != 200:
            raise RuntimeError(f"{method} {path}: {answer.status} {content[:500]!r}")
        return content

    def post(self, path: str, body: object) -> Any:
        return self.send("POST", path, msgspec.json.encode(body))

    def upload(self, document: tuple[str, str]) -> tuple[str, str]:
        """Upload a document. Returns the id of its file, and its own."""
        name, text = document
        border = uuid.uuid4().hex
        form = (
            f'--{border}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nassistants\r\n'
            f'--{border}\r\nContent-Disposition: form-data; name="file"; filename="{name}.txt"\r\n'
            f"Content-Type: text/plain\r\n\r\n{text}\r\n--{border}--\r\n"
        )
        file = self.send("POST", "files", form.encode(), f"multipart/form-data; boundary={border}")
        return file["id"], name


def measure_collection(path: Path, limit: int | None, concurrency: int) -> list[Row]:
    """Index a collection with a server of its own, and return nDCG@10 of each kind of search."""
    collection = msgspec.json.decode(gzip.decompress(path.read_bytes()), type=Collection)
    documents = ((name, text) for name, text in collection.docs.items() if text.strip())  # empty files are refused
    docs = dict(islice(documents, limit))
    with run_antiphon(engine="llamacpp", cores=range(os.cpu_count() or 1)) as server:
        client = Client(server.port, concurrency)
        started = time.monotonic()
        names = dict(client.map(client.upload, docs.items()))
        store = _index(client, [*names])
        taken = time.monotonic() - started
        figures = {kind: _measure_ranking(client, store, collection, names, options) for kind, options in KINDS.items()}
    goals = {"hybrid": None if limit else GOALS.get(collection.name)}
    return [
        Row(name=f"{collection.name}, {len(docs):,} documents: uploaded and indexed in seconds", figures=(taken,)),
        *(
            Row(name=f"{collection.name}, {kind}: nDCG@10", figures=(figure,), goal=goals.get(kind), at_least=True)
            for kind, figure in figures.items()
        ),
    ]


def _index(client: Client, files: Sequence[str]) -> str:
    """Add the files to a vector store, wait until all are indexed, and return its id."""
    store: str = client.post("vector_stores", {"name": "bench"})["id"]
    for start in range(0, len(files), _BATCH):
        client.post(f"vector_stores/{store}/file_batches", {"file_ids": files[start : start + _BATCH]})
    while (counts := client.send("GET", f"vector_stores/{store}")["file_counts"])["in_progress"]:
        sys.stderr.write(f"\r{counts['completed']:,} of {counts['total']:,} files are indexed")
        time.sleep(_POLL_SECONDS)
    sys.stderr.write("\n")
    if counts["completed"] < len(files):
        raise RuntimeError(f"Not all files were indexed: {counts}")
    return store


def _measure_ranking(
    client: Client, store: str, collection: Collection, names: Mapping[str, str], options: Mapping[str, Any]
) -> float:
    queries = [
        (query, {name: grade for name, grade in collection.qrels.get(number, {}).items() if name in names.values()})
        for number, query in collection.queries.items()
    ]
    judged = [(query, grades) for query, grades in queries if any(grade > 0 for grade in grades.values())]
    rankings = client.map(partial(_rank, client, store, names, options), [query for query, _ in judged])
    return sum(ndcg(ranking, grades) for ranking, (_, grades) in zip(rankings, judged, strict=True)) / len(judged)


def _rank(client: Client, store: str, names: Mapping[str, str], options: Mapping[str, Any], query: str) -> list[str]:
    """Return the ids of the documents, each with its best chunk."""
    body = {"query": query, "max_num_results": _HITS, "ranking_options": options}
    hits = client.post(f"vector_stores/{store}/search", body)["data"]
    return [*dict.fromkeys(names[hit["file_id"]] for hit in hits)]


def ndcg(ranking: Sequence[str], grades: Mapping[str, float]) -> float:
    """The normalised discounted cumulative gain at 10, with linear gains (Järvelin and Kekäläinen, TOIS 2002)."""
    ideal = sorted((grade for grade in grades.values() if grade > 0), reverse=True)
    return _sum_gains([max(grades.get(name, 0), 0) for name in ranking]) / _sum_gains(ideal)


def _sum_gains(gains: Sequence[float]) -> float:
    return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains[:_CUT], 1))
