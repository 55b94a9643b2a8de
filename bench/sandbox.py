"""Measures the sandbox at each level that this host allows: container starts, calls, a first plot, an interrupt, and
the memory of idle containers. Prints one table of medians.

Wall times depend on what else the machine does, so the smallest values are printed too.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from statistics import median

from antiphon.errors import SandboxUnavailable
from antiphon.sandbox.base import ContainerLimits, PrintedText
from antiphon.sandbox.local import LocalSandbox
from antiphon.sandbox.worker.processes import list_tree
from tests.support.sandboxes import LEVELS, PACKAGES_PYTHON, find_processes, find_python, run_code, run_sandbox

LIMITS = ContainerLimits()
PLOT = "import matplotlib.pyplot as plt\nplt.plot([1, 2, 3])\nNone"
GOALS = {
    "namespaces": {"container ready ms": 40.0, "first plot ms": 250.0, "interrupt ms": 50.0, "idle container MB": 20.0},
    "landlock": {"container ready ms": 30.0, "first plot ms": 250.0, "interrupt ms": 50.0, "idle container MB": 20.0},
    "gvisor": {"container ready ms": 600.0, "interrupt ms": 50.0},
}


async def _time(action: Callable[[], Awaitable[object]]) -> float:
    began = time.perf_counter()
    await action()
    return (time.perf_counter() - began) * 1000


async def _time_interrupt(sandbox: LocalSandbox) -> float:
    """Return the milliseconds from an interrupt to the end of a busy loop."""
    began = 0.0
    async for event in sandbox.run("c0", "print(1)\nwhile True: pass", 30.0):
        if isinstance(event, PrintedText) and not began:
            began = time.perf_counter()
            await sandbox.interrupt("c0")
    return (time.perf_counter() - began) * 1000


def _measure_private(sandbox: LocalSandbox) -> float:
    """Return the private memory of all processes of the sandbox except itself and its zygote, in megabytes."""
    total = 0
    for pid in list_tree(find_processes(sandbox.folder)[0])[2:]:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        total += sum(int(line.split()[1]) for line in lines if line.startswith(("Private_Clean", "Private_Dirty")))
    return total / 1000


async def measure(sandbox: LocalSandbox, count: int, has_plots: bool) -> dict[str, list[float]]:
    """Return samples by name. All containers run at the same time in the end."""
    figures: dict[str, list[float]] = {"container ready ms": []}
    for number in range(count):
        figures["container ready ms"].append(await _time(partial(sandbox.start, f"c{number}", LIMITS)))
    figures["idle container MB"] = [await asyncio.to_thread(_measure_private, sandbox) / count]
    figures["empty call ms"] = [await _time(lambda: run_code(sandbox, "None", container="c0")) for _ in range(50)]
    if has_plots:
        plots = [f"c{number}" for number in range(1, min(count, 11))]
        figures["first plot ms"] = [await _time(partial(run_code, sandbox, PLOT, container=name)) for name in plots]
    figures["interrupt ms"] = [await _time_interrupt(sandbox) for _ in range(10)]
    return figures


async def run(count: int) -> int:
    python = str(PACKAGES_PYTHON) if PACKAGES_PYTHON.exists() else find_python()
    missed = 0
    for level in LEVELS:
        async with run_sandbox(level, python, max_containers=count) as sandbox:
            try:
                status = await sandbox.status()
            except SandboxUnavailable as error:
                print(f"{level}: not available: {error}")
                continue
            figures = await measure(sandbox, count, "matplotlib" in status.packages)
        print(f"{level}, {count} containers, Python {status.python}, {', '.join(status.packages) or 'no packages'}")
        for name, samples in figures.items():
            goal = GOALS[level].get(name)
            missed += goal is not None and median(samples) > goal
            print(f"  {name:20} p50 {median(samples):8.1f}  min {min(samples):8.1f}  goal {goal if goal else '–'}")
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.sandbox", description=__doc__)
    parser.add_argument("--containers", type=int, default=100)
    parser.add_argument("--check", action="store_true", help="exit with 1 if a goal is missed")
    arguments = parser.parse_args()
    missed = asyncio.run(run(arguments.containers))
    return 1 if arguments.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
