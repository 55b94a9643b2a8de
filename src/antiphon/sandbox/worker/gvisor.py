"""Containers in gVisor, whose kernel in user space (`runsc`) answers all system calls of code.

    guard (process 1 of namespaces) ──▶ runsc ──▶ gofer (files), sandbox (kernel) ──▶ first process ──▶ kernel (Python)
                                                                                      └────────── in gVisor ──────────┘

The guard dies with the zygote, and all processes of its namespaces with it: runsc alone would leave some. There, too,
runsc has no network and the user of the container. In gVisor code is user 0, the only one that is mapped, without
capabilities, and the filter of system calls applies as elsewhere. The channel is the standard input of runsc.
"""

import json
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any, NoReturn

from antiphon.sandbox.worker import namespaces, processes, syscalls
from antiphon.sandbox.worker.confinement import Confinement, drop_privileges
from antiphon.sandbox.worker.files import remove_tree
from antiphon.sandbox.worker.kernel import Kernel
from antiphon.sandbox.worker.paths import PYTHON_FLAGS
from antiphon.sandbox.worker.syscalls import NODEV, NOEXEC, NOSUID

_OWN_PROCESSES = 8  # of a container without code: the guard, runsc twice, gofer, sandbox, and those that run code
_FOLDERS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
_PROGRAM = "/opt/antiphon/sandbox/worker"
_FLAGS = ("--rootless", "--network=none", "--ignore-cgroups")
_SANDBOX = b"runsc-sandbox"
_READ_ONLY = ("rbind", "ro", "nosuid", "nodev")
_WRITABLE = ("rbind", "rw", "nosuid", "nodev")
_NAMESPACES = ("pid", "network", "ipc", "uts", "mount")
_KILL_ROUNDS = 40


def find_runsc() -> str:
    """Return the path of runsc; "" if it is not installed. The environment of this process is empty."""
    paths = [f"{folder}/runsc" for folder in _FOLDERS]
    return next((path for path in paths if os.access(path, os.X_OK)), "")


def count_host_processes(spec: Confinement) -> int:
    """Return how many processes a container may have outside of gVisor, which limits none.

    A process in it is one outside, and a second one while it starts a program; gVisor holds some in reserve.
    """
    return _OWN_PROCESSES + 2 * spec.processes


def prepare_guard() -> None:
    """Show the guard and runsc the processes of their own namespace."""
    syscalls.mount("", "/", "", syscalls.MS_REC | syscalls.MS_PRIVATE)
    syscalls.mount("proc", "/proc", "proc", NOSUID | NODEV | NOEXEC)


def run(spec: Confinement, readable: list[str], channel: int) -> NoReturn:
    """Become runsc. Raises OSError."""
    os.setsid()
    os.nice(processes.NICE)
    os.umask(0o077)
    drop_privileges(spec)
    folder = os.path.dirname(spec.root)
    remove_tree(f"{folder}/state")  # of a kernel that was killed
    write_bundle(spec, readable, f"{folder}/bundle")
    os.dup2(channel, 0)
    os.close(channel)
    arguments = ("--root", f"{folder}/state", "run", "--bundle", f"{folder}/bundle", "container")
    os.execve(spec.runsc, (spec.runsc, *_FLAGS, *arguments), {})


def interrupt() -> None:
    """Interrupt the code. The sandbox passes signals on to the first process in gVisor; runsc would end by them."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError), open(f"/proc/{name}/cmdline", "rb") as file:
            if file.read(len(_SANDBOX)) == _SANDBOX:
                os.kill(int(name), signal.SIGINT)


def write_bundle(spec: Confinement, readable: list[str], bundle: str) -> None:
    """Write the root of a container and its description (OCI runtime specification)."""
    mounts = [*_list_mounts(spec, readable)]
    for mount in mounts:
        target: str = mount["destination"]
        below_temporary = target.startswith(f"{spec.temporary_path}/")
        base = spec.temporary + target[len(spec.temporary_path) :] if below_temporary else spec.root + target
        os.makedirs(base, exist_ok=True)
    for path in filter(os.path.islink, readable):
        os.makedirs(os.path.dirname(spec.root + path), exist_ok=True)
        with suppress(FileExistsError):  # from an earlier start
            os.symlink(os.readlink(path), spec.root + path)
    namespaces.write_texts(spec.root, uid=0)
    guest = replace(
        spec, uid=None, root="", data=spec.data_path, temporary=spec.temporary_path, skills=spec.skills_path
    )
    folder, _, name = sys.executable.rpartition("/")  # the folder may be a link; the file itself may be one of a venv
    python, arguments = f"{os.path.realpath(folder)}/{name}", ("guest", json.dumps(asdict(guest)))
    command = (python, *PYTHON_FLAGS, f"{_PROGRAM}/boot.py", *arguments)
    process = {"args": command, "cwd": "/", "env": [], "user": {"uid": 0, "gid": 0}, "noNewPrivileges": True}
    description = {
        "ociVersion": "1.0.2", "process": {**process, "capabilities": {}}, "mounts": mounts, "hostname": "sandbox",
        "root": {"path": spec.root, "readonly": True}, "linux": {"namespaces": [{"type": one} for one in _NAMESPACES]},
    }  # fmt: skip
    os.makedirs(bundle, exist_ok=True)
    with open(f"{bundle}/config.json", "w") as file:
        json.dump(description, file)


def _list_mounts(spec: Confinement, readable: list[str]) -> Iterator[dict[str, Any]]:
    yield {"destination": "/proc", "type": "proc", "source": "proc"}
    for source, target in ((spec.data, spec.data_path), (spec.temporary, spec.temporary_path)):
        yield {"destination": target, "type": "bind", "source": source, "options": _WRITABLE}
    shown = {path: path for path in readable if not os.path.islink(path)}
    own = {_PROGRAM: os.path.dirname(os.path.realpath(__file__)), spec.skills_path: spec.skills}
    for target, source in {**shown, **own}.items():
        yield {"destination": target, "type": "bind", "source": source, "options": _READ_ONLY}


class GuestKernel(Kernel):
    """Kills the processes of a command that is interrupted by itself: they are not visible outside of gVisor."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        # matplotlib is loaded when code imports it, with its own `show`, whose figures are sent at the end of the call.
        warnings.filterwarnings("ignore", message="FigureCanvasAgg is non-interactive")

    def run_command(self, command: str) -> int | None:
        older = {*_list_processes()}
        try:
            return super().run_command(command)
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            for _ in range(_KILL_ROUNDS):
                for pid in (started := {*_list_processes()} - older):
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                with suppress(ChildProcessError):
                    while os.waitpid(-1, os.WNOHANG)[0]:
                        pass
                if not started:
                    break
            return None


def _list_processes() -> Iterator[int]:
    return map(int, filter(str.isdigit, os.listdir("/proc")))
