"""Resources of another process, from /proc: memory growth, open files, threads, children."""

import os
from pathlib import Path

from bench.harness.process_meter import list_process_tree


class MemoryMeter:
    """Memory of one process relative to its current state, without pages of files.

    A kernel that reclaims idle memory drops such pages, and they return with the next use: no request caused them.
    """

    def __init__(self, pid: int) -> None:
        self._status = Path(f"/proc/{pid}/status")
        Path(f"/proc/{pid}/clear_refs").write_text("5")  # resets the peak (VmHWM) to the current RSS, see proc(5)
        self._before = self._read("VmRSS") - self._read("RssFile")

    def measure_peak_growth(self) -> int:
        """Return the peak growth since the start, in bytes."""
        return max(0, self._read("VmHWM") - self._read("RssFile") - self._before)

    def _read(self, name: str) -> int:
        line = next(line for line in self._status.read_text().splitlines() if line.startswith(f"{name}:"))
        return int(line.split()[1]) * 1024


def count_open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def count_threads(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


def count_children(pid: int) -> int:
    return len(list_process_tree(pid)) - 1
