"""Retrieval from a full store compared with an almost empty one: latency, and memory of the server."""

import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from bench.cases import JSON, PATH, Effort
from bench.harness.get_load import GetLoad, GetTimes
from bench.harness.process_meter import rss_bytes
from bench.harness.servers import LOAD_CORE, Server, pin, run_antiphon
from bench.harness.table import Row
from bench.state import enable_store

FEW = 1_000
TARGETS = {"p99": 1.5, "rss": 8.0}
MIB = 1024 * 1024
_GETS = 2_000
_BATCHES = 5  # the fastest batch counts; one more warms up


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
