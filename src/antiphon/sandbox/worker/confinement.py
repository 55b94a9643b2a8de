"""Confines a process for good: user, capabilities, limits, Landlock, seccomp, in this order."""

import os
import resource
import signal
from dataclasses import dataclass

from antiphon.sandbox.worker import landlock, namespaces, processes, seccomp, syscalls
from antiphon.sandbox.worker.paths import SKILLS

_OPEN_FILES = 256
_NOT_IN_GVISOR = (resource.RLIMIT_MSGQUEUE, resource.RLIMIT_SIGPENDING)
_PROCESS_SHARE = 7 / 8  # of the memory limit: one process gets a MemoryError before the watchdog kills all


@dataclass(frozen=True, kw_only=True)
class Confinement:
    """The sandbox process's decisions about a container. It is sent to the zygote as JSON."""

    namespaces: bool
    root: str  # an empty folder
    data: str
    temporary: str
    skills: str  # which code can read only
    uid: int | None  # a user for this container alone; None: the user of the sandbox process
    memory: int
    disk: int
    processes: int
    runsc: str = ""  # the path of gVisor's program, for a container in gVisor
    network: bool = False  # the container has a port for the proxy of its calls; with namespaces only

    @property
    def data_path(self) -> str:
        """The path of the data folder for code in the container."""
        return "/mnt/data" if self.namespaces else self.data

    @property
    def temporary_path(self) -> str:
        return "/tmp" if self.namespaces else self.temporary

    @property
    def skills_path(self) -> str:
        return SKILLS if self.namespaces else self.skills


def confine(spec: Confinement, readable: list[str]) -> None:
    """Confine this process, which has one thread. Raises OSError if the kernel refuses any of it."""
    os.setsid()
    os.nice(processes.NICE)
    os.umask(0o077)
    drop_privileges(spec)
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 1)  # else /proc/self belongs to root
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)  # a change of the user clears it
    os.chdir(spec.data_path)
    _limit_resources(spec)
    writable = [spec.data_path, spec.temporary_path, *(["/dev/shm"] if spec.namespaces else [])]
    if spec.runsc:  # gVisor has no Landlock
        seccomp.install(seccomp.assemble(namespaces=True, scoped_signals=False, shared_user=False))
        return
    # In namespaces, "/" is the container's own root.
    visible = ["/"] if spec.namespaces else [*readable, spec.skills, *namespaces.SHARED_FILES]
    landlock.restrict(visible, writable, namespaces.DEVICES, deny_tcp=not spec.namespaces)
    scoped = landlock.find_version() >= landlock.SIGNAL_VERSION
    seccomp.install(seccomp.assemble(spec.namespaces, scoped, shared_user=spec.uid is None))


def drop_privileges(spec: Confinement) -> None:
    """Become the user of the container, without capabilities and without a way to get any."""
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    syscalls.drop_bounding_set()
    if spec.uid is not None:
        inner = namespaces.INNER_UID if spec.namespaces else spec.uid
        os.setgroups([])
        os.setresgid(inner, inner, inner)
        os.setresuid(inner, inner, inner)
    syscalls.drop_capabilities()


def _limit_resources(spec: Confinement) -> None:
    base = _read_address_space()
    # Without namespaces or an own user, the limit counts all processes of this user.
    others = 0 if spec.namespaces or spec.uid is not None else _count_processes()
    limits = {
        resource.RLIMIT_AS: base + int(spec.memory * _PROCESS_SHARE),
        resource.RLIMIT_NPROC: spec.processes + others,
        resource.RLIMIT_NOFILE: _OPEN_FILES,
        resource.RLIMIT_FSIZE: spec.disk,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_SIGPENDING: 256,
    }
    for kind, limit in limits.items():
        if spec.runsc and kind in _NOT_IN_GVISOR:
            continue
        limit = min(limit, hard) if (hard := resource.getrlimit(kind)[1]) != resource.RLIM_INFINITY else limit
        resource.setrlimit(kind, (limit, limit))


def _read_address_space() -> int:
    """Return the address space that the interpreter and its modules use already."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except OSError:  # a container without /proc
        return 2 << 30


def _count_processes() -> int:
    """Return the number of threads of this user, which RLIMIT_NPROC counts."""
    own, count = os.getuid(), 0
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.stat(f"/proc/{name}").st_uid == own:
                count += len(os.listdir(f"/proc/{name}/task"))
        except OSError:  # it has ended
            continue
    return count
