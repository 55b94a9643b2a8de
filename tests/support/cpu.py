"""CPU time of this process for a piece of code, excluding the garbage of earlier tests.

A full collection scans every live object. In a process that has run a thousand tests this takes longer than many of the
measured functions that trigger it, so existing objects are frozen first (`gc.freeze`). Under line coverage the time is
divided by the overhead that instrumentation may add.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import process_time

from tests.plugins.line_coverage import OVERHEAD

_REFERENCE_SECONDS = 0.002  # time for the loop of 100 000 iterations on an idle reference machine


@dataclass
class CpuTime:
    """CPU seconds of a measured block."""

    seconds: float = 0.0


@contextmanager
def cpu_timer() -> Iterator[CpuTime]:
    """Measure a block; `seconds` is set when the block ends."""
    elapsed = CpuTime()
    gc.freeze()
    started = process_time()
    try:
        yield elapsed
    finally:
        elapsed.seconds = (process_time() - started) / OVERHEAD
        gc.unfreeze()


def measure_cpu_seconds(function: Callable[[], object]) -> float:
    """Return the CPU seconds of one call."""
    with cpu_timer() as elapsed:
        function()
    return elapsed.seconds


def measure_slowdown() -> float:
    """Return the factor by which this machine is currently slower than an idle reference machine, at least 1."""
    return max(1.0, measure_cpu_seconds(_run_reference_loop) / _REFERENCE_SECONDS)


def _run_reference_loop() -> None:
    for _ in range(100_000):
        pass


def measure_min_cpu_seconds(function: Callable[[], object], attempts: int = 3) -> float:
    """Return the minimum over several calls, because a busy machine can make a single call expensive."""
    return min(measure_cpu_seconds(function) for _ in range(attempts))
