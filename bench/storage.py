"""A full store next to a nearly empty one: how long a response takes to be found, and how much memory that needs."""

import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from bench.cases import JSON, PATH, Effort
from bench.harness.get_load import Gets, Took
from bench.harness.process_meter import rss_bytes
from bench.harness.servers import LOAD_CORE, Server, antiphon, pin
from bench.harness.table import Row
from bench.state import stored

FEW = 1_000
TARGETS = {"p99": 1.5, "rss": 8.0}
MIB = 1024 * 1024
_GETS = 2_000
_BATCHES = 5  # of so many; the calmest counts, after one to warm up


def full_store(effort: Effort) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "full.db"
        few, few_bytes = _measured(file, FEW)
        many, many_bytes = _measured(file, effort.stored - FEW)
    return [
        Row(
            name=f"GET of {effort.stored:,} stored responses (beside: of {FEW:,}): p99 ms",
            ours=many.p99_ms,
            yardstick=few.p99_ms,
            target=TARGETS["p99"],
        ),
        Row(
            name=f"{effort.stored:,} stored responses, beyond {FEW:,}: RSS MiB",
            ours=(many_bytes - few_bytes) / MIB,
            target=TARGETS["rss"],
        ),
    ]


def _measured(file: Path, count: int) -> tuple[Took, int]:
    """Put so many more into the store, and ask a server on it for some of all that it has."""
    with antiphon("--store", str(file)) as server:
        model = msgspec.json.decode(server.post(PATH, stored(JSON)))["id"]
    ids = file.with_suffix(".ids")
    with ids.open("ab") as made:
        command = [sys.executable, "-m", "bench.harness.store_filler", str(file), model, str(count)]
        subprocess.run(command, stdout=made, check=True, timeout=300)
    with antiphon("--store", str(file)) as server:
        took = [_gets(server, ids) for _ in range(_BATCHES + 1)]
        return min(took[1:], key=lambda one: one.p99_ms), rss_bytes(server.pid)


def _gets(server: Server, ids: Path) -> Took:
    asked = msgspec.json.encode(Gets(port=server.port, ids=str(ids), count=_GETS)).decode()
    command = [sys.executable, "-m", "bench.harness.get_load", asked]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=120, preexec_fn=lambda: pin(LOAD_CORE))
    return msgspec.json.decode(done.stdout, type=Took)
