"""What the path costs next to smg, the Rust gateway: both in front of one fake engine, in turn; medians, in a table.

The figure is CPU of the server's whole process tree. Targets bound the ratio; where one is missed the table says so.
"""

import argparse
import contextlib
import http.client
import sys
import time

from msgspec.structs import replace

from bench.measure import bytes_per_stream, median, spent
from bench.meter import rss_bytes
from bench.peer_cases import CHAT, RESPONSES, Effort, Figures, PeerCase, cases, chat_case, first_load, held_load
from bench.servers import Server, antiphon, upstream
from bench.smg import VERSION, install, smg
from bench.table import Row, table

FULL = Effort(rounds=3, streams=6, requests=150, firsts=300, held=500)
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
    with contextlib.ExitStack() as running:
        engine = running.enter_context(upstream())
        ours = running.enter_context(antiphon(engine=f"openai://127.0.0.1:{engine.port}"))
        peer = running.enter_context(smg(command, engine, RESPONSES, '{"model":"brief","input":"hi"}'))
        rows = Peers(engine, ours, peer, QUICK if given.quick else FULL).rows()
    sys.stdout.write(f"{table(rows, f'smg {VERSION}')}\n\n{time.monotonic() - began:.0f} s\n")
    return 1 if given.check and any(row.over for row in rows) else 0


class Peers:
    """Two servers in front of one engine."""

    def __init__(self, engine: Server, ours: Server, peer: Server, effort: Effort) -> None:
        self._engine = engine
        self._ours = ours
        self._peer = peer
        self._effort = effort

    def rows(self) -> list[Row]:
        idle = Row(
            name="idle: RSS MiB",
            ours=rss_bytes(self._ours.pid) / MIB,
            beside=rss_bytes(self._peer.pid) / MIB,
            target=IDLE_MIB,
        )
        memory = self._memory()
        measured = [*cases(self._effort), *self._chat()]
        samples: list[list[Pair]] = [[] for _ in measured]
        firsts: list[tuple[float, float]] = []
        for number in range(self._effort.rounds):
            sys.stderr.write(f"round {number + 1} of {self._effort.rounds}\n")
            for case, taken in zip(measured, samples, strict=True):
                taken.append(self._pair(case, ours_first=number % 2 == 0))
            firsts.append((self._added(self._ours, CHAT), self._added(self._peer, RESPONSES)))
        rows = [row for case, taken in zip(measured, samples, strict=True) for row in case_rows(case, taken)]
        return [*rows, first_row(firsts), idle, memory]

    def _pair(self, case: PeerCase, *, ours_first: bool) -> Pair:
        """One right after the other."""
        if ours_first:
            ours = case.measure(self._ours, ours=True)
            return ours, case.measure(self._peer, ours=False)
        peer = case.measure(self._peer, ours=False)
        return case.measure(self._ours, ours=True), peer

    def _chat(self) -> list[PeerCase]:
        if _exists(self._ours, CHAT):
            return [chat_case(self._effort)]
        sys.stderr.write(f"There is no {CHAT} here; that case is left out.\n")
        return []

    def _added(self, server: Server, direct: str) -> float:
        """To the first token, beyond what the engine itself needs when it is asked as the server asks it."""
        through = self._first(server, RESPONSES)
        return through - self._first(self._engine, direct)

    def _first(self, server: Server, path: str) -> float:
        load = first_load(self._effort, path)
        done = server is self._ours or path == CHAT
        return spent(server, replace(load, port=server.port, done=done))[1].p50_ms

    def _memory(self) -> Row:
        """Before all else: memory that was in use once is not given back, and would be found for nothing."""
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


def _exists(server: Server, path: str) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    with contextlib.closing(connection):
        connection.request("POST", path, b"{}", {"Content-Type": "application/json"})
        return connection.getresponse().status != http.HTTPStatus.NOT_FOUND


if __name__ == "__main__":
    sys.exit(main())
