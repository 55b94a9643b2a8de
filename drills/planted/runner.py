"""Runs the smallest version of a drill in a process of its own, in which and in whose servers a fault is planted."""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from drills.planted.faults import PlantedFault, find_faults
from drills.planted.import_hook import VARIABLE
from drills.registry import load_drill, run_drill

ROOT = Path(__file__).parents[2]
TIMEOUT_SECONDS = 280.0
_SEARCH_PATH = (ROOT / "drills/planted/startup", ROOT, ROOT / "src")


class PlantedRun(Struct, frozen=True):
    drill: str
    fault: PlantedFault
    output: str
    seconds: float

    @property
    def violations(self) -> list[str]:
        return [line for line in self.output.splitlines() if line.startswith(f"{self.drill}: VIOLATION: ")]

    @property
    def is_found(self) -> bool:
        """Whether a violation is the one that the fault causes, and not just any failure."""
        return any(self.fault.causes(line) for line in self.violations)


def check_planted_faults(drills: Sequence[str]) -> int:
    """Run these drills with each of their faults and print the results; returns the exit code."""
    missed = 0
    for drill, fault in [(name, fault) for name in drills for fault in find_faults(name)]:
        run = run_with_fault(drill, fault)
        missed += not run.is_found
        sys.stdout.write(
            f"{drill:22}{'found' if run.is_found else 'MISSED':8}{run.seconds:4.0f} s  {fault.name}: "
            f"{len(run.violations)} violations\n{'' if run.is_found else run.output}"
        )
        sys.stdout.flush()
    return 1 if missed else 0


def run_with_fault(drill: str, fault: PlantedFault) -> PlantedRun:
    began = time.monotonic()
    path = os.pathsep.join([*map(str, _SEARCH_PATH), *filter(None, [os.environ.get("PYTHONPATH")])])
    result = subprocess.run(
        [sys.executable, "-m", "drills.planted.runner", drill],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path, VARIABLE: fault.name},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    return PlantedRun(drill, fault, result.stdout, time.monotonic() - began)


if __name__ == "__main__":
    run_drill(sys.argv[1], load_drill(sys.argv[1], "smallest"))
