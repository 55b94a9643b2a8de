"""The zygote: a process that has loaded the packages, never runs code of users, and is forked for each container.

It receives a Confinement and three files (the kernel's channel, stdout, stderr), and answers with the number of the
guard, a process between it and the kernel:

- With namespaces, the guard is process 1 of the container. When it ends, the operating system kills all others.
- Without, it stays outside, adopts processes whose parents have ended, and kills the kernel's group before it ends.

A guard ends when its kernel or the zygote does; the zygote ends when the sandbox process does. What a guard that was
killed leaves, the zygote kills, and what both leave, the sandbox process.
"""

import gc
import json
import os
import select
import signal
import socket
import sys
from contextlib import suppress
from importlib import import_module
from typing import Any, NoReturn

from antiphon.sandbox.worker import gvisor, namespaces, processes, syscalls
from antiphon.sandbox.worker.confinement import Confinement, confine, drop_privileges
from antiphon.sandbox.worker.frames import pack
from antiphon.sandbox.worker.kernel import Kernel, load_plotting

PACKAGES = ("numpy", "pandas", "PIL.Image", "matplotlib")
_MODULES = (
    "asyncio", "base64", "collections", "csv", "ctypes", "datetime", "decimal", "fractions", "hashlib", "io",
    "itertools", "json", "math", "multiprocessing", "pathlib", "random", "re", "sqlite3", "statistics", "string",
    "subprocess", "tempfile", "textwrap", "threading", "time", "typing", "urllib.parse", "zipfile",
)  # fmt: skip
# BLAS libraries would start threads, and a process with threads cannot be forked.
_ONE_THREAD = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
_MAX_MESSAGE = 65536
_CHANNEL = 3


def main(control_number: int, folder: str) -> None:
    """Load the packages that there are, report them, and fork until the sandbox process ends."""
    control = socket.socket(fileno=control_number)
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGTERM)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    wakeup = _watch_children()
    packages = _load_packages(folder)
    os.environ.clear()
    gc.collect()
    gc.freeze()  # collections do not touch, and so do not copy, what all containers share
    control.send(json.dumps({"packages": packages, "threads": _count_threads()}).encode())
    Zygote(control, wakeup).serve()


def _watch_children() -> int:
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    return reader


def _load_packages(folder: str) -> dict[str, str]:
    os.environ.update(dict.fromkeys(_ONE_THREAD, "1"), MPLBACKEND="Agg", MPLCONFIGDIR=folder, HOME=folder)
    found = {}
    for name in (*_MODULES, *PACKAGES):
        with suppress(ImportError):
            module = import_module(name)
            if name in PACKAGES:
                found[name.split(".")[0]] = str(getattr(sys.modules[name.split(".")[0]], "__version__", module))
    if "matplotlib" in found:
        load_plotting()
    return found


def _count_threads() -> int:
    return len(os.listdir("/proc/self/task"))


class Zygote:
    def __init__(self, control: socket.socket, wakeup: int) -> None:
        self._control = control
        self._wakeup = wakeup
        self._guards: set[int] = set()
        self._readable = namespaces.list_readable()
        syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)

    def serve(self) -> None:
        while True:
            control = self._control.fileno()
            ready, _, _ = select.select([control, self._wakeup], [], [])
            if self._wakeup in ready:
                self._report_ends()
            if control in ready and not self._take_request():
                return

    def _report_ends(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._wakeup, 4096)
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] in self._guards:
                    self._guards.discard(ended[0])
                    code = os.waitstatus_to_exitcode(ended[1])
                    self._control.send(json.dumps({"ended": ended[0], "code": code}).encode())
                processes.kill_children(spared=self._guards)

    def _take_request(self) -> bool:
        """Start a container; False if the sandbox process has ended."""
        message, files, _, _ = socket.recv_fds(self._control, _MAX_MESSAGE, 3)
        if not message:
            return False
        answer: dict[str, Any]
        try:
            guard = self._start(Confinement(**json.loads(message)), files)
            self._guards.add(guard)
            answer = {"started": guard}
        except OSError as error:
            answer = {"error": f"{error.filename}: {error.strerror}"}
        finally:
            for number in files:
                os.close(number)
        self._control.send(json.dumps(answer).encode())
        return True

    def _start(self, spec: Confinement, files: list[int]) -> int:
        gate, opener = os.pipe()
        pid = syscalls.clone(namespaces.FLAGS) if spec.namespaces else os.fork()
        if pid == 0:
            _run_guard(spec, self._readable, files, (gate, opener))
        os.close(gate)
        try:
            if spec.namespaces:
                namespaces.write_maps(pid, spec.uid)
            os.write(opener, b"1")
        finally:
            os.close(opener)
        return pid


