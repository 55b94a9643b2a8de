"""Retrieval from a full store compared with an almost empty one: latency, and memory of the server. Size of stored
responses: JSON and packed log compared with the JSON alone.
"""

import asyncio
import contextlib
import http.client
import random
import sqlite3
import tempfile
import time
from pathlib import Path

import msgspec

from antiphon.ids import new_id
from antiphon.stores.base import NewResponse, ResponseEnd, StoredResponse
from antiphon.stores.sqlite import SqliteStore
from bench.cases import PATH
from bench.harness.process_meter import rss_bytes
from bench.harness.servers import Server, run_antiphon
from bench.harness.table import Row

FEW = 1_000
TARGETS = {"p99": 1.5, "rss": 8.0, "size": 2.0}
MIB = 1024 * 1024
_TENANT, _TTL = "default", 2_592_000.0
_STORED_REQUEST = b'{"model":"fake","input":"hi"}'
_CONCURRENCY = 64  # concurrent writes share a commit
_GETS = 2_000
_BATCHES = 5  # the fastest batch counts; one more warms up
_WORDS = ["the", "of", "and", "page", "that", "it", "for", "was", "on", "with", "they", "this", "from", "file", "one"]


def _make_pieces(count: int) -> str:
    return msgspec.json.encode([f" {word}" for word in random.Random(1).choices(_WORDS, k=count)]).decode()


_SIZED = {
    "8 tokens": f"say = {_make_pieces(8)}",
    "400 tokens": f"say = {_make_pieces(400)}",
    "a call": 'call = { name = "read", arguments = { path = "src/main.py", lines = [1, 200] }, chunks = 12 }',
    "reasoning": f"think = {_make_pieces(400)}",
}


def measure_full_store(many: int) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        file, ids = str(Path(folder) / "full.db"), list[str]()
        few_ms, few_bytes = _measure_store(file, ids, FEW)
        many_ms, many_bytes = _measure_store(file, ids, many - FEW)
    name = f"GET of {many:,} stored responses (baseline: of {FEW:,}): p99 ms"
    grown = (many_bytes - few_bytes) / MIB
    return [
        Row(name=name, figures=(many_ms, few_ms), goal=TARGETS["p99"]),
        Row(name=f"{many:,} stored responses, more than with {FEW:,}: RSS MiB", figures=(grown,), goal=TARGETS["rss"]),
    ]


def measure_stored_size() -> list[Row]:
    """Measure the bytes of a stored response, its request not counted."""
    replies = [
        f'[[reply]]\nwhen = {{ contains = "{name}" }}\nsteps = [{{ {step} }}]\n' for name, step in _SIZED.items()
    ]
    with tempfile.TemporaryDirectory() as folder:
        script, file = Path(folder) / "script.toml", Path(folder) / "sizes.db"
        script.write_text("\n".join(replies))
        with run_antiphon("--store", str(file), "--fake-script", str(script)) as server:
            for name in _SIZED:
                server.post(PATH, _make_sized_request(name))
        with contextlib.closing(sqlite3.connect(file)) as database:
            sizes = database.execute("SELECT length(response), length(tape) FROM responses ORDER BY created").fetchall()
    return [
        Row(name=f"stored, {name} (baseline: JSON): bytes", figures=(json + log, json), goal=TARGETS["size"])
        for name, (json, log) in zip(_SIZED, sizes, strict=True)
    ]


def _make_sized_request(name: str) -> bytes:
    tool = {"type": "function", "name": "read", "parameters": {"type": "object"}, "strict": False}
    return msgspec.json.encode({"model": "fake", "input": name, "tools": [tool]})


def _measure_store(file: str, ids: list[str], count: int) -> tuple[float, int]:
    """Add `count` responses to the store and to `ids`, and retrieve a sample of all from a server on it."""
    with run_antiphon("--store", file) as server:
        original = msgspec.json.decode(server.post(PATH, _STORED_REQUEST))["id"]
    ids += asyncio.run(_fill(file, original, count))
    with run_antiphon("--store", file) as server:
        p99 = [_measure_gets(server, ids) for _ in range(_BATCHES + 1)]
        return min(p99[1:]), rss_bytes(server.pid)


async def _fill(file: str, response_id: str, count: int) -> list[str]:
    """Store copies of a response, each with its own id, with the store's own code."""
    store = SqliteStore(file, _TTL)
    await store.open()
    try:
        original = await store.get(_TENANT, response_id)
        assert original is not None
        ids: list[str] = []
        while len(ids) < count:
            ids += await asyncio.gather(*(_copy(store, original) for _ in range(_CONCURRENCY)))
        return ids
    finally:
        await store.close()


async def _copy(store: SqliteStore, original: StoredResponse) -> str:
    response_id, now = new_id("resp"), time.time()
    old, new = (one.rpartition("_")[2].encode() for one in (original.id, response_id))
    request, response = (content.replace(old, new) for content in (original.request, original.response))
    row = NewResponse(id=response_id, status="in_progress", created=now, request=request, response=response)
    assert original.packed_log is not None
    end = ResponseEnd(
        id=response_id, fence=0, status="completed", response=response, packed_log=original.packed_log, ended=now,
        expires=now + _TTL, new=row,
    )  # fmt: skip
    await store.finish(_TENANT, end)
    return response_id


def _measure_gets(server: Server, ids: list[str]) -> float:
    """Retrieve responses in random order on one connection; return the p99 of the time in ms."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)) as connection:
        times = sorted(_measure_get(connection, each) for each in random.Random(1).choices(ids, k=_GETS))
    return times[len(times) * 99 // 100] * 1e3


def _measure_get(connection: http.client.HTTPConnection, response_id: str) -> float:
    start = time.perf_counter()
    connection.request("GET", f"{PATH}/{response_id}")
    answer = connection.getresponse()
    content = answer.read()
    spent = time.perf_counter() - start
    if answer.status != 200 or response_id.encode() not in content:
        raise RuntimeError(f"GET {response_id}: {answer.status} {content[:500]!r}")
    return spent
