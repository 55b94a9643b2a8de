"""The kernel: runs one piece of code after the other in one namespace, as a notebook does. A cell that begins with the
line `%%sh` is a command for a shell.

What code prints goes to the pipes of stdout and stderr. Figures and the end of a call go through the channel, with the
nonce of the call, so that bytes which code writes to files at random are not taken for them. Code in this process can
nevertheless write what it likes: the sandbox process believes nothing that matters outside of this container.
"""

import ast
import inspect
import io
import linecache
import os
import re
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from types import CodeType
from typing import TYPE_CHECKING, Any

from antiphon.sandbox.worker.frames import Header, pack, receive
from antiphon.sandbox.worker.paths import SKILLS

if TYPE_CHECKING:
    import asyncio

MAX_FIGURES = 10
MAX_FIGURE_BYTES = 4 * 1024 * 1024
_MAX_REPR = 100_000
_DATA = "/mnt/data"
SHELL_CELL = "%%sh\n"
_OFFERED_PACKAGES = ("numpy", "pandas", "PIL", "matplotlib")
_INSTALL = "antiphon sandbox-packages"
_CELL = "<cell "  # begins the names of files in tracebacks
_SHELLS = ("/bin/bash", "/bin/sh")


def load_plotting() -> None:
    """Load what the first figure needs, by drawing one."""
    plt: Any = import_module("matplotlib.pyplot")
    plt.figure()
    plt.plot([0, 1], label="1")
    plt.title("$x$")
    plt.legend()
    plt.savefig(io.BytesIO(), format="png")
    plt.close("all")


class Kernel:
    """The state of one container: its variables, and the number of its calls."""

    def __init__(self, channel: socket.socket, data: str, temporary: str, skills: str) -> None:
        self._channel = channel
        self._data = data
        # Without a mount namespace, folders have other paths than code expects.
        self._paths = {_DATA: data, SKILLS: skills} if data != _DATA else {}
        self._count = 0
        self._figures = 0
        self._exit_code: int | None = None  # of the last command
        self._nonce = ""
        self._variables: dict[str, Any] = {"__name__": "__main__", "__builtins__": __builtins__}
        self._loop: asyncio.AbstractEventLoop | None = None
        _prepare_process(data, temporary)
        if (pyplot := sys.modules.get("matplotlib.pyplot")) is not None:
            pyplot.show = self._show  # type: ignore[attr-defined]  # - a module

    def serve(self) -> None:
        """Run calls until the channel is closed."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._channel.sendall(pack({"ready": True}))
        while (frame := receive(self._channel)) is not None:
            header, code = frame
            self._nonce, self._figures, self._exit_code = header["nonce"], 0, None
            raised = self._run(code.decode())
            self._send({"done": True, "raised": raised, "exit_code": self._exit_code})

    def _send(self, header: Header, payload: bytes = b"") -> None:
        self._channel.sendall(pack({**header, "nonce": self._nonce}, payload))

    def _run(self, code: str) -> bool:
        """Run code and show its last value, its exception if it raises one, and its figures. Returns whether it did."""
        self._count += 1
        steps = (partial(self._execute, code), self._send_figures, _flush)
        return sum(self._attempt(step) for step in steps) > 0

    def _attempt(self, step: Callable[[], None]) -> bool:
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            step()
        except SystemExit:
            return False
        except BaseException as error:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            _show_exception(error)
            return True
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        return False

    def _execute(self, code: str) -> None:
        self._send({"begun": True})  # from now on an interrupt is noticed
        if code.startswith(SHELL_CELL):
            self._exit_code = self.run_command(code.removeprefix(SHELL_CELL))
            return
        name = f"{_CELL}{self._count}>"
        linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
        tree = ast.parse(code, name)
        if self._paths:
            tree = ast.fix_missing_locations(_FolderPaths(self._paths).visit(tree))
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        self._evaluate(compile(tree, name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT))
        if isinstance(last, ast.Expr):
            value = self._evaluate(compile(ast.Expression(last.value), name, "eval", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT))
            if value is not None:
                self._variables["_"] = value
                sys.stdout.write(f"{repr(value)[:_MAX_REPR]}\n")

    def run_command(self, command: str) -> int | None:
        return _run_command(command, self._data, self._paths)

    def _evaluate(self, code: CodeType) -> Any:
        value = eval(code, self._variables)  # noqa: S307 - this process exists to run it
        if code.co_flags & inspect.CO_COROUTINE:
            if self._loop is None:
                self._loop = import_module("asyncio").new_event_loop()  # which takes long to import in gVisor
                assert self._loop is not None
            return self._loop.run_until_complete(value)
        return value

    def _send_figures(self) -> None:
        """Send the open figures, and close them, also those that cannot be drawn: the next call would try again."""
        pyplot = sys.modules.get("matplotlib.pyplot")
        if pyplot is None:
            return
        try:
            for number in pyplot.get_fignums():
                if self._figures < MAX_FIGURES:
                    buffer = io.BytesIO()
                    pyplot.figure(number).savefig(buffer, format="png")
                    if buffer.tell() <= MAX_FIGURE_BYTES:
                        self._figures += 1
                        self._send({"figure": self._figures}, buffer.getvalue())
        finally:
            pyplot.close("all")

    def _show(self, *args: object, **kwargs: object) -> None:
        """Do what `plt.show()` does in a notebook."""
        self._send_figures()


class _FolderPaths(ast.NodeTransformer):
    """Replaces the paths of folders at the beginning of strings."""

    def __init__(self, paths: dict[str, str]) -> None:
        self._paths = paths

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        value = node.value
        for path, actual in self._paths.items():
            if isinstance(value, str) and (value == path or value.startswith(f"{path}/")):
                node.value = actual + value.removeprefix(path)
        return node


def _run_command(command: str, data: str, paths: dict[str, str]) -> int:
    """Run a command in a shell of its own, which has the output of this process, and return its exit code.

    Processes that it leaves in the background are not waited for.
    """
    for path, actual in paths.items():
        command = actual.join(re.split(rf"{path}(?![\w.-])", command))
    shell = next((path for path in _SHELLS if os.access(path, os.X_OK)), _SHELLS[-1])
    _flush()
    code = subprocess.Popen([shell, "-c", command], stdin=subprocess.DEVNULL, cwd=data).wait()
    return code if code >= 0 else 128 - code


def _prepare_process(data: str, temporary: str) -> None:
    """Set up the environment and the output of this process; forks of one zygote get different random numbers."""
    os.environ.update(
        HOME=data, TMPDIR=temporary, PATH="/usr/local/bin:/usr/bin:/bin", LANG="C.UTF-8", USER="sandbox",
        MPLBACKEND="Agg", MPLCONFIGDIR=temporary, OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1",
    )  # fmt: skip
    sys.stdout = open(1, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.argv = [""]
    sys.path.insert(0, data)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()


def _show_exception(error: BaseException) -> None:
    """Write the traceback from the first frame of the user's code on. Code that cannot be parsed has none."""
    if isinstance(error, ModuleNotFoundError) and error.name in _OFFERED_PACKAGES:
        error.add_note(f"{error.name} is not installed on this server. Its operator installs it: {_INSTALL}")
    frames = error.__traceback__
    while frames is not None and not frames.tb_frame.f_code.co_filename.startswith(_CELL):
        frames = frames.tb_next
    text = "".join(traceback.format_exception(error.with_traceback(frames), limit=-50))
    _flush()
    sys.stderr.write(text[-_MAX_REPR:])


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, ValueError, OSError):
            stream.flush()
