"""What the path costs next to smg, the Rust gateway: both in front of one fake engine, in turn; medians, in a table.

Both are started anew for each round. The figure is CPU of the server's whole process tree. Targets bound the ratio;
where one is missed the table says so.
"""

import argparse
import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace

from bench.harness.measure import bytes_per_stream, median, spent
from bench.harness.process_meter import rss_bytes
from bench.harness.servers import Server, antiphon, upstream
from bench.harness.smg import VERSION, install, smg
from bench.harness.table import Row, table
from bench.peer_cases import CHAT, RESPONSES, Effort, Figures, PeerCase, cases, chat_case, first_load, held_load

FULL = Effort(rounds=5, streams=6, requests=150, firsts=300, held=500)
QUICK = Effort(rounds=1, streams=2, requests=40, firsts=100, held=200)
FIRST_TOKEN, IDLE_MIB, STREAM_KB = 0.5, 58.0, 40.0
MIB = 1024 * 1024

Pair = tuple[Figures, Figures]  # ours and the peer's


def main() -> int:
    asked = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    asked.add_argument("--quick", action="store_true", help="less of everything, and noisier")
    asked.add_argument("--check", action="store_true", help="exit with 1 when a target is missed")
    given = asked.parse_args()
    command = install()
    began = time.monotonic()
    with upstream() as engine:
        rows = compared(command, engine, QUICK if given.quick else FULL)
    sys.stdout.write(f"{table(rows, f'smg {VERSION}')}\n\n{time.monotonic() - began:.0f} s\n")
    return 1 if given.check and any(row.over for row in rows) else 0


def compared(command: Path, engine: Server, effort: Effort) -> list[Row]:
    """Each round with servers of its own: what a process costs depends on where its code and memory happen to lie."""
    measured = [*cases(effort), chat_case(effort)]
    samples: list[list[Pair]] = [[] for _ in measured]
    firsts: list[tuple[float, float]] = []
    sizes: list[Row] = []
    for number in range(effort.rounds):
        sys.stderr.write(f"round {number + 1} of {effort.rounds}\n")
        with both(command, engine) as (ours, peer):
            peers = Peers(engine, ours, peer, effort)
            sizes = sizes or peers.sizes()
            for case, taken in zip(measured, samples, strict=True):
                taken.append(peers.pair(case, ours_first=number % 2 == 0))
            firsts.append(peers.firsts())
    rows = [row for case, taken in zip(measured, samples, strict=True) for row in case_rows(case, taken)]
    return [*rows, first_row(firsts), *sizes]


@contextlib.contextmanager
def both(command: Path, engine: Server) -> Iterator[tuple[Server, Server]]:
    with (
        antiphon(engine=f"openai://127.0.0.1:{engine.port}") as ours,
        smg(command, engine, RESPONSES, '{"model":"brief","input":"hi"}') as peer,
    ):
        yield ours, peer


class Peers:
    """Two servers in front of one engine."""

    def __init__(self, engine: Server, ours: Server, peer: Server, effort: Effort) -> None:
        self._engine = engine
        self._ours = ours
        self._peer = peer
        self._effort = effort

    def sizes(self) -> list[Row]:
        """Before all else: memory that was in use once is not given back, and would be found for nothing."""
        ours, peer = (rss_bytes(server.pid) / MIB for server in (self._ours, self._peer))
        idle = Row(name="idle: RSS MiB", ours=ours, beside=peer, target=IDLE_MIB)
        return [idle, self._held()]

    def firsts(self) -> tuple[float, float]:
        return self._added(self._ours, CHAT), self._added(self._peer, RESPONSES)

    def pair(self, case: PeerCase, *, ours_first: bool) -> Pair:
        """One right after the other."""
        if ours_first:
            ours = case.measure(self._ours, ours=True)
            return ours, case.measure(self._peer, ours=False)
        peer = case.measure(self._peer, ours=False)
        return case.measure(self._ours, ours=True), peer

    def _added(self, server: Server, direct: str) -> float:
        """To the first token, beyond what the engine itself needs when it is asked as the server asks it."""
        through = self._first(server, RESPONSES)
        return through - self._first(self._engine, direct)

    def _first(self, server: Server, path: str) -> float:
        load = first_load(self._effort, path)
        done = server is self._ours or path == CHAT
        return spent(server, replace(load, port=server.port, done=done))[1].p50_ms

    def _held(self) -> Row:
        for server in (self._ours, self._peer):
            self._first(server, RESPONSES)
        load = held_load(self._effort)
        ours, peer = (
            bytes_per_stream(server, replace(load, port=server.port)) / 1000 for server in (self._ours, self._peer)
        )
        return Row(name=f"{self._effort.held} live streams: RSS kB/stream", ours=ours, beside=peer, target=STREAM_KB)


def case_rows(case: PeerCase, taken: list[Pair]) -> list[Row]:
    ours, peer = (median([figures.cpu for figures in column]) for column in zip(*taken, strict=True))
    rows = [Row(name=case.name, ours=ours, yardstick=peer, target=case.target)]
    if case.transit is not None:
        for name, target in (("p50_ms", None), ("p99_ms", case.transit)):
            ours, peer = (median([getattr(one, name) for one in column]) for column in zip(*taken, strict=True))
            title = f"  its tokens' way through, {name[:3]}: ms"
            rows.append(Row(name=title, ours=ours, yardstick=peer, target=target))
    return rows


def first_row(taken: list[tuple[float, float]]) -> Row:
    ours, peer = (median(list(column)) for column in zip(*taken, strict=True))
    return Row(name="time to the first token that is added, p50: ms", ours=ours, yardstick=peer, target=FIRST_TOKEN)


if __name__ == "__main__":
    sys.exit(main())
