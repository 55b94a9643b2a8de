"""Drills: forged prompts, hostile engines and MCP servers, kills, disconnects, load, replays, paused servers, failing
stores.

Prints one table. Any violation, and any figure beyond its limit, sets exit code 1.
"""

import argparse
import sys
from pathlib import Path

from drills.harness.findings import Findings, render_table
from drills.planted.runner import check_planted_faults
from drills.registry import Size, build_drills, run_drill
from drills.report import write_report


def main() -> int:
    parser = _build_parser()
    arguments = parser.parse_args()
    size: Size = "quick" if arguments.quick else "full"
    available = build_drills(size)
    chosen = [name for name in available if not arguments.name or any(name.startswith(one) for one in arguments.name)]
    if not chosen:
        parser.error(f"unknown drill: {arguments.name}")
    if arguments.planted:
        return check_planted_faults(chosen)
    results: list[Findings] = []
    for name in chosen:
        results.append(run_drill(name, available[name]))
        if arguments.report is not None:
            write_report(arguments.report, size, results)
    sys.stdout.write(f"{render_table(results)}\n")
    return 1 if any(one.violations for one in results) else 0


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m drills", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="run a smaller version of each drill: twenty minutes")
    parser.add_argument(
        "--planted",
        action="store_true",
        help="break one rule of the server for each drill, and exit with 1 if a drill does not find it",
    )
    parser.add_argument(
        "--report",
        type=Path,
        metavar="FILE",
        help="write the results to the section of this page, such as docs/drills.md, after each drill; "
        "results of other drills at the same commit are kept",
    )
    parser.add_argument(
        "name", nargs="*", help=f"names or prefixes of drills to run: {', '.join(build_drills('quick'))}; default: all"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
