"""Server processes under drill: start, arm kill points, stop, pause, kill."""

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from drills.harness.client import Client
from drills.harness.server import Setup
from drills.harness.storage_locations import StorageLocation

START_SECONDS = 120.0
_ADDRESS = re.compile(rb"http://127\.0\.0\.1:(\d+)")
_TASKS = re.compile(rb"tasks (\d+)\n")
_POLL_SECONDS = 0.02


class Process:
    """One server process and its output. `wrapper` is a command that starts it, such as strace."""

    def __init__(self, setup: Setup, wrapper: Sequence[str] = ()) -> None:
        self._output_file = tempfile.TemporaryFile()  # noqa: SIM115 - it is open as long as the process lives
        self._process = subprocess.Popen(
            [*wrapper, sys.executable, "-m", "drills.harness.server", msgspec.json.encode(setup).decode()],
            stdin=subprocess.PIPE,
            stdout=self._output_file,
            stderr=self._output_file,
        )
        self.client = Client(0)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def read_output(self) -> str:
        return self._read_output_bytes().decode(errors="replace")

    async def wait_until_ready(self, seconds: float = START_SECONDS) -> None:
        """Wait until the server is ready. Raises RuntimeError with its output if that does not happen in time."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self.is_running:
            if found := _ADDRESS.search(os.pread(self._output_file.fileno(), 1 << 20, 0)):
                self.client = Client(int(found[1]))
                with contextlib.suppress(OSError, EOFError):
                    if (await self.client.get("/ready")).status == 200:
                        return
            await asyncio.sleep(_POLL_SECONDS)
        raise RuntimeError(f"the server was not ready (exit {self._process.poll()}):\n{self.read_output()}")

    def arm(self, point: str) -> None:
        self._send_command(point)

    def hold(self, method: str) -> None:
        """Delay all calls of a method of the store, from now on."""
        self._send_command(f"hold {method}")

    def release(self) -> None:
        """Let the delayed calls continue; a paused process does so when it resumes."""
        self._send_command("release")

    def _send_command(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{line}\n".encode())
            self._process.stdin.flush()

    async def count_tasks(self) -> int:
        """Return the current number of tasks in the server's event loop."""
        before = len(_TASKS.findall(self._read_output_bytes()))
        self._send_command("tasks")
        async with asyncio.timeout(START_SECONDS):
            while len(found := _TASKS.findall(self._read_output_bytes())) == before:  # noqa: ASYNC110 - another process writes it
                await asyncio.sleep(_POLL_SECONDS)
        return int(found[-1])

    def _read_output_bytes(self) -> bytes:
        return os.pread(self._output_file.fileno(), 1 << 24, 0)

    def send_signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def pause(self) -> None:
        """Stop the process and wait until all of its threads are stopped; threads in a system call take a moment."""
        self.send_signal(signal.SIGSTOP)
        await asyncio.to_thread(_wait_until_paused, self.pid)

    async def wait_for_exit(self, seconds: float) -> bool:
        """Wait for the exit of the process; returns False after the timeout."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(self._process.wait, seconds)
        return not self.is_running

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(timeout=10)

    async def stop(self) -> None:
        """Shut the process down; kill it if that takes too long."""
        self.send_signal(signal.SIGCONT)
        self.send_signal(signal.SIGTERM)
        if not await self.wait_for_exit(15):
            self.kill()

    def close(self) -> None:
        """End the process in whatever state it is, and release its files."""
        if self.is_running:
            self.kill()
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._output_file.close()


def _wait_until_paused(pid: int) -> None:
    while any(_read_state(stat) not in "tTZX" for stat in Path(f"/proc/{pid}/task").glob("*/stat")):
        time.sleep(0.001)


def _read_state(stat: Path) -> str:
    return stat.read_text().rpartition(") ")[2][0]


class Servers:
    """The server processes of one drill on one storage location; all of them end with the drill."""

    def __init__(
        self,
        storage: StorageLocation,
        config: Mapping[str, Any],
        mark_answers: bool,
        wrapper: Sequence[str] = (),
        pooled: bool = False,
    ) -> None:
        self._storage = storage
        self._mark_answers = mark_answers
        self._pooled = pooled
        self._wrapper = wrapper
        self._config = {"store": storage.store, "live": storage.live, **config}
        self._started: list[Process] = []
        self.tracebacks: list[str] = []

    async def start(self) -> Process:
        process = self.spawn()
        await process.wait_until_ready()
        return process

    def spawn(self, kill_point: str = "") -> Process:
        """Start a process without waiting for it: one with a kill point may never become ready."""
        config = {name: value for name, value in self._config.items() if value is not None}
        setup = Setup(
            config=config,
            journal=str(self._storage.journal),
            trap=kill_point,
            marks=self._mark_answers,
            pooled=self._pooled,
        )
        process = Process(setup, self._wrapper)
        self._started.append(process)
        return process

    def discard(self, process: Process) -> None:
        """End a process that is no longer needed. Tracebacks in its output are retained."""
        output = process.read_output()
        process.close()
        self._started.remove(process)
        if (at := output.find("Traceback")) >= 0:
            self.tracebacks.append(output[max(0, at - 300) : at + 3000])

    def close(self) -> None:
        for process in list(self._started):
            self.discard(process)


@contextlib.contextmanager
def open_servers(
    storage: StorageLocation,
    config: Mapping[str, Any],
    mark_answers: bool = True,
    wrapper: Sequence[str] = (),
    pooled: bool = False,
) -> Iterator[Servers]:
    found = Servers(storage, config, mark_answers, wrapper, pooled)
    try:
        yield found
    finally:
        found.close()
