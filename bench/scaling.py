"""Throughput with several workers: varied requests, with as many cores for load and engine as for the server."""

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from statistics import median

from msgspec import Struct
from msgspec.structs import replace

from bench.harness.gateways import OURS, REFUSED_FIELDS, collect_figure, run_gateway
from bench.harness.load import Load
from bench.harness.measure import measure_cpu
from bench.harness.servers import run_upstream
from bench.harness.table import Row
from bench.harness.traffic import Traffic
from bench.peer_cases import RESPONSES
from tests.support.services import postgres_home, postgres_server

WORKERS = (1, 2, 4, 8)
_CONNECTIONS = 24  # per worker
_REQUESTS = 100  # per connection, on average
_DURABLE = ("fsync", "synchronous_commit", "full_page_writes")  # the tests' PostgreSQL has them off


class Throughput(Struct, frozen=True, kw_only=True):
    """One kind of request. The goal is for 8 workers. smg stores in memory, Antiphon in SQLite or PostgreSQL."""

    title: str
    goal: float | None = None
    traffic: Traffic
    postgres: bool = False


_JSON = Traffic(kind="varied", model="brief")
_STORED = Traffic(kind="varied", model="brief", store=True)
_STREAM = Traffic(kind="varied", model="medium", stream=True)
KINDS = (
    Throughput(title="JSON: requests/s", traffic=_JSON, goal=1.2),
    Throughput(title="stored, ours in SQLite: requests/s", traffic=_STORED),
    Throughput(title="stored, ours in PostgreSQL: requests/s", traffic=_STORED, postgres=True, goal=0.6),
    Throughput(title="streams of 128 tokens: tokens/s", traffic=_STREAM, goal=3.0),
)


def measure_scaling(gateways: Sequence[str], rounds: int) -> list[Row]:
    """Measure as many workers as there are cores for; say what is skipped."""
    rows, cores = [], os.cpu_count() or 1
    for workers in WORKERS:
        if cores < 2 * workers:
            sys.stderr.write(f"scaling, {workers} workers: skipped, needs {2 * workers} cores and there are {cores}\n")
            continue
        for kind in KINDS:
            if kind.postgres and postgres_home() is None:
                sys.stderr.write(f"scaling, {kind.title}: skipped, PostgreSQL is not installed\n")
                continue
            rows.append(_measure_kind(gateways, workers, kind, rounds))
    return rows


def _measure_kind(gateways: Sequence[str], workers: int, kind: Throughput, rounds: int) -> Row:
    sys.stderr.write(f"scaling, {workers} workers, {kind.title}\n")
    title = f"{workers} workers, {kind.title}"
    samples: dict[str, list[float]] = {name: [] for name in gateways}
    for number in range(rounds):
        for name, taken in samples.items():
            measure = partial(_measure_throughput, name, workers, kind, f"{workers} {number}")
            taken += collect_figure(name, title, measure)
    return Row(
        group="scaling",
        name=title,
        figures=[median(taken) if taken else None for taken in samples.values()],
        goal=kind.goal if workers == WORKERS[-1] else None,
        at_least=True,
    )


def _measure_throughput(gateway: str, workers: int, kind: Throughput, seed: str) -> float:
    # An engine writes each token on its own, which costs it more than the generators that count them.
    generators = range(workers, workers + max(1, workers // 4))
    engines = range(generators.stop, 2 * workers) or generators
    with (
        run_upstream(*engines) as engine,
        _run_store(kind.postgres and gateway == OURS) as store,
        run_gateway(gateway, engine, range(workers), store) as server,
    ):
        connections = _CONNECTIONS * workers // len(generators)
        traffic = replace(kind.traffic, omit=REFUSED_FIELDS.get(gateway, ()))
        loads = [
            Load(
                port=server.port, path=RESPONSES, traffic=replace(traffic, seed=f"{seed} {core}"),
                connections=connections, requests=_REQUESTS, compete=True, warm_up=96, core=core,
            )
            for core in generators
        ]  # fmt: skip
        _, counted = measure_cpu(server, *loads)
    done = sum(counts.tokens if kind.traffic.stream else counts.requests for counts in counted)
    return done / max(counts.seconds for counts in counted)


@contextlib.contextmanager
def _run_store(postgres: bool) -> Iterator[str | None]:
    """Run PostgreSQL with the durability of its defaults, or yield None: a SQLite file."""
    if not postgres:
        yield None
        return
    with postgres_server() as server:
        for setting in _DURABLE:
            server.run_sql(f"ALTER SYSTEM SET {setting} = on")
        server.run_sql("SELECT pg_reload_conf()")
        yield server.url()
