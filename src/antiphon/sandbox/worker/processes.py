"""The processes of a container, from /proc: their memory, CPU time, and files that have no name any more.

They are killed by handles, because a number may belong to another process by then.
"""

import os
import re
import resource
import signal
import stat
import sys
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import NamedTuple

_PAGE = resource.getpagesize()
_TICKS = os.sysconf("SC_CLK_TCK")
NICE = 15  # of all processes in containers: the server goes first. With 19, killed ones take seconds to end under load
_MAX_PROCESSES = 4096
_MEMORY_FILE = "/memfd:"
_MAPPING_BYTES = 3  # of the kernel's memory for each byte of the line that describes a mapping
_MAX_MAPS = 32 * 1024 * 1024  # bytes of these lines: beyond it, all memory is used up
_HIDDEN_SHARE = 8  # a file whose size cannot be seen counts as this part of the disk limit
_DELETED = rb"^(\S+) \S+ \S+ \S+ (\d+) +(?:%b)/.* \(deleted\)$"  # the line of a mapped file: addresses, inode


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


def kill_children(spared: Collection[int] = ()) -> None:
    """Kill the children of this process except for some; theirs become its own and come next."""
    for child in map(int, _read("/proc/thread-self/children").split()):
        if child not in spared:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)  # nobody else reaps it, so the number is its own


def lower_priority(pids: list[int], lowered: frozenset[int]) -> frozenset[int]:
    """Let other sessions go first, where the kernel divides CPU time among sessions and not among processes.

    Returns the processes for which this was done, now or before: only root may do so more than ten times a second.
    """
    low = lowered.intersection(pids)
    for pid in pids:
        if pid not in low:
            with suppress(OSError):
                with open(f"/proc/{pid}/autogroup", "w") as file:
                    file.write(str(NICE))
                low |= {pid}
    return low


def _read(path: str) -> str:
    with suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        return file.read()
    return ""


# The most memory of a socket and its peer, since the filter of system calls does not let buffers be enlarged.
_SOCKET_BYTES = 2 * int(_read("/proc/sys/net/core/wmem_default") or 1 << 18)


def measure_memory(pids: list[int], limit: int) -> int:
    """Return the memory of processes in bytes, with the tables of their pages. Pages that they share are counted once
    if the sum exceeds the limit, because this takes longer.
    """
    tables = sum(_read_field(pid, "status", "VmPTE:") for pid in pids)
    resident = sum(int(text.split()[1]) for pid in pids if (text := _read(f"/proc/{pid}/statm"))) * _PAGE
    if resident + tables <= limit:
        return resident + tables
    return tables + sum(_read_field(pid, "smaps_rollup", "Pss:") for pid in pids)


def _read_field(pid: int, file: str, name: str) -> int:
    """Return the bytes that a line of a file in /proc/PID states in kB; 0 if the process has ended.

    The first line may be a name that code has chosen.
    """
    return int((_read(f"/proc/{pid}/{file}").partition(f"\n{name}")[2].split() or ["0"])[0]) * 1024


def measure_sockets(pid: int) -> int:
    """Return the most memory that the sockets in the network namespace of a process can have, in bytes."""
    fields = _read(f"/proc/{pid}/net/sockstat").split()
    return int(fields[2]) * _SOCKET_BYTES if fields else 0


def measure_gvisor(pids: list[int]) -> int:
    """Return the memory of the processes of a container in gVisor: that of code is a file, of which they map parts."""
    private = [text.split() for pid in pids if (text := _read(f"/proc/{pid}/statm"))]
    files = {one.st_ino: one.st_blocks * 512 for pid in pids for one in _list_unlinked(pid, is_memory=True)}
    return sum(int(one[1]) - int(one[2]) for one in private) * _PAGE + sum(files.values())


def measure_cpu(pids: list[int]) -> float:
    """Return the CPU time of processes, and of those that they have waited for, in seconds."""
    ticks = 0
    for pid in pids:
        if fields := _read(f"/proc/{pid}/stat").rpartition(")")[2].split():
            ticks += sum(map(int, fields[11:15]))
    return ticks / _TICKS


