"""CPU time and memory of a process and all that it started, from /proc; Linux only."""

import time
from pathlib import Path

_SCHEDULER_CLOCK = 2  # linux/posix-timers.h CPUCLOCK_SCHED: nanoseconds, of threads that have ended too


def cpu_ns(pid: int) -> int:
    return sum(time.clock_gettime_ns((~each << 3) | _SCHEDULER_CLOCK) for each in tree(pid))


def rss_bytes(pid: int) -> int:
    return sum(_rss(each) for each in tree(pid))


def tree(pid: int) -> list[int]:
    found = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += tree(int(child))
    return found


def _rss(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0
