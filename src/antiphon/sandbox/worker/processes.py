"""The processes of a container, from /proc: their memory, CPU time, and files that have no name any more.

They are killed by handles, because a number may belong to another process by then.
"""

import os
import resource
import signal
import stat
from collections.abc import Collection, Iterable
from contextlib import suppress

_PAGE = resource.getpagesize()
_TICKS = os.sysconf("SC_CLK_TCK")
NICE = 15  # of all processes in containers: the server goes first. With 19, killed ones take seconds to end under load
_MAX_PROCESSES = 4096
_MEMORY_FILE = "/memfd:"


def list_tree(root: int) -> list[int]:
    """Return a process and its descendants. Orphans are children of the guard, so they are among them."""
    found = [root]
    for pid in found:
        with suppress(OSError):
            for task in os.listdir(f"/proc/{pid}/task"):
                found += [int(child) for child in _read(f"/proc/{pid}/task/{task}/children").split()]
        if len(found) > _MAX_PROCESSES:
            break
    return found


def kill_descendants(root: int, spared: Collection[int]) -> bool:
    """Kill a process and its descendants except for some. Returns whether there were any."""
    handles: dict[int, int] = {}
    for pid in list_tree(root):
        if pid not in spared:
            with suppress(OSError):
                handles[pid] = os.pidfd_open(pid)
    tree = {*list_tree(root)}
    for pid, handle in handles.items():
        if pid in tree:  # so the handle is that of a process in the tree
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        os.close(handle)
    return bool(handles)


def lower_priority(pids: list[int]) -> None:
    """Let other sessions go first, where the kernel divides CPU time among sessions and not among processes.

    Only root may do so more often than ten times a second: others succeed with a later call.
    """
    for pid in pids:
        with suppress(OSError), open(f"/proc/{pid}/autogroup", "w") as file:
            file.write(str(NICE))


def _read(path: str) -> str:
    with suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        return file.read()
    return ""


def measure_memory(pids: list[int], limit: int) -> int:
    """Return the memory of processes in bytes. Pages that they share are counted once if the sum exceeds the limit,
    because this takes longer.
    """
    resident = sum(int(text.split()[1]) for pid in pids if (text := _read(f"/proc/{pid}/statm"))) * _PAGE
    return resident if resident <= limit else sum(map(_measure_share, pids))


def measure_gvisor(pids: list[int]) -> int:
    """Return the memory of the processes of a container in gVisor: that of code is a file, of which they map parts."""
    private = [text.split() for pid in pids if (text := _read(f"/proc/{pid}/statm"))]
    return sum(int(one[1]) - int(one[2]) for one in private) * _PAGE + sum(_find_unlinked(pids, is_memory=True))


def _measure_share(pid: int) -> int:
    for line in _read(f"/proc/{pid}/smaps_rollup").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return int((_read(f"/proc/{pid}/statm") or "0 0").split()[1]) * _PAGE


def measure_cpu(pids: list[int]) -> float:
    """Return the CPU time of processes, and of those that they have waited for, in seconds."""
    ticks = 0
    for pid in pids:
        if fields := _read(f"/proc/{pid}/stat").rpartition(")")[2].split():
            ticks += sum(map(int, fields[11:15]))
    return ticks / _TICKS


def measure_delay(pids: list[int]) -> float:
    """Return the time in seconds that the threads of processes were ready and waited for a CPU."""
    nanoseconds = 0
    for pid in pids:
        with suppress(OSError):
            for task in os.listdir(f"/proc/{pid}/task"):
                nanoseconds += int((_read(f"/proc/{pid}/task/{task}/schedstat") or "0 0").split()[1])
    return nanoseconds / 1e9


def measure_unlinked(pids: list[int]) -> int:
    """Return the bytes of deleted files that processes hold open."""
    return sum(_find_unlinked(pids, is_memory=False))


def _find_unlinked(pids: list[int], is_memory: bool) -> Iterable[int]:
    """Return the sizes of files without a name, either on a disk or in memory alone (memfd_create)."""
    found: dict[tuple[int, int], int] = {}
    for pid in pids:
        with suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/fd"):
                with suppress(OSError):
                    path = f"/proc/{pid}/fd/{name}"
                    status = os.stat(path)
                    is_unlinked = stat.S_ISREG(status.st_mode) and status.st_nlink == 0
                    if is_unlinked and os.readlink(path).startswith(_MEMORY_FILE) == is_memory:
                        found[status.st_dev, status.st_ino] = status.st_blocks * 512
    return found.values()
