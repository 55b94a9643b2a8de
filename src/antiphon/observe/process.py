"""The process itself, under the names that every Prometheus client uses. What the system does not tell is left out."""

import os
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from antiphon.observe.series import Reading, Registry

_PAGE = resource.getpagesize()


def add_process(registry: Registry) -> None:
    """To be called once, early in the life of the process."""
    started = time.time()

    def gauge(name: str, help: str, value: Callable[[], float | None], kind: str = "gauge") -> None:
        registry.gauge(f"process_{name}", help, read=lambda: _reading(value), kind=kind, joining="each")

    gauge("cpu_seconds_total", "CPU time used, in seconds.", time.process_time, "counter")
    gauge("resident_memory_bytes", "Resident memory, in bytes.", resident_bytes)
    gauge("virtual_memory_bytes", "Virtual memory, in bytes.", lambda: _memory(0))
    gauge("start_time_seconds", "When it started, as a Unix time.", lambda: started)
    gauge("open_fds", "Open file descriptors.", _open_files)
    gauge("max_fds", "Most file descriptors that may be open.", lambda: resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def resident_bytes() -> float | None:
    return _memory(1)


def _reading(value: Callable[[], float | None]) -> Iterator[Reading]:
    number = value()
    if number is not None:
        yield (), number


def _memory(column: int) -> float | None:
    try:
        return int(Path("/proc/self/statm").read_text().split()[column]) * _PAGE
    except FileNotFoundError:
        return None


def _open_files() -> float | None:
    try:
        return len(os.listdir("/proc/self/fd"))
    except FileNotFoundError:
        return None
