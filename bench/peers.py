"""Measures the overhead of the server compared with smg, a gateway written in Rust: both in front of one fake engine,
in turn. Prints one table of medians.

Both are restarted for each round. The cost is the CPU time of the server's whole process tree. Targets limit the ratio;
the table shows which are missed.
"""

import argparse
import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace

from bench.harness.measure import bytes_per_stream, measure_cpu, median
from bench.harness.process_meter import rss_bytes
from bench.harness.servers import Server, run_antiphon, run_upstream
from bench.harness.smg import VERSION, install, run_smg
from bench.harness.table import Row, render_table
from bench.peer_cases import (
    CHAT,
    RESPONSES,
    Effort,
    Figures,
    PeerCase,
    make_cases,
    make_chat_case,
    make_first_load,
    make_held_load,
)

FULL = Effort(rounds=5, streams=6, requests=150, firsts=300, held=500)
QUICK = Effort(rounds=1, streams=2, requests=40, firsts=100, held=200)
FIRST_TOKEN, IDLE_MIB, STREAM_KB = 0.5, 58.0, 40.0
MIB = 1024 * 1024

Pair = tuple[Figures, Figures]  # of Antiphon and of the peer


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer measurements; noisier")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target is missed")
    arguments = parser.parse_args()
    command = install()
    start = time.monotonic()
    with run_upstream() as engine:
        rows = compare(command, engine, QUICK if arguments.quick else FULL)
    sys.stdout.write(f"{render_table(rows, f'smg {VERSION}')}\n\n{time.monotonic() - start:.0f} s\n")
    return 1 if arguments.check and any(row.misses_target for row in rows) else 0


def compare(command: Path, engine: Server, effort: Effort) -> list[Row]:
    """Measure all cases, with new servers for each round: the cost of a process depends on the addresses of its code
    and memory.
    """
    measured = [*make_cases(effort), make_chat_case(effort)]
    samples: list[list[Pair]] = [[] for _ in measured]
    firsts: list[tuple[float, float]] = []
    sizes: list[Row] = []
    for number in range(effort.rounds):
        sys.stderr.write(f"round {number + 1} of {effort.rounds}\n")
        with run_both(command, engine) as (ours, peer):
            peers = PeerComparison(engine, ours, peer, effort)
            sizes = sizes or peers.measure_memory()
            for case, case_samples in zip(measured, samples, strict=True):
                case_samples.append(peers.measure_pair(case, ours_first=number % 2 == 0))
            firsts.append(peers.measure_first_tokens())
    rows = [
        row for case, case_samples in zip(measured, samples, strict=True) for row in make_case_rows(case, case_samples)
    ]
    return [*rows, make_first_row(firsts), *sizes]


@contextlib.contextmanager
def run_both(command: Path, engine: Server) -> Iterator[tuple[Server, Server]]:
    with (
        run_antiphon(engine=f"openai://127.0.0.1:{engine.port}") as ours,
        run_smg(command, engine, RESPONSES, '{"model":"brief","input":"hi"}') as peer,
    ):
        yield ours, peer


class PeerComparison:
    """Two servers in front of one engine."""

    def __init__(self, engine: Server, ours: Server, peer: Server, effort: Effort) -> None:
        self._engine = engine
        self._ours = ours
        self._peer = peer
        self._effort = effort

    def measure_memory(self) -> list[Row]:
        """Measure memory before everything else: a process retains memory that it has used, and would reuse it here."""
        ours, peer = (rss_bytes(server.pid) / MIB for server in (self._ours, self._peer))
        idle = Row(name="idle: RSS MiB", ours=ours, reference=peer, target=IDLE_MIB)
        return [idle, self._measure_held()]

    def measure_first_tokens(self) -> tuple[float, float]:
        return self._measure_added(self._ours, CHAT), self._measure_added(self._peer, RESPONSES)

    def measure_pair(self, case: PeerCase, *, ours_first: bool) -> Pair:
        """Measure both servers, one directly after the other."""
        if ours_first:
            ours = case.measure(self._ours, ours=True)
            return ours, case.measure(self._peer, ours=False)
        peer = case.measure(self._peer, ours=False)
        return case.measure(self._ours, ours=True), peer

    def _measure_added(self, server: Server, direct: str) -> float:
        """Return the time to the first token that the server adds to that of the engine, which gets the same request
        directly.
        """
        through = self._measure_first(server, RESPONSES)
        return through - self._measure_first(self._engine, direct)

    def _measure_first(self, server: Server, path: str) -> float:
        load = make_first_load(self._effort, path)
        done = server is self._ours or path == CHAT
        return measure_cpu(server, replace(load, port=server.port, done=done))[1].p50_ms

    def _measure_held(self) -> Row:
        for server in (self._ours, self._peer):
            self._measure_first(server, RESPONSES)
        load = make_held_load(self._effort)
        ours, peer = (
            bytes_per_stream(server, replace(load, port=server.port)) / 1000 for server in (self._ours, self._peer)
        )
        return Row(name=f"{self._effort.held} live streams: RSS kB/stream", ours=ours, reference=peer, target=STREAM_KB)


def make_case_rows(case: PeerCase, samples: list[Pair]) -> list[Row]:
    ours, peer = (median([figures.cpu for figures in column]) for column in zip(*samples, strict=True))
    rows = [Row(name=case.name, ours=ours, baseline=peer, target=case.target)]
    if case.transit is not None:
        for name, target in (("p50_ms", None), ("p99_ms", case.transit)):
            ours, peer = (median([getattr(one, name) for one in column]) for column in zip(*samples, strict=True))
            title = f"  the same: token transit time, {name[:3]}: ms"
            rows.append(Row(name=title, ours=ours, baseline=peer, target=target))
    return rows


def make_first_row(samples: list[tuple[float, float]]) -> Row:
    ours, peer = (median(list(column)) for column in zip(*samples, strict=True))
    return Row(name="added time to first token, p50: ms", ours=ours, baseline=peer, target=FIRST_TOKEN)


if __name__ == "__main__":
    sys.exit(main())
