"""The sandbox process's side of the zygote: starts it, asks it for containers, and learns which of them have ended."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from antiphon.sandbox.worker import processes, syscalls
from antiphon.sandbox.worker.confinement import Confinement
from antiphon.sandbox.worker.paths import PYTHON_FLAGS

_START_SECONDS = 60.0  # importing pandas and matplotlib for the first time takes seconds
_FORK_SECONDS = 10.0
_MAX_MESSAGE = 65536
COMMAND = (sys.executable, *PYTHON_FLAGS, str(Path(__file__).with_name("boot.py")))
ALL = 0  # instead of the number of a guard


class StartFailed(Exception):
    """A container, or the zygote, could not be started."""


class ZygoteClient:
    """Starts the zygote when it is needed, and again if it has died: then all of its containers have died too."""

    def __init__(self, folder: str, report_end: Callable[[int, int], None]) -> None:
        self._folder = folder
        self._report_end = report_end
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._answers: deque[asyncio.Future[dict[str, Any]]] = deque()  # in the order of the requests
        self._lock = asyncio.Lock()
        self.packages: dict[str, str] = {}

    async def start_container(self, spec: Confinement, files: Sequence[int]) -> tuple[int, int]:
        """Return the number of the guard of a new container, and a file for it (a pidfd)."""
        async with self._lock:
            if self._control is None:
                await self._open()
            assert self._control is not None
            message = json.dumps(asdict(spec)).encode()
            with suppress(OSError):  # its end is the answer
                socket.send_fds(self._control, [message], files)
            answer = await self._await_answer(_FORK_SECONDS)
        if "started" not in answer:
            raise StartFailed(answer.get("error", "the zygote has ended"))
        try:
            return answer["started"], os.pidfd_open(answer["started"])
        except ProcessLookupError:
            raise StartFailed("the container ended at once")

    async def _open(self) -> None:
        syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
        own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            self._process = subprocess.Popen(  # noqa: ASYNC220 - it returns when the program has been started
                [*COMMAND, "zygote", str(other.fileno()), self._folder],
                pass_fds=[other.fileno()], env={}, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )  # fmt: skip
        own.setblocking(False)
        self._control = own
        asyncio.get_running_loop().add_reader(own, self._read)
        answer = await self._await_answer(_START_SECONDS)
        if answer.get("threads") != 1:
            self.close()
            raise StartFailed(answer.get("error", "a package starts threads when it is imported"))
        self.packages = answer["packages"]

    async def _await_answer(self, seconds: float) -> dict[str, Any]:
        """Wait for the next answer. That of a cancelled request is dropped when it comes."""
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._answers.append(answer)
        try:
            return await asyncio.wait_for(answer, seconds)
        except TimeoutError:
            self.close()
            return {"error": f"the zygote did not answer within {seconds:g} s"}

    def _read(self) -> None:
        assert self._control is not None
        message = b""
        with suppress(ConnectionError):
            message = self._control.recv(_MAX_MESSAGE)
        if not message:
            self.close()
            return
        answer = json.loads(message)
        if "ended" in answer:
            self._report_end(answer["ended"], answer["code"])
        elif self._answers and not (awaited := self._answers.popleft()).done():
            awaited.set_result(answer)

    def close(self) -> None:
        """End the zygote, and with it all containers."""
        if self._control is not None:
            asyncio.get_running_loop().remove_reader(self._control)
            self._control.close()
            self._control = None
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None
            _kill_orphans()
            for awaited in self._answers:
                if not awaited.done():
                    awaited.set_result({"error": "the zygote has ended"})
            self._answers.clear()
            self._report_end(ALL, -signal.SIGKILL)


def _kill_orphans() -> None:
    """Kill what a zygote and a guard that were both killed leave: it has become this process's own."""
    with suppress(ChildProcessError):
        while True:
            processes.kill_children()
            os.wait()
