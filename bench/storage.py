"""Retrieval from a full store compared with an almost empty one: latency, and memory of the server. Size of stored
responses: JSON and packed log compared with the JSON alone.
"""

import contextlib
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path
from random import Random

import msgspec

from bench.cases import JSON, PATH, Effort
from bench.harness.get_load import GetLoad, GetTimes
from bench.harness.process_meter import rss_bytes
from bench.harness.servers import LOAD_CORE, Server, pin, run_antiphon
from bench.harness.table import Row
from bench.state import enable_store

FEW = 1_000
TARGETS = {"p99": 1.5, "rss": 8.0, "size": 2.0}
MIB = 1024 * 1024
_GETS = 2_000
_BATCHES = 5  # the fastest batch counts; one more warms up
_WORDS = ["the", "of", "and", "page", "that", "it", "for", "was", "on", "with", "they", "this", "from", "file", "one"]


def _make_pieces(count: int) -> str:
    return msgspec.json.encode([f" {word}" for word in Random(1).choices(_WORDS, k=count)]).decode()


_SIZED = {
    "8 tokens": f"say = {_make_pieces(8)}",
    "400 tokens": f"say = {_make_pieces(400)}",
    "a call": 'call = { name = "read", arguments = { path = "src/main.py", lines = [1, 200] }, chunks = 12 }',
    "reasoning": f"think = {_make_pieces(400)}",
}


def measure_full_store(effort: Effort) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "full.db"
        few, few_bytes = _measure_store(file, FEW)
        many, many_bytes = _measure_store(file, effort.stored - FEW)
    return [
        Row(
            name=f"GET of {effort.stored:,} stored responses (baseline: of {FEW:,}): p99 ms",
            ours=many.p99_ms,
            baseline=few.p99_ms,
            target=TARGETS["p99"],
        ),
        Row(
            name=f"{effort.stored:,} stored responses, more than with {FEW:,}: RSS MiB",
            ours=(many_bytes - few_bytes) / MIB,
            target=TARGETS["rss"],
        ),
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
        Row(name=f"stored, {name} (baseline: JSON): bytes", ours=json + log, baseline=json, target=TARGETS["size"])
        for name, (json, log) in zip(_SIZED, sizes, strict=True)
    ]


def _make_sized_request(name: str) -> str:
    tool = {"type": "function", "name": "read", "parameters": {"type": "object"}, "strict": False}
    return msgspec.json.encode({"model": "fake", "input": name, "tools": [tool]}).decode()


def _measure_store(file: Path, count: int) -> tuple[GetTimes, int]:
    """Add `count` responses to the store, and retrieve a sample of all responses from a server on it."""
    with run_antiphon("--store", str(file)) as server:
        model = msgspec.json.decode(server.post(PATH, enable_store(JSON)))["id"]
    ids = file.with_suffix(".ids")
    with ids.open("ab") as output:
        command = [sys.executable, "-m", "bench.harness.store_filler", str(file), model, str(count)]
        subprocess.run(command, stdout=output, check=True, timeout=300)
    with run_antiphon("--store", str(file)) as server:
        times = [_run_gets(server, ids) for _ in range(_BATCHES + 1)]
        return min(times[1:], key=lambda one: one.p99_ms), rss_bytes(server.pid)


def _run_gets(server: Server, ids: Path) -> GetTimes:
    argument = msgspec.json.encode(GetLoad(port=server.port, ids=str(ids), count=_GETS)).decode()
    command = [sys.executable, "-m", "bench.harness.get_load", argument]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=120, preexec_fn=lambda: pin(LOAD_CORE))
    return msgspec.json.decode(done.stdout, type=GetTimes)
