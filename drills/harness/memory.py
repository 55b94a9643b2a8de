"""What another process needs, from /proc: memory now and at most, open files, threads, children."""

import os
from pathlib import Path

from bench.harness.process_meter import tree


class Memory:
    """Of one process, from now on."""

    def __init__(self, pid: int) -> None:
        self._status = Path(f"/proc/{pid}/status")
        Path(f"/proc/{pid}/clear_refs").write_text("5")  # its highest is what it has now
        self._before = self._read("VmRSS")

    def grown(self) -> int:
        """Bytes, at most, above what there was."""
        return max(0, self._read("VmHWM") - self._before)

    def _read(self, name: str) -> int:
        line = next(line for line in self._status.read_text().splitlines() if line.startswith(f"{name}:"))
        return int(line.split()[1]) * 1024


def open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def threads(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


def children(pid: int) -> int:
    return len(tree(pid)) - 1
