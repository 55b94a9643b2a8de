"""Metrics of the process, under the standard names of Prometheus clients.

Values that the system does not provide are omitted.
"""

import os
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from antiphon.observe.prometheus import Reading, Registry

_PAGE_BYTES = resource.getpagesize()


def add_process_metrics(registry: Registry) -> None:
    """Register the process metrics. Call it once, early in the life of the process."""
    started = time.time()

    def gauge(name: str, help: str, value: Callable[[], float | None], kind: str = "gauge") -> None:
        registry.gauge(f"process_{name}", help, read=lambda: _to_readings(value), kind=kind, merge_mode="each")

    gauge("cpu_seconds_total", "CPU time used, in seconds.", time.process_time, "counter")
    gauge("resident_memory_bytes", "Resident memory, in bytes.", read_resident_bytes)
    gauge("virtual_memory_bytes", "Virtual memory, in bytes.", lambda: _read_memory(0))
    gauge("start_time_seconds", "Start time of the process, as a Unix time.", lambda: started)
    gauge("open_fds", "Open file descriptors.", _count_open_files)
    gauge("max_fds", "Maximum number of open file descriptors.", lambda: resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def read_resident_bytes() -> float | None:
    return _read_memory(1)


def _to_readings(value: Callable[[], float | None]) -> Iterator[Reading]:
    number = value()
    if number is not None:
        yield (), number


def _read_memory(column: int) -> float | None:
    try:
        return int(Path("/proc/self/statm").read_text().split()[column]) * _PAGE_BYTES
    except FileNotFoundError:
        return None


def _count_open_files() -> float | None:
    try:
        return len(os.listdir("/proc/self/fd"))
    except FileNotFoundError:
        return None
