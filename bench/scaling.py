"""Throughput with several workers: varied requests, with as many cores for load and engine as for the server."""

import contextlib
import os
import statistics
import sys
from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from bench.harness.gateways import OURS, REFUSED_FIELDS, run_gateway
from bench.harness.load import Load
from bench.harness.measure import measure_cpu
from bench.harness.servers import run_upstream
from bench.harness.traffic import Traffic
from bench.peer_cases import RESPONSES, Line
from bench.peer_table import PeerRow
from tests.support.services import postgres_home, postgres_server

WORKERS = (1, 2, 4, 8)
_CONNECTIONS, _REQUESTS = 24, 100  # per worker
_DURABLE = ("fsync", "synchronous_commit", "full_page_writes")  # the tests' PostgreSQL has them off


class Throughput(Struct, frozen=True, kw_only=True):
    """One kind of request; the goal is for 8 workers."""

    title: str
    goal: float | None = None
    stream: bool = False
    store: bool = False
    postgres: bool = False  # Antiphon stores in PostgreSQL; the default is SQLite. smg stores in memory


KINDS = (
    Throughput(title="JSON: requests/s", goal=1.2),
    Throughput(title="stored, ours in SQLite: requests/s", store=True),
    Throughput(title="stored, ours in PostgreSQL: requests/s", store=True, postgres=True, goal=0.6),
    Throughput(title="streams of 128 tokens: tokens/s", stream=True, goal=3.0),
)


def measure_scaling(gateways: Sequence[str], rounds: int) -> list[PeerRow]:
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


def _measure_kind(gateways: Sequence[str], workers: int, kind: Throughput, rounds: int) -> PeerRow:
    sys.stderr.write(f"scaling, {workers} workers, {kind.title}\n")
    samples: dict[str, list[float]] = {name: [] for name in gateways}
    for number in range(rounds):
        for name in gateways:
            samples[name].append(_measure_throughput(name, workers, kind, f"{workers} {number}"))
    line = Line(
        key="",
        title=f"{workers} workers, {kind.title}",
        goal=kind.goal if workers == WORKERS[-1] else None,
        at_least=True,
    )
    return PeerRow(
        row="scaling", line=line, figures={name: statistics.median(taken) for name, taken in samples.items()}
    )


def _measure_throughput(gateway: str, workers: int, kind: Throughput, seed: str) -> float:
    generators = range(workers, workers + max(1, workers // 2))
    engines = range(generators.stop, 2 * workers) or generators
    with (
        run_upstream(*engines) as engine,
        _run_store(kind.postgres and gateway == OURS) as store,
        run_gateway(gateway, engine, range(workers), store) as server,
    ):
        load = _make_load(gateway, kind, server.port, workers // len(generators))
        loads = [_place(load, f"{seed} {core}", core) for core in generators]
        _, counted = measure_cpu(server, *loads)
    done = sum(counts.tokens if kind.stream else counts.requests for counts in counted)
    return done / max(counts.seconds for counts in counted)


def _make_load(gateway: str, kind: Throughput, port: int, share: int) -> Load:
    traffic = Traffic(
        kind="varied",
        model="medium" if kind.stream else "brief",
        stream=kind.stream,
        store=kind.store,
        omit=REFUSED_FIELDS.get(gateway, ()),
    )
    return Load(
        port=port,
        path=RESPONSES,
        traffic=traffic,
        connections=_CONNECTIONS * share,
        requests=_REQUESTS // 4 if kind.stream else _REQUESTS,
        warm_up=96,
    )


def _place(load: Load, seed: str, core: int) -> Load:
    assert load.traffic is not None
    return replace(load, core=core, traffic=replace(load.traffic, seed=seed))


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
