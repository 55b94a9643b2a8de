"""Measures the overhead of the server: CPU time of its process tree per token and per request, and in turn that of a
bare ASGI application that sends the same bytes. Prints one table of medians.

In the rows for tokens one by one and eight at a time, the tokens of a burst are available in the same iteration of the
event loop: Antiphon sends them in one write, the bare application sends each piece separately. In the rows «per loop
tick» both run the event loop after each token, as with a model that is slower than the server: the cost consists of the
request path, the event loop and one system call per token.
"""

import argparse
import sys
import time
from statistics import median

from bench.cases import Case, Effort, Servers, make_cases, run_servers
from bench.conversation import render_conversation_table
from bench.formats import measure_formats, render_formats_table
from bench.harmony import measure_harmony
from bench.harness.servers import LOAD_CORE, pin
from bench.harness.table import Row, render_table
from bench.kept_streams import measure_kept_streams
from bench.storage import measure_full_store, measure_stored_size

FULL = Effort(rounds=5, streams=128, requests=3_200, stored=100_000)
QUICK = Effort(rounds=3, streams=16, requests=480, stored=10_000)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer measurements; noisier")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a goal is missed")
    arguments = parser.parse_args()
    effort = QUICK if arguments.quick else FULL
    pin(LOAD_CORE)
    start = time.monotonic()
    with run_servers() as servers:
        rows = _measure_rows(servers, effort)
    rows += [*measure_full_store(effort.stored), *measure_stored_size(), *measure_kept_streams(), *measure_harmony()]
    format_costs = measure_formats()
    conversations = render_conversation_table(4 * effort.rounds)
    sys.stdout.write(
        f"{render_table(rows)}\n\n{conversations}\n\n{render_formats_table(format_costs)}\n\n"
        f"{time.monotonic() - start:.0f} s\n"
    )
    missed = [*(row.misses_goal for row in rows), *(costs.misses_goal for costs in format_costs)]
    return 1 if arguments.check and any(missed) else 0


def _measure_rows(servers: Servers, effort: Effort) -> list[Row]:
    cases = make_cases(servers, effort)
    samples: list[list[tuple[float, float]]] = [[] for _ in cases]
    for number in range(effort.rounds):
        sys.stderr.write(f"round {number + 1} of {effort.rounds}\n")
        for case, taken in zip(cases, samples, strict=True):
            taken.append(case.measure())
    return [_make_row(case, taken) for case, taken in zip(cases, samples, strict=True)]


def _make_row(case: Case, samples: list[tuple[float, float]]) -> Row:
    figures = [median(column) for column in zip(*samples, strict=True)]
    return Row(name=case.name, figures=figures, goal=case.target)


if __name__ == "__main__":
    sys.exit(main())