def _run_guard(spec: Confinement, readable: list[str], files: list[int], gate: tuple[int, int]) -> NoReturn:
    """The guard's life. Failures are reported on the channel of the kernel."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        os.close(gate[1])
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL if spec.namespaces else signal.SIGTERM)
        if os.read(gate[0], 1) == b"1":  # else the zygote has ended
            _arrange_files(files)
            code = _guard(spec, readable)
    except OSError as error:
        os.write(_CHANNEL, pack({"failed": f"{error.filename}: {error.strerror}"}))
    finally:
        os._exit(code)


def _arrange_files(files: list[int]) -> None:
    """Keep the channel, stdout and stderr, and close all others."""
    high = [os.dup2(number, 100 + index) for index, number in enumerate(files)]
    for number, target in zip(high, (_CHANNEL, 1, 2), strict=True):
        os.dup2(number, target)
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    os.closerange(_CHANNEL + 1, 1 << 20)


def _guard(spec: Confinement, readable: list[str]) -> int:
    if spec.runsc:
        gvisor.prepare_guard()
    elif spec.namespaces:
        namespaces.enter_root(spec.root, spec.data, spec.temporary, spec.skills, readable, spec.network)
        namespaces.prepare_network()
        if spec.network:
            namespaces.send_listener(_CHANNEL)
    else:
        syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
    kernel = os.fork()
    if kernel == 0:
        _run_kernel(spec, readable)
    with suppress(ProcessLookupError):
        signal.signal(
            signal.SIGINT, lambda number, frame: gvisor.interrupt() if spec.runsc else os.kill(kernel, signal.SIGINT)
        )
    if spec.namespaces:
        drop_privileges(spec)
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)  # the change of the user has cleared it
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)  # the kernel, which has the same user, cannot read or change it
    else:
        signal.signal(signal.SIGTERM, lambda number, frame: _end_group(kernel))
    os.closerange(0, _CHANNEL + 1)
    return _await_kernel(kernel, spec.namespaces)


def _await_kernel(kernel: int, namespaces: bool) -> int:
    """Reap all processes until the kernel ends, kill those that remain, and return its exit code."""
    while True:
        pid, status = os.wait()
        if pid == kernel:
            code = os.waitstatus_to_exitcode(status)
            if not namespaces:
                _kill_group(kernel)
            return code if code >= 0 else 128 - code


def _end_group(kernel: int) -> NoReturn:
    _kill_group(kernel)
    os._exit(128 + signal.SIGTERM)


def _kill_group(kernel: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(kernel, signal.SIGKILL)  # processes cannot leave the group, and none can be forked during the call
    with suppress(ChildProcessError):
        while os.wait():
            pass


def _run_kernel(spec: Confinement, readable: list[str]) -> NoReturn:
    code = 1
    try:
        if spec.runsc and spec.root:
            gvisor.run(spec, readable, _CHANNEL)
        channel = socket.socket(fileno=_CHANNEL)
        confine(spec, readable)
        os.environ.update(namespaces.PROXY_ENVIRONMENT if spec.network else {})
        kind = gvisor.GuestKernel if spec.runsc else Kernel
        kind(channel, spec.data_path, spec.temporary_path, spec.skills_path).serve()
        code = 0
    except OSError as error:
        _report(f"{error.filename}: {error.strerror}")
    except ImportError as error:
        _report(f"{error}: every user must be able to read {sys.prefix}")
    finally:
        os._exit(code)


def _report(failure: str) -> None:
    with suppress(OSError):
        os.write(_CHANNEL, pack({"failed": failure}))


def run_guest(spec_text: str) -> int:
    """The life of the first process in gVisor, which is a guard too."""
    spec = Confinement(**json.loads(spec_text))
    os.dup2(0, _CHANNEL)
    os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
    os.closerange(_CHANNEL + 1, 1 << 10)
    kernel = os.fork()
    if kernel == 0:
        _run_kernel(spec, [])
    signal.signal(signal.SIGINT, lambda number, frame: os.kill(kernel, signal.SIGINT))
    os.closerange(0, _CHANNEL + 1)
    return _await_kernel(kernel, namespaces=True)
