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

MODULES = {"uvloop", "fcntl", "resource", "pwd", "grp", "termios", "pty", "syslog"}
NAMES = {
    os: ["fork", "getuid", "geteuid", "getgid", "sched_getaffinity", "pread", "sysconf", "nice", "killpg", "setsid",
         "register_at_fork", "statvfs", "O_DIRECTORY", "O_NOFOLLOW", "O_CLOEXEC"],
    signal: ["SIGHUP", "SIGKILL", "SIGUSR1", "pthread_sigmask"],
    socket: ["SO_REUSEPORT", "TCP_NOTSENT_LOWAT"],
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


def remove_posix() -> None:
    sys.meta_path.insert(0, MissingModules())
    for name in MODULES:
        sys.modules.pop(name, None)
    for module, names in NAMES.items():
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    setattr(ctypes, "CDLL", open_library)  # noqa: B010 - it is a class
    for method in ("add_signal_handler", "subprocess_exec"):
        setattr(asyncio.SelectorEventLoop, method, refuse)


if __name__ == "__main__":
    remove_posix()
    from antiphon.cli import main

    main()