def count_running(pids: list[int]) -> int:
    """Return how many processes run or are ready to run, at most one per CPU. Children that nobody waits for leave no
    other trace of their CPU time.
    """
    states = [_read(f"/proc/{pid}/stat").rpartition(") ")[2][:1] for pid in pids]
    return min(states.count("R"), os.cpu_count() or 1)


def read_turns(root: int) -> list[str]:
    """Return the time on a CPU and the number of turns of each thread of a process and its descendants.

    It differs when one of them has run. A text is empty if the kernel does not count turns, or a thread has just ended.
    """
    turns = []
    for pid in list_tree(root):
        with suppress(OSError):
            turns += [_read(f"/proc/{pid}/task/{task}/schedstat") for task in os.listdir(f"/proc/{pid}/task")]
    return turns


def has_ready_thread(pids: list[int]) -> bool:
    """Return whether a thread of a process runs, or waits for a CPU."""
    for pid in pids:
        with suppress(OSError):
            for task in os.listdir(f"/proc/{pid}/task"):
                if _read(f"/proc/{pid}/task/{task}/stat").rpartition(") ")[2].startswith("R"):
                    return True
    return False


class HeldResources(NamedTuple):
    """The bytes that processes hold and that no other measurement counts, because they have no name."""

    disk: int  # deleted files that are open, mapped, or in a message between sockets
    memory: int  # of the kernel, for mappings and sockets: the most that they can take


def measure_held(pids: list[int], folders: tuple[str, ...], max_disk: int) -> HeldResources:
    """Measure what processes hold. `folders` are the folders that they can write to, by the paths that they see."""
    deleted = re.compile(_DELETED % b"|".join(re.escape(folder.encode()) for folder in folders), re.MULTILINE)
    files = {one.st_ino: one.st_blocks * 512 for pid in pids for one in _list_unlinked(pid, is_memory=False)}
    sockets: set[int] = set()
    sent = size = 0
    for pid in pids:
        for path, status in _list_open_files(pid):
            if stat.S_ISSOCK(status.st_mode):
                sockets.add(status.st_ino)
                sent += int(_read(path.replace("/fd/", "/fdinfo/")).partition("scm_fds:")[2].split("\n")[0] or 0)
        maps = _read_maps(pid, _MAX_MAPS - size)
        size += len(maps)
        for addresses, inode in deleted.findall(maps) if b" (deleted)\n" in maps else ():
            if int(inode) not in files:
                files[int(inode)] = _measure_mapped(pid, addresses.decode(), max_disk // _HIDDEN_SHARE)
    memory = size * _MAPPING_BYTES + len(sockets) * _SOCKET_BYTES if size < _MAX_MAPS else sys.maxsize
    return HeldResources(sum(files.values()) + sent * (max_disk // _HIDDEN_SHARE), memory)


def _read_maps(pid: int, count: int) -> bytes:
    with suppress(OSError), open(f"/proc/{pid}/maps", "rb") as file:
        return file.read(count)
    return b""


def _measure_mapped(pid: int, addresses: str, unknown: int) -> int:
    """Return the bytes of a file that is mapped. Only root may see them."""
    with suppress(OSError):
        return os.stat(f"/proc/{pid}/map_files/{addresses}").st_blocks * 512
    return unknown


def _list_unlinked(pid: int, is_memory: bool) -> Iterator[os.stat_result]:
    """Yield the open files without a name, either on a disk or in memory alone (memfd_create)."""
    for path, status in _list_open_files(pid):
        if stat.S_ISREG(status.st_mode) and status.st_nlink == 0:
            with suppress(OSError):
                if os.readlink(path).startswith(_MEMORY_FILE) == is_memory:
                    yield status


def _list_open_files(pid: int) -> Iterator[tuple[str, os.stat_result]]:
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                path = f"/proc/{pid}/fd/{name}"
                yield path, os.stat(path)
