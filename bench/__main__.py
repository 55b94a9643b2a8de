"""What the path costs: CPU of the server's process tree per token and per request, ours and a bare ASGI app that
sends the same bytes in turn; medians, in one table.

One by one or eight at a time, the tokens of a burst are there in the same tick of the event loop: ours leave in one
write, the bare app sends each piece by itself. In the rows «per loop tick» both go around the loop after each token,
as when a model is slower than the server: what is left there is the path, the loop and one system call a token."""

import argparse
import sys
import time

import msgspec

from bench.cases import TARGETS, TOKENS, Case, Effort, Servers, cases, held, started
from bench.conversation import conversation_table
from bench.formats import formats, formats_table, making
from bench.harmony import harmony
from bench.harness.measure import bytes_per_stream, cpu_per_request_ms, cpu_per_token_us, median
from bench.harness.servers import Server
from bench.harness.table import Row, table
from bench.state import State
from bench.storage import full_store
from bench.websockets import Sockets

MIB = 1024 * 1024
FULL = Effort(rounds=5, streams=128, requests=3_200, held=1_000, stored=100_000)
QUICK = Effort(rounds=3, streams=16, requests=480, held=256, stored=10_000)


def main() -> int:
    asked = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    asked.add_argument("--quick", action="store_true", help="less of everything, and noisier")
    asked.add_argument("--check", action="store_true", help="exit with 1 when a target is missed")
    given = asked.parse_args()
    effort = QUICK if given.quick else FULL
    began = time.monotonic()
    with started() as servers:
        rows = _rows(servers, effort)
    rows += full_store(effort)
    rows += [making(), *harmony()]
    read = formats()
    said = conversation_table(4 * effort.rounds)
    sys.stdout.write(f"{table(rows)}\n\n{said}\n\n{formats_table(read)}\n\n{time.monotonic() - began:.0f} s\n")
    return 1 if given.check and (any(row.over for row in rows) or any(row.over for row in read)) else 0


def _rows(servers: Servers, effort: Effort) -> list[Row]:
    measured = cases(servers, effort)
    samples: list[list[tuple[float, float]]] = [[] for _ in measured]
    state, sockets = State(servers, effort), Sockets(servers, effort)
    for number in range(effort.rounds):
        sys.stderr.write(f"round {number + 1} of {effort.rounds}\n")
        for case, taken in zip(measured, samples, strict=True):
            taken.append(_sample(case))
        state.sample()
        sockets.sample()
    rows = [_row(case, taken) for case, taken in zip(measured, samples, strict=True)]
    idle = Row(name="idle: RSS MiB", ours=servers.idle_bytes / MIB, target=TARGETS["idle"])
    per_stream = bytes_per_stream(servers.slow, held(servers, effort)) / 1000
    live = Row(name=f"{effort.held} live streams: RSS kB/stream", ours=per_stream)
    return [*rows, idle, live, *state.rows(), *sockets.rows()]


def _sample(case: Case) -> tuple[float, float]:
    """Ours and the yardstick, one right after the other."""
    return _cost(case, case.ours, case.load.path), _cost(case, case.raw, case.raw_path)


def _cost(case: Case, server: Server, path: str) -> float:
    load = msgspec.structs.replace(case.load, port=server.port, path=path)
    if case.streams:
        return cpu_per_token_us(server, load, load.connections * load.requests * TOKENS)
    return cpu_per_request_ms(server, load)


def _row(case: Case, taken: list[tuple[float, float]]) -> Row:
    ours, yardstick = (median(list(column)) for column in zip(*taken, strict=True))
    return Row(name=case.name, ours=ours, yardstick=yardstick, target=case.target)


if __name__ == "__main__":
    sys.exit(main())
