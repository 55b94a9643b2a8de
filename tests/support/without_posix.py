"""Runs the command line as on Windows: without uvloop, and without what only POSIX systems have.

`python tests/support/without_posix.py serve …` is `antiphon serve …`.
"""

import asyncio
import ctypes
import os
import signal
import socket
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NoReturn

WITHOUT_POSIX = (sys.executable, __file__)
MODULES = {"uvloop", "fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog", "curses", "readline"}
NAMES = {
    os: ["fork", "forkpty", "wait", "wait3", "wait4", "waitid", "posix_spawn", "killpg", "setsid", "setpgid",
         "getpgid", "getuid", "geteuid", "getgid", "getegid", "getgroups", "setuid", "setgid", "sched_getaffinity",
         "sched_yield", "getpriority", "setpriority", "nice", "getloadavg", "sysconf", "register_at_fork", "uname",
         "pread", "pwrite", "sendfile", "pipe2", "mkfifo", "memfd_create", "pidfd_open", "chown", "fchown", "fchmod",
         "posix_fallocate", "O_DIRECTORY", "O_NOFOLLOW", "O_CLOEXEC", "O_SYNC"],
    signal: ["SIGHUP", "SIGKILL", "SIGUSR1", "SIGUSR2", "SIGCHLD", "SIGALRM", "SIGPIPE", "SIGQUIT", "pthread_sigmask",
             "pthread_kill", "sigwait", "alarm", "setitimer"],
    socket: ["AF_UNIX", "SO_REUSEPORT", "TCP_NOTSENT_LOWAT", "SO_PEERCRED", "SCM_RIGHTS", "MSG_DONTWAIT",
             "MSG_NOSIGNAL", "SOCK_CLOEXEC", "SOCK_NONBLOCK"],
    asyncio: ["open_unix_connection", "start_unix_server"],
}  # fmt: skip


class MissingModules(MetaPathFinder):
    """Finds none of the modules that other systems lack."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] in MODULES:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
        return None


def refuse(*args: Any, **kwargs: Any) -> NoReturn:
    raise NotImplementedError


def open_library(name: str | None, *args: Any, open_named: Any = ctypes.CDLL) -> Any:
    if name is None:
        raise TypeError("there is no library of the process")
    return open_named(name, *args)


def make_socketpair(make: Any = socket.socketpair, family: int = socket.AF_UNIX) -> Any:
    """Make a pair without a name of its family, as Windows has it; Linux makes none of AF_INET."""
    return make(family)


def remove_posix() -> None:
    sys.meta_path.insert(0, MissingModules())
    for name in MODULES:
        sys.modules.pop(name, None)
    for module, names in NAMES.items():
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    setattr(os, "process_cpu_count", os.cpu_count)  # noqa: B010 - from Python 3.13 on, as without sched_getaffinity
    setattr(ctypes, "CDLL", open_library)  # noqa: B010 - it is a class
    setattr(socket, "socketpair", make_socketpair)  # noqa: B010 - it has another signature
    for method in ("add_signal_handler", "subprocess_exec", "create_unix_connection", "create_unix_server"):
        setattr(asyncio.SelectorEventLoop, method, refuse)


if __name__ == "__main__":
    remove_posix()
    from antiphon.cli import main

    main()
