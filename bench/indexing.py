"""The embedded embedding model beside other work: the time to embed a query, and the latency of chats while files are
indexed. The model takes CPU time of the machine that answers the chats; another engine generates them.

Phases without and with indexing alternate, so that other load on the machine affects both.
"""

import os
import random
import time
from collections.abc import Callable, Sequence
from statistics import median, quantiles
from typing import TypeVar

import msgspec

from bench.harness.process_meter import cpu_ns
from bench.harness.servers import run_antiphon
from bench.harness.table import Row
from bench.retrieval import Client

MODEL = "all-minilm-l6-v2"
MAX_QUERY_MS, MAX_RATIO = 40.0, 1.3
_CLIENTS, _CHATS = 4, 400  # in a phase
_PAUSE_SECONDS = 0.01  # of a client between two chats, which would otherwise use all of the CPU
_SETTLE_SECONDS = 3.0  # until the work on new files has begun, and that on removed ones has ended
_QUERIES, _QUERY_WORDS = 30, 12
_FILES, _FILE_WORDS = 40, 4000
_CHAT = msgspec.json.encode(
    {"model": "fake", "messages": [{"role": "user", "content": "What is measured here?"}], "stream": True}
)
_WORDS = ("river", "engine", "market", "signal", "winter", "protein", "language", "copper", "garden", "theory")

T = TypeVar("T")


def measure_indexing(rounds: int) -> list[Row]:
    flags = ("--engine", "fake", "--embedding-model", MODEL)
    with run_antiphon(*flags, engine="llamacpp", cores=range(os.cpu_count() or 1)) as server:
        client = Client(server.port, _CLIENTS)
        files = [client.upload((str(number), _draw_words(_FILE_WORDS)))[0] for number in range(_FILES)]
        _embed_query(client)  # loads the model
        began = cpu_ns(server.pid)
        query = _time_queries(client)
        cpu_ms = (cpu_ns(server.pid) - began) / _QUERIES / 1e6
        phases = [(_time_chats(client), _run_indexing(client, files, _time_chats)) for _ in range(rounds)]
        busy_query = _run_indexing(client, files, _time_queries)
    rows = [
        Row(name="embedding of a query: median ms", figures=(query,), goal=MAX_QUERY_MS),
        Row(name="embedding of a query: CPU ms, which other load does not affect", figures=(cpu_ms,)),
        Row(name="embedding of a query while files are indexed: median ms", figures=(busy_query, query)),
    ]
    for number, name in enumerate(("median", "p99")):
        idle, busy = (median([figures[number] for figures in column]) for column in zip(*phases, strict=True))
        goal = MAX_RATIO if name == "p99" else None
        rows.append(Row(name=f"chat while files are indexed: {name} ms", figures=(busy, idle), goal=goal))
    return rows


def _run_indexing(client: Client, files: Sequence[str], measure: Callable[[Client], T]) -> T:
    """Measure while the files are indexed, and stop that."""
    store = client.post("vector_stores", {"file_ids": files})["id"]
    time.sleep(_SETTLE_SECONDS)
    figures = measure(client)
    if not client.send("GET", f"vector_stores/{store}")["file_counts"]["in_progress"]:
        raise RuntimeError("All files were indexed before the end of the measurement.")
    client.send("DELETE", f"vector_stores/{store}")
    time.sleep(_SETTLE_SECONDS)
    return figures


def _time_chats(client: Client) -> tuple[float, float]:
    """Return median and p99 of complete streams, in milliseconds."""
    times = client.map(lambda _: _time_call(lambda: client.fetch("POST", "chat/completions", _CHAT)), range(_CHATS))
    return median(times), quantiles(times, n=100)[-1]


def _time_queries(client: Client) -> float:
    """Return the median time to embed a query, in milliseconds."""
    return median([_time_call(lambda: _embed_query(client)) for _ in range(_QUERIES)])


def _embed_query(client: Client) -> None:
    client.post("embeddings", {"model": MODEL, "input": _draw_words(_QUERY_WORDS)})


def _time_call(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    taken = time.perf_counter() - start
    time.sleep(_PAUSE_SECONDS)
    return 1000 * taken


def _draw_words(count: int) -> str:
    return " ".join(random.choices(_WORDS, k=count))
