"""Servers under drill as processes: started, armed, stopped, paused, killed."""

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
from drills.harness.storage_locations import Place

START_SECONDS = 120.0
_ADDRESS = re.compile(rb"http://127\.0\.0\.1:(\d+)")
_TASKS = re.compile(rb"tasks (\d+)\n")
_POLL_SECONDS = 0.02


class Process:
    """One server process and what it wrote. `within`: the command that it is started by."""

    def __init__(self, setup: Setup, within: Sequence[str] = ()) -> None:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the process
        self._process = subprocess.Popen(
            [*within, sys.executable, "-m", "drills.harness.server", msgspec.json.encode(setup).decode()],
            stdin=subprocess.PIPE,
            stdout=self._said,
            stderr=self._said,
        )
        self.client = Client(0)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def output(self) -> str:
        return self._written().decode(errors="replace")

    async def ready(self, seconds: float = START_SECONDS) -> None:
        """Until it serves. Raises RuntimeError with what it wrote if it never does."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self.running:
            if found := _ADDRESS.search(os.pread(self._said.fileno(), 1 << 20, 0)):
                self.client = Client(int(found[1]))
                with contextlib.suppress(OSError, EOFError):
                    if (await self.client.get("/ready")).status == 200:
                        return
            await asyncio.sleep(_POLL_SECONDS)
        raise RuntimeError(f"the server was not ready (exit {self._process.poll()}):\n{self.output()}")

    def arm(self, point: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{point}\n".encode())
            self._process.stdin.flush()

    async def tasks(self) -> int:
        """How many its event loop has just now."""
        before = len(_TASKS.findall(self._written()))
        self.arm("tasks")
        async with asyncio.timeout(START_SECONDS):
            while len(found := _TASKS.findall(self._written())) == before:  # noqa: ASYNC110 - another process says it
                await asyncio.sleep(_POLL_SECONDS)
        return int(found[-1])

    def _written(self) -> bytes:
        return os.pread(self._said.fileno(), 1 << 24, 0)

    def send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def pause(self) -> None:
        """Until all of its threads stand still, which those in a system call do not do at once."""
        self.send(signal.SIGSTOP)
        await asyncio.to_thread(_await_still, self.pid)

    async def died(self, seconds: float) -> bool:
        """Wait for its end."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(self._process.wait, seconds)
        return not self.running

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(timeout=10)

    async def stop(self) -> None:
        """In good order, if it can be had."""
        self.send(signal.SIGCONT)
        self.send(signal.SIGTERM)
        if not await self.died(15):
            self.kill()

    def close(self) -> None:
        """Whatever state it is in."""
        if self.running:
            self.kill()
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._said.close()


def _await_still(pid: int) -> None:
    while any(_state(stat) not in "tTZX" for stat in Path(f"/proc/{pid}/task").glob("*/stat")):
        time.sleep(0.001)


def _state(stat: Path) -> str:
    return stat.read_text().rpartition(") ")[2][0]


class Servers:
    """The processes of one drill, on one place that they keep things in; none of them outlives the drill."""

    def __init__(self, place: Place, config: Mapping[str, Any], marks: bool, within: Sequence[str] = ()) -> None:
        self._place = place
        self._marks = marks
        self._within = within
        self._config = {"store": place.store, "live": place.live, **config}
        self._started: list[Process] = []
        self.tracebacks: list[str] = []

    async def start(self) -> Process:
        process = self.begin()
        await process.ready()
        return process

    def begin(self, trap: str = "") -> Process:
        """Without waiting for it: one that is to die soon may never serve."""
        given = {name: value for name, value in self._config.items() if value is not None}
        process = Process(
            Setup(config=given, journal=str(self._place.journal), trap=trap, marks=self._marks), self._within
        )
        self._started.append(process)
        return process

    def gone(self, process: Process) -> None:
        """Nobody needs it any more. What it wrote of defects is kept."""
        output = process.output()
        process.close()
        self._started.remove(process)
        if (at := output.find("Traceback")) >= 0:
            self.tracebacks.append(output[max(0, at - 300) : at + 3000])

    def close(self) -> None:
        for process in list(self._started):
            self.gone(process)


@contextlib.contextmanager
def servers(
    place: Place, config: Mapping[str, Any], marks: bool = True, within: Sequence[str] = ()
) -> Iterator[Servers]:
    found = Servers(place, config, marks, within)
    try:
        yield found
    finally:
        found.close()
