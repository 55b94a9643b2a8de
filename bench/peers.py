"""Measures Antiphon beside other gateways, smg and agentic-api, all in front of one fake engine. Prints one table.

The gateways take turns in every round and are restarted for each. The figures are medians over the rounds; the ratio is
that of Antiphon to smg, and the table shows which goals are missed. The cost is the CPU time of the gateway's whole
process tree.
"""

import argparse
import contextlib
import statistics
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from bench.continuation import ContinuationCase
from bench.harness.gateways import GATEWAYS, OURS, VERSIONS, collect_figure, install, run_gateway
from bench.harness.servers import ENGINE_CORE, run_upstream
from bench.harness.table import Row, render_markdown, render_table
from bench.peer_cases import Case, Figures, Line, make_cases
from bench.scaling import measure_scaling

ROUNDS, QUICK_ROUNDS = 5, 1
SCALING = "scaling"

Samples = dict[str, list[Figures]]  # by gateway


def main() -> int:
    arguments = _parse_arguments()
    cases = select_cases(arguments.rows)
    gateways = [name for name in GATEWAYS if name == OURS or name in arguments.peers]
    for name in gateways[1:]:
        install(name)
    start = time.monotonic()
    rounds = arguments.rounds or (QUICK_ROUNDS if arguments.quick else ROUNDS)
    rows = compare(cases, gateways, rounds) if cases else []
    if arguments.rows is None or SCALING in arguments.rows:
        rows += measure_scaling(gateways, rounds)
    columns = [OURS, *(f"{name} {VERSIONS[name]}" for name in gateways[1:])]
    sys.stdout.write(f"{render_table(rows, columns)}\n\n{time.monotonic() - start:.0f} s\n")
    if arguments.markdown:
        Path(arguments.markdown).write_text(render_markdown(rows, columns))
    return 1 if arguments.check and any(row.misses_goal for row in rows) else 0


def _parse_arguments() -> argparse.Namespace:
    names = [*(case.row for case in list_cases()), SCALING]
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    add = parser.add_argument
    add("--rows", type=_split, help=f"measure only these, separated by commas: {', '.join(names)}")
    add("--peers", type=_split, default=GATEWAYS, help="gateways to compare with, default: all")
    add("--rounds", type=int, help=f"default: {ROUNDS}")
    add("--quick", action="store_true", help="one round; noisier")
    add("--check", action="store_true", help="exit with 1 if a goal is missed")
    add("--markdown", metavar="FILE", help="also write the table for docs/benchmarks.md")
    return parser.parse_args()


def _split(text: str) -> list[str]:
    return text.split(",")


def select_cases(names: Sequence[str] | None) -> list[Case]:
    cases = list_cases()
    unknown = set(names or ()) - {case.row for case in cases} - {SCALING}
    if unknown:
        sys.exit(f"There is no row {', '.join(sorted(unknown))}; --help lists the rows.")
    return [case for case in cases if names is None or case.row in names]


def list_cases() -> list[Case]:
    return [*make_cases(), ContinuationCase()]


def compare(cases: Sequence[Case], gateways: Sequence[str], rounds: int) -> list[Row]:
    """Measure all cases, with new servers for each round: the cost of a process depends on the addresses of its code
    and memory.
    """
    samples: list[Samples] = [{name: [] for name in gateways} for _ in cases]
    for number in range(rounds):
        order = [*gateways[number % len(gateways) :], *gateways[: number % len(gateways)]]
        with contextlib.ExitStack() as stack:
            engine = stack.enter_context(run_upstream(ENGINE_CORE))
            servers = {name: stack.enter_context(run_gateway(name, engine)) for name in order}
            for case, taken in zip(cases, samples, strict=True):
                sys.stderr.write(f"round {number + 1} of {rounds}: {case.row}\n")
                for name in order:
                    measure = partial(case.measure, name, servers[name], number)
                    taken[name] += collect_figure(name, case.row, measure)
    return [_make_row(case, line, taken) for case, taken in zip(cases, samples, strict=True) for line in case.lines]


def _make_row(case: Case, line: Line, samples: Samples) -> Row:
    figures = [statistics.median(sample[line.key] for sample in taken) if taken else None for taken in samples.values()]
    return Row(group=case.row, name=line.title, figures=figures, goal=line.goal, is_ratio=line.is_ratio)


if __name__ == "__main__":
    sys.exit(main())
