"""Drills: forged prompts, hostile engines and MCP servers, kills, disconnects, load, replays, paused servers, failing
stores.

Prints one table; any violation sets exit code 1.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Awaitable, Callable

from drills.bombs import box as bombs_drill
from drills.bombs import distinct as bombs_distinct
from drills.bombs import failures as bombs_failures
from drills.bombs.box import bombs
from drills.bombs.distinct import distinct
from drills.bombs.failures import failures
from drills.bombs.twins import twins
from drills.disk.drill import disk
from drills.egress.drill import egress
from drills.engines.pool import choose_kill_tokens, pool
from drills.engines.upstream import upstream
from drills.forgery.drill import forgery
from drills.fuzz import drill as fuzz_drill
from drills.fuzz.drill import fuzz
from drills.harness.findings import Findings, render_table
from drills.load import noisy as noisy_drill
from drills.load import overload as overload_drill
from drills.load.noisy import noisy
from drills.load.overload import overload
from drills.load.websockets import FULL, QUICK, sockets
from drills.replicas import drill as replicas_drill
from drills.replicas.drill import replicas
from drills.state.disconnects import disconnects
from drills.state.idempotency import idempotency
from drills.state.kill9 import kill9, make_plans
from drills.state.nth_failure import nth_failure
from drills.state.pairs import pairs
from drills.state.replays import replays
from drills.state.workers import workers
from drills.state.zombie import zombie
from drills.tenants.canaries import canaries
from drills.tenants.drill import tenants
from drills.tool_loop.credentials import secret
from drills.tool_loop.hostile_mcp import mcp
from drills.tool_loop.kill9 import loop, make_points
from drills.tool_loop.zombie import loop_zombie, make_pause_points

Drill = Callable[[Findings], Awaitable[None]]


def build_drills(quick: bool) -> dict[str, Drill]:
    """Return the drills by name, in execution order: those that find the most in the least time come first."""
    return {
        "tenants-sqlite": lambda found: tenants("sqlite", 7 if quick else 1, found),
        "tenants-postgres": lambda found: tenants("postgres", 11 if quick else 1, found),
        "fuzz-sqlite": lambda found: fuzz("sqlite", fuzz_drill.QUICK if quick else fuzz_drill.FULL, found),
        "fuzz-postgres": lambda found: fuzz("postgres", fuzz_drill.QUICK if quick else fuzz_drill.SHORT, found),
        "bombs": lambda found: bombs(bombs_drill.QUICK if quick else bombs_drill.FULL, found),
        "bombs-twins": lambda found: twins(5 if quick else 1, found),
        "bombs-failures": lambda found: failures(bombs_failures.QUICK if quick else bombs_failures.FULL, found),
        "bombs-schemas": lambda found: distinct(bombs_distinct.QUICK if quick else bombs_distinct.FULL, found),
        "egress": lambda found: egress(7 if quick else 1, found),
        "secret-sqlite": lambda found: secret("sqlite", found, 5 if quick else 1),
        "secret-postgres": lambda found: secret("postgres", found, 5 if quick else 1),
        "canaries": lambda found: canaries(1 if quick else 10, found),
        "forgery": lambda found: forgery(2_000 if quick else 20_000, 100 if quick else 10, found),
        "upstream": lambda found: upstream(2_000 if quick else 20_000, found),
        "mcp": lambda found: mcp(2_000 if quick else 10_000, found),
        "nth-failure": lambda found: nth_failure(7 if quick else 1, found),
        "replays-sqlite": lambda found: replays("sqlite", 50 if quick else 200, found),
        "replays-postgres": lambda found: replays("postgres", 25 if quick else 200, found),
        "pairs-postgres": lambda found: pairs("postgres", 2 if quick else 20, found),
        "pairs-redis": lambda found: pairs("postgres with redis", 2 if quick else 20, found),
        "idempotency-sqlite": lambda found: idempotency("sqlite", 12 if quick else 60, found),
        "idempotency-postgres": lambda found: idempotency("postgres", 12 if quick else 60, found),
        "zombie-sqlite": lambda found: zombie("sqlite", 2 if quick else 25, found),
        "zombie-postgres": lambda found: zombie("postgres", 2 if quick else 25, found),
        "zombie-redis": lambda found: zombie("postgres with redis", 2 if quick else 10, found),
        "loop-sqlite": lambda found: loop("sqlite", make_points(9 if quick else 120), found),
        "loop-postgres": lambda found: loop("postgres", make_points(6 if quick else 70), found),
        "loop-zombie": lambda found: loop_zombie("postgres", make_pause_points(4 if quick else 40), found),
        "workers-sqlite": lambda found: workers("sqlite", 8 if quick else 60, found),
        "workers-postgres": lambda found: workers("postgres", 4 if quick else 40, found),
        "replicas": lambda found: replicas(replicas_drill.QUICK if quick else replicas_drill.FULL, found),
        "overload": lambda found: overload(overload_drill.QUICK if quick else overload_drill.FULL, found),
        "noisy": lambda found: noisy(noisy_drill.QUICK if quick else noisy_drill.FULL, found),
        "pool": lambda found: pool(choose_kill_tokens(2 if quick else 25), found),
        "disk": lambda found: disk(12 if quick else 1, found),
        "disconnects": lambda found: disconnects(200 if quick else 2000, found),
        "sockets": lambda found: sockets(QUICK if quick else FULL, found),
        "kill9-sqlite": lambda found: kill9("sqlite", make_plans(12 if quick else 200), found),
        "kill9-postgres": lambda found: kill9("postgres", make_plans(12 if quick else 200), found),
        "kill9-redis": lambda found: kill9("postgres with redis", make_plans(6 if quick else 50), found),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m drills", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="run a smaller version of each drill: about ten minutes")
    parser.add_argument("--check", action="store_true", help="also exit with 1 when a figure misses its target")
    parser.add_argument(
        "name", nargs="*", help=f"names or prefixes of drills to run: {', '.join(build_drills(True))}; default: all"
    )
    arguments = parser.parse_args()
    available = build_drills(arguments.quick)
    chosen = [name for name in available if not arguments.name or any(name.startswith(one) for one in arguments.name)]
    if not chosen:
        parser.error(f"unknown drill: {arguments.name}")
    results = [_run_drill(name, available[name]) for name in chosen]
    sys.stdout.write(f"{render_table(results)}\n")
    missed = arguments.check and any(figure.missed for one in results for figure in one.figures)
    return 1 if missed or any(one.violations for one in results) else 0


def _run_drill(name: str, drill: Drill) -> Findings:
    findings = Findings(name)
    began = time.monotonic()
    findings.print_line("…")
    asyncio.run(_await_drill(drill, findings))
    findings.seconds = time.monotonic() - began
    return findings


async def _await_drill(drill: Drill, findings: Findings) -> None:
    await drill(findings)


if __name__ == "__main__":
    sys.exit(main())
